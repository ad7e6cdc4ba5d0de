"""Whatever a user calls data → a deterministic, resumable stream of batches.

pack("photos/", "packed/")    what is larger than memory, first
open_data("photos/") --DataSet--> Stream(data, views, batch_size, seed) --Batch--> the training loop
"""

from nearfar.data.open import READERS, Located, Reader, locate, open_data
from nearfar.data.packing import pack
from nearfar.data.parquet import Columns
from nearfar.data.scan import Limits
from nearfar.data.stream import Stream, plain_batches
from nearfar.modalities.base import Arrays

__all__ = [
    "READERS",
    "Arrays",
    "Columns",
    "Limits",
    "Located",
    "Reader",
    "Stream",
    "locate",
    "open_data",
    "pack",
    "plain_batches",
]
