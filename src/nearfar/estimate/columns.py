"""What users hand over, as columns of numbers: arrays, tensors, lists, mappings and frames (pandas, polars, pyarrow).

Words become whole-number codes and are known as categories; None and NaN are gaps. A column of numbers with a wrong cell is an error that
names the cell, not a category.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from nearfar.errors import UserError
from nearfar.system.extras import need

MOSTLY = 0.5  # share of cells that are numbers from which the others are mistakes
EXACT = 2.0**53  # up to which float64 holds every whole number
GAPS = ("", "na", "n/a", "nan", "null", "none")


@dataclass(frozen=True)
class Columns:
    """A sample as numbers; NaN where there is a gap."""

    values: Float[np.ndarray, "sample column"]
    words: Bool[np.ndarray, "column"]
    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]  # of each column its words by code; () of numbers

    def shown(self, value: float, column: int) -> str:
        """A value as it was given."""
        return repr(self.levels[column][int(value)]) if self.words[column] else f"{value:g}"


def as_columns(values: Any, name: str, first_line: int | None = None) -> Columns:
    """The sample by columns, or one sentence about what is wrong with it; `first_line`: of the file it was read from."""
    parts, levels, names = [], [], []
    for title, column in _columns(values, name):
        array = _array(column, f"{name} column {title}" if title else name)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or array.shape[1] == 0:
            raise UserError(f"{name} has shape {array.shape}; it must be (samples,) or (samples, columns)")
        for k in range(array.shape[1]):
            place = title or f"{k}"
            found, words = _numbers(array[:, k], f"{name} column {place}", first_line)
            parts.append(found)
            levels.append(words)
            names.append(place if array.shape[1] == 1 or not title else f"{title}[{k}]")
    if not parts:
        raise UserError(f"{name} has no columns")
    if len({len(part) for part in parts}) > 1:
        raise UserError(f"{name} is not a table: its columns have different lengths")
    return Columns(np.column_stack(parts), np.array(list(map(bool, levels))), tuple(names), tuple(levels))


def stacked_columns(first: Any, second: Any, names: tuple[str, str]) -> tuple[Columns, int]:
    """Two samples of the same columns as one, so that a word has one code in both; and how many rows the first has. Columns with names are
    matched by name."""
    one, other = (
        {title: _array(column, name) for title, column in _columns(values, name)}
        for values, name in ((first, names[0]), (second, names[1]))
    )
    if set(one) != set(other):
        missing = min(set(one) ^ set(other), key=str)
        raise UserError(
            f"{names[0]} and {names[1]} must have the same columns; {missing or 'an array without names'} is in one of them"
        )
    widths = [sum(a.shape[1] if a.ndim > 1 else 1 for a in sample.values()) for sample in (one, other)]
    if widths[0] != widths[1]:
        raise UserError(
            f"{names[0]} has {widths[0]} columns and {names[1]} {widths[1]}; they must be the same"
        )
    together = {title: _one_below_the_other(one[title], other[title]) for title in one}
    rows = len(next(iter(one.values())))
    return as_columns(together[""] if set(one) == {""} else together, " and ".join(names)), rows


def _one_below_the_other(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Numbers stay numbers; beside words they are what they are, not their spelling."""
    if a.dtype.kind != b.dtype.kind and not (a.dtype.kind in "biuf" and b.dtype.kind in "biuf"):
        a, b = a.astype(object), b.astype(object)
    if a.ndim != b.ndim:
        a, b = (side.reshape(len(side), -1) for side in (a, b))
    return np.concatenate([a, b])


def _columns(values: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(title, column) of anything with named columns; ("", all of it) of an array."""
    if isinstance(values, Mapping):
        yield from ((str(title), column) for title, column in values.items())
    elif hasattr(values, "column_names"):  # pyarrow
        yield from ((title, arrow_cells(values.column(title))) for title in values.column_names)
    elif hasattr(values, "columns") and hasattr(values, "__getitem__"):  # pandas, polars
        yield from ((str(title), values[title]) for title in values.columns)
    else:
        yield "", values


def arrow_cells(column: Any) -> list[Any] | np.ndarray:
    """Dates and times as whole numbers of their unit, others as they are. Arrays take less than lists, and text has its own length."""
    arrow = need("pyarrow")
    if arrow.types.is_temporal(column.type) and not arrow.types.is_interval(column.type):
        whole = arrow.int32() if column.type.bit_width == 32 else arrow.int64()
        column = column.cast(whole)
    types = arrow.types
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    numeric = types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    return column.to_numpy() if numeric and not column.null_count else column.to_pylist()


def _array(values: Any, where: str) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().to_dense().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(f"{where} is not a table of numbers: its rows have different lengths") from error


def _numbers(
    column: np.ndarray, where: str, first_line: int | None
) -> tuple[Float[np.ndarray, "sample"], tuple[str, ...]]:
    """The column as float64, and if it is a category of words, its levels."""
    if column.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # what is beyond float64 is infinite, and said later
            return _told_apart(column.astype(np.float64), column, where), ()
    if column.dtype.kind in "mM":
        return np.where(np.isnat(column), np.nan, column.astype("int64").astype(float)), ()
    if column.dtype.kind not in "OUS":
        raise UserError(f"{where} holds {column[0]!r}, which is not a number")
    cells = column.tolist()
    gap = np.array([_is_gap(cell) for cell in cells])
    numbers = [None if missing else _number(cell) for cell, missing in zip(cells, gap, strict=True)]
    right = np.array([number is not None for number in numbers])
    if not (~gap).any():
        raise UserError(f"{where} is empty")
    if right.sum() < MOSTLY * (~gap).sum():
        codes = np.full(len(cells), np.nan)
        words = [str(cells[place]) for place in np.flatnonzero(~gap)]
        levels = {word: code for code, word in enumerate(sorted(set(words)))}
        codes[~gap] = [levels[word] for word in words]
        return codes, tuple(levels)
    wrong = np.flatnonzero(~right & ~gap)
    if len(wrong):
        row = int(wrong[0])
        line = "" if first_line is None else f" (line {row + first_line})"
        raise UserError(
            f"{where} holds {cells[row]!r} at row {row}{line}, which is not a number although at least half of the column is; "
            "leave it empty if it is a gap"
        )
    found = np.array([np.nan if number is None else number for number in numbers], dtype=float)
    return _told_apart(found, column, where), ()


def _told_apart(numbers: np.ndarray, column: np.ndarray, where: str) -> np.ndarray:
    """Stops whole numbers so large that as float64 they are all one."""
    if len(numbers) and abs(numbers[0]) >= EXACT and (numbers == numbers[0]).all():
        other = np.flatnonzero(column != column[0])
        if len(other):
            raise UserError(
                f"{where} holds {column[0]} and {column[other[0]]}, which are one number in float64, as all of the column is; "
                "subtract what they share, or give them as words"
            )
    return numbers


def is_empty(column: Any, where: str) -> bool:
    """Whether every cell is a gap."""
    array = _array(column, where)
    if array.dtype.kind in "biu":
        return not array.size
    return all(map(_is_gap, array.ravel().tolist()))


def _is_gap(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in GAPS
    return (
        cell is None
        or (isinstance(cell, float) and cell != cell)
        or type(cell).__name__ in ("NAType", "NaTType")
    )


def _number(cell: Any) -> float | None:
    if isinstance(cell, complex):
        return None
    try:
        return float(cell)
    except (ValueError, TypeError):
        return None
