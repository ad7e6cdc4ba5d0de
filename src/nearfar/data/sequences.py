"""An opened set of sequences: recordings of sound, or blocks of symbols.

`Sequences` is to them what `Images` is to pictures, and everything that asks for names, labels, subsets and splits
takes either. What differs is what `load` gives: `Series`, not `Pixels`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float32, Int, Int64

from nearfar.data.images import Images
from nearfar.errors import UserError

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


@dataclass(frozen=True, eq=False)
class Sequences(Images):
    """An opened set of sequences. `channels` is 1 for sound; for symbols, how many different ones there are, since
    a symbol is a one-hot vector with so many channels."""

    rate: int = 0  # samples a second; 0 for symbols
    symbols: tuple[str, ...] = ()  # what symbol number i stands for; () for sound
    groups: Mapping[str, Int64[np.ndarray, "item"]] = field(default_factory=dict)  # who belongs together

    def __repr__(self) -> str:
        return f"Sequences({self.name!r}, {len(self)} {self.unit}, {self.class_count} classes)"

    @property
    def unit(self) -> str:
        """What one counts here."""
        return "recordings" if self.rate else "blocks"

    def load(self, index: Int[np.ndarray, "item"]) -> Series:  # type: ignore[override]
        """The sequences with these row numbers, in this order."""
        return self.store.take(self.rows[np.asarray(index, dtype=np.int64)])  # type: ignore[return-value]

    def subset(self, index: Int[np.ndarray, "item"]) -> "Sequences":
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        groups = {name: numbers[index] for name, numbers in self.groups.items()}
        part = super().subset(index)
        assert isinstance(part, Sequences)
        return replace(part, groups=groups)


def groups_of(images: Images, by: str) -> Int64[np.ndarray, "item"]:
    """The group of each picture or sequence: a column's values by number, its class, or itself."""
    known = {"self": np.arange(len(images), dtype=np.int64)}
    if isinstance(images, Sequences):
        known |= images.groups
    if images.labels is not None:
        known["label"] = images.labels
    if by not in known:
        raise UserError(
            f"selection.by was {by!r}; {images.name} can be grouped by {', '.join(sorted(known))}"
        )
    return known[by]
