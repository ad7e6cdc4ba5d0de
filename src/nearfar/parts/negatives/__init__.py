"""Where the things an anchor is contrasted with live. What survives between steps lives here."""

from collections.abc import Callable

from nearfar.core.abstract import AbstractNegatives
from nearfar.parts.negatives.bank import Bank
from nearfar.parts.negatives.batch import Corrupted, Dictionary, InBatch, NoNegatives
from nearfar.parts.negatives.codes import Centred, Sinkhorn
from nearfar.parts.negatives.queue import Queue, Support

PARTS: dict[str, Callable[..., AbstractNegatives]] = {
    "in-batch": InBatch,
    "queue": Queue,
    "bank": Bank,
    "support": Support,
    "dictionary": Dictionary,
    "corrupted": Corrupted,
    "sinkhorn": Sinkhorn,
    "centred": Centred,
    "none": NoNegatives,
}
