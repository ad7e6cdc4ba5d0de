"""Sequences of different lengths: what `load` returns of recordings and of blocks of symbols."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64

PADDING = -1  # beyond the end of a block of symbols; beyond the end of a recording there is silence, 0


@dataclass(frozen=True)
class Sequences:
    """Sequences in one array, padded at their ends to the longest; `length` is the true length of each."""

    data: Float32[np.ndarray, "item time"] | Int64[np.ndarray, "item time"]
    length: Int64[np.ndarray, "item"]

    def present(self) -> Bool[np.ndarray, "item time"]:
        """False in the padding."""
        return np.arange(self.data.shape[1]) < self.length[:, None]


@dataclass(frozen=True)
class SequenceStore:
    """Sequences of a data set; `read_row(row)` returns one."""

    read_row: Callable[[int], np.ndarray]

    def take(self, rows: Int[np.ndarray, "item"]) -> Sequences:
        return padded([self.read_row(int(row)) for row in rows])


def padded(items: Sequence[np.ndarray]) -> Sequences:
    """The sequences in one array: silence after sounds, `PADDING` after symbols."""
    length = np.array([len(item) for item in items], dtype=np.int64)
    dtype = items[0].dtype if items else np.dtype(np.float32)
    data = np.full((len(items), int(length.max(initial=0))), 0 if dtype.kind == "f" else PADDING, dtype=dtype)
    for row, item in zip(data, items, strict=True):
        row[: len(item)] = item
    return Sequences(data, length)
