"""Where the things an anchor is contrasted with live. What survives between steps lives here."""

from collections.abc import Callable

from nearfar.negatives.bank import Bank
from nearfar.negatives.batch import InBatch
from nearfar.negatives.dictionary import Dictionary
from nearfar.negatives.none import NoNegatives
from nearfar.negatives.queue import Queue
from nearfar.negatives.support import Support
from nearfar.types import Source

PARTS: dict[str, Callable[..., Source]] = {
    "in-batch": InBatch,
    "queue": Queue,
    "bank": Bank,
    "support": Support,
    "dictionary": Dictionary,
    "none": NoNegatives,
}

__all__ = ["PARTS", "Bank", "Dictionary", "InBatch", "NoNegatives", "Queue", "Support"]
