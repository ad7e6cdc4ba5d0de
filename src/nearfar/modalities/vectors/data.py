"""Tables of numbers: readers and their description."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Int
from torch import Tensor

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Arrays, Collection, Decoded, StandardisedDescription
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.labels import set_fields


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


@dataclass(frozen=True)
class VectorsDescription(StandardisedDescription):
    def check_alike(self, data: Vectors, run_name: str) -> None:
        if data.width != len(self.mean):
            raise UserError(
                f"{data.name} has {data.width} features but {run_name} was trained on {len(self.mean)}"
            )


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
        usual = max(sorted(set(widths)), key=widths.count, default=0)
        return {n: f"{w} numbers, where most have {usual}" for n, w in enumerate(widths) if w != usual}

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
        paths = arrays.paths or [f"{name}#{row}" for row in range(len(rows))]
        without = "the table has no column `label` and no array `labels`"
        common = set_fields(name, "rows", arrays.labelled, paths, digest, without)
        return Vectors(**common, store=ArrayRows(rows), width=rows.shape[1])

    def describe(self, data: Vectors, size: int | None) -> VectorsDescription:
        mean, std = mean_and_std(data.load(np.arange(len(data))))
        return VectorsDescription(data.fingerprint, len(data), mean, std)

    def example_description(self, instances: int) -> VectorsDescription:
        return VectorsDescription("", instances, (0.0,) * 8, (1.0,) * 8)
