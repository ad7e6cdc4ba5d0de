"""Tables of numbers and categories: readers and their description."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Int
from torch import Tensor

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Arrays, Collection, Decoded, StandardisedDescription
from nearfar.modalities.dataset import DataSet, Store, Unusable, unlike_most
from nearfar.modalities.files import set_fields

MAX_MARGINAL, MIN_MARGINAL = 1000, 32  # values of a column that a description keeps
MAX_MARGINALS = 100_000  # of all columns, where that leaves enough for each


@dataclass(frozen=True)
class ArrayRows:
    """Vectors in one array."""

    array: Float32[np.ndarray, "item width"]

    def take(self, rows: Int[np.ndarray, "item"]) -> Float32[np.ndarray, "item width"]:
        return self.array[rows]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Vectors(DataSet):
    """An opened table: `load` returns rows."""

    modality: ClassVar[str] = "vectors"
    unit: ClassVar[str] = "vectors"

    width: int
    levels: tuple[tuple[str, ...], ...] = ()  # names of the levels of each column; () for numbers


@dataclass(frozen=True)
class RecodedRows:
    """Another store's rows with the level numbers of another table; -1 for a level that it has not."""

    store: Store
    codes: Mapping[int, Float32[np.ndarray, "level"]]  # by column

    def take(self, rows: Int[np.ndarray, "item"]) -> Float32[np.ndarray, "item width"]:
        values = self.store.take(rows).copy()
        for column, codes in self.codes.items():
            values[:, column] = codes[values[:, column].astype(np.int64)]
        return values


@dataclass(frozen=True)
class VectorsDescription(StandardisedDescription):
    # `mean` and `std` of a category are 0 and 1
    levels: tuple[tuple[str, ...], ...] = field(default=(), kw_only=True)
    # values of each column in rising order, evenly spaced among all its rows
    marginals: tuple[tuple[float, ...], ...] = field(default=(), kw_only=True)

    def check(self) -> None:
        super().check()
        columns = len(self.mean)
        finite = all(math.isfinite(value) for values in self.marginals for value in values)
        lengths = {len(values) for values in self.marginals}
        if len(self.levels) not in (0, columns) or len(self.marginals) not in (0, columns) or not finite or len(lengths) > 1 or 0 in lengths:  # fmt: skip
            raise UserError("the checkpoint's description of its data is invalid (levels or marginals)")

    @property
    def level_counts(self) -> tuple[int, ...]:
        """The number of levels of each column; 0 for a column of numbers."""
        return tuple(map(len, self.levels)) if self.levels else (0,) * len(self.mean)

    def check_alike(self, data: Vectors, run_name: str) -> None:
        self.check_width(data, data.width, "features", run_name)
        theirs = data.levels or ((),) * data.width
        ours = self.levels or ((),) * data.width
        for column, (names, expected) in enumerate(zip(theirs, ours, strict=True), start=1):
            if bool(names) != bool(expected):
                kinds = ["numbers", "words"]
                raise UserError(
                    f"column {column} of {data.name} holds {kinds[bool(names)]} where {run_name} was trained on "
                    f"{kinds[bool(expected)]}"
                )

    def convert_channels(self, data: Vectors, run_name: str) -> Vectors:
        """Levels get the numbers that they had in training."""
        self.check_alike(data, run_name)
        if data.levels == self.levels:
            return data
        codes = {}
        for column, (names, expected) in enumerate(zip(data.levels, self.levels, strict=True)):
            numbers = {level: number for number, level in enumerate(expected)}
            if names:
                codes[column] = np.array([numbers.get(level, -1) for level in names], dtype=np.float32)
        return replace(data, store=RecodedRows(data.store, codes), levels=self.levels)


def single_precision(array: np.ndarray, name: str) -> np.ndarray:
    """Rows of numbers as float32, which must be finite."""
    with np.errstate(over="ignore"):
        rows = array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        column = np.flatnonzero(~np.isfinite(rows[bad[0]]))[0]
        reason = "beyond single precision" if np.isfinite(array[bad[0], column]) else "not finite"
        raise UserError(
            f"data {name!r}: row {bad[0]} holds a number that is {reason} ({len(bad)} such rows); fill or "
            "drop them."
        )
    return rows


def mean_and_std(rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each column; a constant column has standard deviation 1, so that it is only shifted."""
    rows = rows.astype(np.float64)
    std = rows.std(axis=0)
    return tuple(rows.mean(axis=0).tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def marginals(rows: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Values of each column in rising order: all, or evenly spaced ones of many."""
    count, width = rows.shape
    stored = min(count, MAX_MARGINAL, max(MIN_MARGINAL, MAX_MARGINALS // width))
    places = ((np.arange(stored) + 0.5) * count / stored).astype(np.int64)
    return tuple(map(tuple, np.sort(rows, axis=0)[places].T.astype(np.float64).tolist()))


class VectorsReader(AbstractReader):
    description_type = VectorsDescription
    files = "vectors"
    array_key = "x"
    array_axes = (2,)

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        if not isinstance(item, Tensor | np.ndarray) or item.ndim != 1:
            return None
        row = np.asarray(item)
        if row.dtype.kind in "iufb":
            with np.errstate(over="ignore"):
                row = row.astype(np.float32)
        if row.dtype != np.float32 or not np.isfinite(row).all():
            raise Unusable("not a row of finite numbers in single precision")
        return Decoded(row, row.shape, row.nbytes)

    def outliers(self, facts: Sequence[Any]) -> dict[int, str]:
        widths = [width for (width,) in facts]
        return unlike_most(widths, lambda width, usual: f"{width} numbers, where most have {usual}")

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Vectors:
        rows = np.stack(collection.all_contents())
        return Vectors(**collection.common(), store=ArrayRows(rows), width=rows.shape[1])

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> Vectors:
        array = arrays.array
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
            raise UserError(
                f"data {name!r}: x is {array.dtype} of shape {array.shape}; expected numbers of shape (rows, "
                "features)."
            )
        rows = single_precision(array, name)
        digest = hashlib.sha256(repr(rows.shape).encode() + np.ascontiguousarray(rows).tobytes())
        if arrays.levels:
            digest.update(repr(arrays.levels).encode())
        paths = arrays.paths or [f"{name}#{row}" for row in range(len(rows))]
        without = "the table has no column `label` and no array `labels`"
        common = set_fields(name, "rows", arrays.labelled, paths, digest, without)
        return Vectors(**common, store=ArrayRows(rows), width=rows.shape[1], levels=arrays.levels)

    def describe(self, data: Vectors, size: int | None) -> VectorsDescription:
        rows = data.load(np.arange(len(data)))
        mean, std = mean_and_std(rows)
        if data.levels:
            is_category = [bool(names) for names in data.levels]
            mean = tuple(np.where(is_category, 0.0, mean).tolist())
            std = tuple(np.where(is_category, 1.0, std).tolist())
        return VectorsDescription(
            data.fingerprint, len(data), mean, std, levels=data.levels, marginals=marginals(rows)
        )

    def example_description(self, instances: int) -> VectorsDescription:
        return VectorsDescription("", instances, (0.0,) * 8, (1.0,) * 8, marginals=((-1.0, 0.0, 1.0),) * 8)
