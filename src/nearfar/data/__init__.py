"""Whatever a user calls data → a deterministic, resumable stream of batches.

pack("photos/", "packed/")    what is larger than memory, first
open_data("photos/") --DataSet--> Stream(data, views, batch_size, seed) --Batch--> the training loop
"""

from nearfar.data.open import FORMATS, ArrayFormat, Located, RowFormat, locate, open_data
from nearfar.data.packing import pack
from nearfar.data.parquet import Columns
from nearfar.data.source import AbstractSource, Limits
from nearfar.data.stream import Stream, plain_batches
from nearfar.modalities.base import Arrays

__all__ = [
    "FORMATS",
    "AbstractSource",
    "ArrayFormat",
    "Arrays",
    "Columns",
    "Limits",
    "Located",
    "RowFormat",
    "Stream",
    "locate",
    "open_data",
    "pack",
    "plain_batches",
]
