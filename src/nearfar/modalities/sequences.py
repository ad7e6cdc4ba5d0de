"""Sequences of different lengths: what `load` gives of recordings and of blocks of symbols."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int, Int64

PADDING = -1  # beyond the end of a block of symbols; beyond the end of a recording there is silence, 0


@dataclass(frozen=True)
class Series:
    """Sequences in one array, padded at their ends to the longest; `length` is how much of each is real."""

    data: Float32[np.ndarray, "item time"] | Int64[np.ndarray, "item time"]
    length: Int64[np.ndarray, "item"]


@dataclass(frozen=True)
class Held:
    """Sequences in memory."""

    items: Sequence[np.ndarray]

    def take(self, rows: Int[np.ndarray, "item"]) -> Series:
        return padded([self.items[row] for row in rows])


@dataclass(frozen=True)
class Read:
    """Sequences too long to hold: `read(row)` decodes one at each request."""

    read: Callable[[int], np.ndarray]

    def take(self, rows: Int[np.ndarray, "item"]) -> Series:
        return padded([self.read(int(row)) for row in rows])


def padded(items: Sequence[np.ndarray]) -> Series:
    """The sequences in one array: silence after sounds, `PADDING` after symbols."""
    length = np.array([len(item) for item in items], dtype=np.int64)
    dtype = items[0].dtype if items else np.dtype(np.float32)
    data = np.full((len(items), int(length.max(initial=0))), 0 if dtype.kind == "f" else PADDING, dtype=dtype)
    for row, item in zip(data, items, strict=True):
        row[: len(item)] = item
    return Series(data, length)
