"""Images and sequences → a deterministic, resumable stream of batches.

open_data("photos/") --Images--> Stream(images, views, batch_size, seed) --Batch--> the training loop
open_data("speech.parquet") --Sequences--> the same
"""

from nearfar.data.images import Images
from nearfar.data.open import open_data
from nearfar.data.sequences import Sequences, Series
from nearfar.data.stream import Stream, plain_batches
from nearfar.data.text import Reading

__all__ = ["Images", "Reading", "Sequences", "Series", "Stream", "open_data", "plain_batches"]
