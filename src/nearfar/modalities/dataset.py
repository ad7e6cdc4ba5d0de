"""An opened data set: the number of instances, their labels and names, and their content on request.

Other packages need only `Instances`; `DataSet` is the implementation, and a modality adds its own fields
(channels and sizes of images, the sample rate of recordings, the vocabulary of text).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, overload

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64

from nearfar.core.randomness import first_of_windowed_order, order, windowed_order
from nearfar.core.splits import apportioned, at_least_one, held_out
from nearfar.core.strategy import Strategy
from nearfar.errors import UserError, counted

MAX_REASONS = 5  # in a sentence about ignored files


class Unusable(Exception):
    """One file or row cannot be used; the text is the reason that goes into the quarantine list."""


class Unreadable(Exception):
    """An instance turned out to be unusable when it was read; `row` is its row in the store."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True)
class Blocks:
    """Rows that are read together (row groups of Parquet): their starts, and how many are mixed."""

    starts: Int64[np.ndarray, "block"]
    window: int


class Names(Sequence[str]):
    """`count` names made on request by `name_at(place)`: a set may be too large for strings."""

    def __init__(
        self, count: int, name_at: Callable[[int], str], places: Int64[np.ndarray, "instance"] | None = None
    ) -> None:
        self._count, self._name_at, self._places = count, name_at, places

    def __len__(self) -> int:
        return self._count if self._places is None else len(self._places)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[row] for row in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        return self._name_at(place if self._places is None else int(self._places[place]))

    def pick(self, places: Int64[np.ndarray, "instance"]) -> "Names":
        """The names at these places."""
        return Names(self._count, self._name_at, places if self._places is None else self._places[places])


class Instances(Protocol):
    """What other packages need of a data set. Its modality interprets the result of `load`."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def labels(self) -> np.ndarray | None: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def load(self, index: Int[np.ndarray, "instance"], /) -> Any: ...


class UnusableRows(Protocol):
    """Which rows are unusable, where that is found out when they are read (`data.lazy.LazyReader`)."""

    names: Sequence[str]  # of all rows
    bad: dict[int, str]  # reasons by row

    def quarantine(self, number: int, reason: str, /) -> None: ...
    def check_bad_share(self, bad: Mapping[int, str], /) -> None: ...
    def quarantined(self) -> tuple[tuple[str, str], ...]: ...
    def has_unshared_rows(self) -> bool: ...
    def sync(self, strategy: Strategy, /) -> None: ...
    def check_rest(self, strategy: Strategy, workers: int, /) -> None: ...


class Store(Protocol):
    """The content: in one array, in a list, or read at each request."""

    def take(self, rows: Int[np.ndarray, "instance"]) -> Any: ...


@dataclass(frozen=True)
class RowStore:
    """Content that is read one by one: `join` makes what `load` returns of what `content_at(row)` returned."""

    content_at: Callable[[int], Any]
    join: Callable[[list[Any]], Any] = list

    def take(self, rows: Int[np.ndarray, "instance"]) -> Any:
        return self.join([self.content_at(int(row)) for row in rows])


def unlike_most(kinds: Sequence[Any], reason: Callable[[Any, Any], str]) -> dict[int, str]:
    """By place, `reason(kind, usual)` of those that are not of the most common kind, ties to the lowest."""
    counts = Counter(kinds)
    usual = min(counts, key=lambda kind: (-counts[kind], kind), default=None)
    return {place: reason(kind, usual) for place, kind in enumerate(kinds) if kind != usual}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DataSet:
    """An opened data set. `load` is deterministic and may be called from any number of threads.

    Where nothing was decoded at opening, an instance may turn out to be unusable when it is loaded. Then the
    next one of the set replaces it, always, so that what is seen is a function of the data alone.
    """

    modality: ClassVar[str]  # its name in `MODALITIES`
    unit: ClassVar[str]  # what one counts
    min_instances: ClassVar[int] = 2  # fewest that one can train on
    stratified: ClassVar[bool] = True  # whether `parts` hold out a share of every class
    # fields with a row for each instance
    per_instance: ClassVar[tuple[str, ...]] = "labels", "rows", "cut_from"

    name: str  # what the user wrote
    fingerprint: str  # sha256 over the names, labels and contents of what is usable
    labels: Int64[np.ndarray, "instance"] | None
    classes: tuple[str, ...]  # () when unlabelled, or labelled by numbers without names
    paths: Sequence[str]  # "cat/a.jpg", "train.parquet#17", "images.npz#3"
    store: Store
    rows: Int64[np.ndarray, "instance"]  # this set's instances among the store's
    groups: Mapping[str, Int64[np.ndarray, "instance"]] = field(default_factory=dict)  # who belongs together
    # of which whole (a file) it is a part, if several can be
    cut_from: Int64[np.ndarray, "instance"] | None = None
    quarantine: tuple[tuple[str, str], ...] = ()  # (path, reason) of what cannot be used
    # files in the folder that are not read, by reason
    ignored: Mapping[str, int] = field(default_factory=dict)
    unlabelled: str = ""  # why there are no labels, where there are none
    blocks: Blocks | None = None  # of the store's rows, where they are read by blocks
    unusable_rows: UnusableRows | None = None  # where the data were not checked when they were opened

    @property
    def class_count(self) -> int:
        """How many classes have a name, or, without names, occur."""
        if self.labels is None:
            return 0
        return len(self.classes) or len(np.unique(self.labels[self.labels >= 0]))

    @property
    def label_range(self) -> tuple[int | None, tuple[str, ...]]:
        """How many class numbers there are and their names; (None, ()) without labels."""
        if self.labels is None or not len(self.labels):
            return None, ()
        return max(int(self.labels.max()) + 1, len(self.classes)), self.classes

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        counts = f"{counted(len(self), self.unit)}, {counted(self.class_count, 'classes')}"
        return f"{type(self).__name__}({self.name!r}, {counts})"

    def load(self, index: Int[np.ndarray, "instance"]) -> Any:
        """The content of the instances with these row numbers, in this order."""
        return self.load_usable(index)[0]

    def load_usable(self, index: Int[np.ndarray, "instance"]) -> tuple[Any, Int64[np.ndarray, "instance"]]:
        """The content and its row numbers: an unusable instance is replaced by the next one of the set."""
        index = np.asarray(index, dtype=np.int64)
        unusable_rows: set[int] = set()
        while True:
            try:
                return self.store.take(self.rows[index]), index
            except Unreadable as unusable:
                # a row that comes up again may mean that no row is left
                if unusable.row in unusable_rows and np.isin(self.rows, [*unusable_rows]).all():
                    raise UserError(
                        f"data {self.name!r}: none of {counted(len(self), self.unit)} can be used; the last was "
                        f"row {unusable.row}: {unusable.__cause__}."
                    ) from unusable
                unusable_rows.add(unusable.row)
                index = np.where(self.rows[index] == unusable.row, (index + 1) % len(self), index)

    def order(self, seed: int, epoch: int) -> Int[np.ndarray, "instance"]:
        """The order of an epoch: a shuffle, or one within a window of blocks."""
        if self.blocks is None:
            return order(seed, epoch, len(self))
        return windowed_order(seed, epoch, self._block(), self.blocks.window)

    def _block(self) -> Int[np.ndarray, "instance"]:
        """The number of the block that each instance is in."""
        starts = np.empty(0) if self.blocks is None else self.blocks.starts
        return np.searchsorted(starts, self.rows, side="right")

    def sample(self, seed: int, draw: int, count: int) -> Int[np.ndarray, "instance"]:
        """Rising row numbers of `count` instances, or of all: those that `order` begins with."""
        if self.blocks is None:
            return np.sort(order(seed, draw, len(self))[:count])
        return np.sort(first_of_windowed_order(seed, draw, self._block(), self.blocks.window, count))

    def subset(self, index: Int[np.ndarray, "instance"]) -> Self:
        """The instances with these row numbers, as a data set of its own; the content is shared."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.per_instance}
        parts: dict[str, Any] = {
            name: None if rows is None else rows[index] for name, rows in columns.items()
        }
        return replace(
            self,
            fingerprint=hashlib.sha256(self.fingerprint.encode() + index.tobytes()).hexdigest(),
            paths=picked(self.paths, index),
            groups={name: numbers[index] for name, numbers in self.groups.items()},
            **parts,
        )

    def parts(self, share: float, seed: int) -> tuple[Int64[np.ndarray, "rest"], Int64[np.ndarray, "held"]]:
        """The rows for fitting and for testing a protocol where there is only one set: in proportion within
        every class, at least one of each on either side."""
        assert self.labels is not None
        is_held_out = held_out(self.labels, share, seed, at_least_one)
        return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)

    def split(self, share: float, seed: int) -> tuple[Self, Self]:
        """(the rest, the held-out share), by the seed, in proportion within every class."""
        if not 0 < share < 1:
            raise UserError(f"share {share} of a split; expected a number strictly between 0 and 1.")
        labels = np.zeros(len(self), dtype=np.int64) if self.labels is None else self.labels
        is_held_out = held_out(labels, share, seed, apportioned)
        if is_held_out.all() or not is_held_out.any():
            raise UserError(
                f"data {self.name!r}: a share of {share} of {counted(len(self), self.unit)} leaves one side of the "
                "split empty; "
                f"expected a share strictly between 0 and 1 with at least one on either side."
            )
        return self.subset(np.flatnonzero(~is_held_out)), self.subset(np.flatnonzero(is_held_out))


def picked(names: Sequence[str], places: Int64[np.ndarray, "instance"]) -> Sequence[str]:
    if isinstance(names, tuple):
        return tuple(names[place] for place in places)
    return (names if isinstance(names, Names) else Names(len(names), names.__getitem__)).pick(places)


def grouped(data: DataSet, by: str) -> Int64[np.ndarray, "instance"]:
    """The group of each instance: the value of a column, its class (`known-label`: if any) or itself."""
    groups = {"self": np.arange(len(data), dtype=np.int64), **data.groups}
    if data.labels is not None:
        groups["label"] = groups["known-label"] = data.labels
    else:
        groups["known-label"] = np.full(len(data), -1, dtype=np.int64)
    if by == "label" and by not in groups:
        reason = f" ({data.unlabelled})" if data.unlabelled else ""
        raise UserError(
            f"selection.by was label, but {data.name} has no labels{reason}; use data with labels, or a "
            "recipe that needs none"
        )
    if by not in groups:
        raise UserError(f"selection.by was {by!r}; {data.name} can be grouped by {', '.join(sorted(groups))}")
    return groups[by]


def ignored_files(counts: Mapping[str, int]) -> str:
    """One sentence about files that are not read, by reason; empty without any."""
    reasons = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    total = sum(counts.values())
    if len(reasons) > MAX_REASONS:
        reasons = [
            *reasons[: MAX_REASONS - 1],
            ("other reasons", sum(n for _, n in reasons[MAX_REASONS - 1 :])),
        ]
    listed = ", ".join(f"{reason} ({count:,})" if len(reasons) > 1 else reason for reason, count in reasons)
    return f"{total:,} {'file' if total == 1 else 'files'} ignored: {listed}" if total else ""


# ------------------------------------------------------------------------------------------- sequences


PADDING = -1  # beyond the end of a block of symbols; beyond the end of a recording there is silence, 0


@dataclass(frozen=True)
class Sequences:
    """Sequences in one array, padded at their ends to the longest; `length` is the true length of each."""

    data: Float32[np.ndarray, "item time"] | Int64[np.ndarray, "item time"]
    length: Int64[np.ndarray, "item"]

    def present(self) -> Bool[np.ndarray, "item time"]:
        """False in the padding."""
        return np.arange(self.data.shape[1]) < self.length[:, None]


def padded(items: Sequence[np.ndarray]) -> Sequences:
    """The sequences in one array: silence after sounds, `PADDING` after symbols."""
    length = np.array([len(item) for item in items], dtype=np.int64)
    dtype = items[0].dtype if items else np.dtype(np.float32)
    data = np.full((len(items), int(length.max(initial=0))), 0 if dtype.kind == "f" else PADDING, dtype=dtype)
    for row, item in zip(data, items, strict=True):
        row[: len(item)] = item
    return Sequences(data, length)
