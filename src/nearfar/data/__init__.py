"""Images → a deterministic, resumable stream of batches.

open_data("photos/") --Images--> Stream(images, views, batch_size, seed) --Batch--> the training loop
"""

from nearfar.data.images import Images
from nearfar.data.open import open_data
from nearfar.data.stream import Stream, plain_batches

__all__ = ["Images", "Stream", "open_data", "plain_batches"]
