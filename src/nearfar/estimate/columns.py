"""Reads arrays, tensors, lists, mappings and frames (pandas, polars, pyarrow) as columns of float64.

Text columns become categories: their distinct words in alphabetical order get the codes 0, 1, 2, ...
Dates and times become numbers. None, NaN and masked cells are gaps. A column that is mostly numbers and has a cell that is not is an error, not a category.
"""

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.system.extras import need

GAP_WORDS = ("", "na", "n/a", "nan", "null", "none")
NUMERIC_KINDS = "biuf"  # numpy dtype kinds


@dataclass(frozen=True)
class ColumnTable:
    """A sample as numbers. Gaps are NaN."""

    values: Float[np.ndarray, "sample column"]
    words: Bool[np.ndarray, "column"]  # whether the column holds text
    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]  # per column: the word of each code; () for numbers

    def format(self, value: float, column: int) -> str:
        """The value as the user wrote it."""
        return repr(self.levels[column][int(value)]) if self.words[column] else f"{value:g}"

    @property
    def complete(self) -> Bool[np.ndarray, "sample"]:
        """Which rows have no gap."""
        return ~np.isnan(self.values).any(axis=1)


def as_columns(values: Any, name: str, first_line: int | None = None) -> ColumnTable:
    """Converts a sample to columns.

    `name` and `first_line` (line of the first row in a file) appear in errors.
    """
    parts, levels, names = [], [], []
    for title, column in named_columns(values):
        array = _as_table(column, f"{name} column {title}" if title else name)
        for k in range(array.shape[1]):
            label = title or f"{k}"
            numbers, words = _as_numbers(array[:, k], f"{name} column {label}", first_line)
            parts.append(numbers)
            levels.append(words)
            names.append(label if array.shape[1] == 1 or not title else f"{title}[{k}]")
    if not parts:
        raise UserError(f"{name} has no columns")
    if len({len(part) for part in parts}) > 1:
        raise UserError(f"{name} is not a table: its columns have different lengths")
    return ColumnTable(np.column_stack(parts), np.array(list(map(bool, levels))), tuple(names), tuple(levels))


def stack_samples(first: Any, second: Any, names: tuple[str, str]) -> tuple[ColumnTable, int]:
    """Concatenates two samples of the same columns, so that a word has one code in both.

    Named columns are matched by name. Also returns the number of rows of the first sample.
    """
    samples = [
        {title: _as_table(column, name) for title, column in named_columns(values)}
        for values, name in ((first, names[0]), (second, names[1]))
    ]
    unmatched = set(samples[0]) ^ set(samples[1])
    if unmatched:
        raise UserError(
            f"{names[0]} and {names[1]} must have the same columns; "
            f"{min(unmatched, key=str) or 'an array without names'} is in one of them"
        )
    if not samples[0]:
        raise UserError(f"{names[0]} has no columns")
    widths = [sum(a.shape[1] for a in sample.values()) for sample in samples]
    if widths[0] != widths[1]:
        raise UserError(
            f"{names[0]} has {widths[0]} columns and {names[1]} {widths[1]}; they must be the same"
        )
    stacked = {title: _concatenate(samples[0][title], samples[1][title]) for title in samples[0]}
    rows = len(next(iter(samples[0].values())))
    return as_columns(stacked[""] if set(stacked) == {""} else stacked, " and ".join(names)), rows


def _concatenate(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows of a, then of b. Numbers next to text stay numbers instead of becoming their spelling."""
    numeric = a.dtype.kind in NUMERIC_KINDS and b.dtype.kind in NUMERIC_KINDS
    if a.dtype.kind != b.dtype.kind and not numeric:
        a, b = a.astype(object), b.astype(object)
    return np.concatenate([a, b])


def named_columns(values: Any) -> Iterator[tuple[str, Any]]:
    """Yields (title, column) of a mapping or frame, and ("", values) of an array."""
    if isinstance(values, Mapping):
        yield from ((str(title), column) for title, column in values.items())
    elif hasattr(values, "column_names"):  # pyarrow
        yield from ((title, arrow_cells(values.column(title))) for title in values.column_names)
    elif hasattr(values, "columns"):  # pandas, polars
        yield from ((str(title), values[title]) for title in values.columns)
    else:
        yield "", values


def arrow_cells(column: Any) -> list[Any] | np.ndarray:
    """The cells of an Arrow column; dates and times as whole numbers of their unit.

    Arrays are used where possible, because they take less memory than lists.
    """
    arrow = need("pyarrow")
    types = arrow.types
    if types.is_temporal(column.type) and not types.is_interval(column.type):
        column = column.cast(arrow.int32() if column.type.bit_width == 32 else arrow.int64())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    numeric = types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    return column.to_numpy() if numeric and not column.null_count else column.to_pylist()


def is_empty(column: Any, label_text: str) -> bool:
    """Whether every cell is a gap."""
    array = as_array(column, label_text)
    if array.dtype.kind in "biu":
        return not array.size
    return all(map(_is_gap, array.ravel().tolist()))


def _as_table(values: Any, label_text: str) -> np.ndarray:
    """The values as an array (samples, columns)."""
    array = as_array(values, label_text)
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise UserError(f"{label_text} has shape {array.shape}; it must be (samples,) or (samples, columns)")
    return array[:, None] if array.ndim == 1 else array


def as_array(values: Any, label_text: str) -> np.ndarray:
    """Arrays, tensors, lists and series as an array; masked cells as gaps."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to_dense().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
    if isinstance(values, np.ma.MaskedArray):
        values = np.where(np.ma.getmaskarray(values), np.array(None), values.data.astype(object))
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(f"{label_text} is not a table of numbers: its rows have different lengths") from error


def _as_numbers(
    column: np.ndarray, label_text: str, first_line: int | None
) -> tuple[Float[np.ndarray, "sample"], tuple[str, ...]]:
    """The column as float64; for a text column its codes, and the word of each code."""
    if column.dtype.kind in NUMERIC_KINDS:
        with np.errstate(over="ignore"):  # values beyond float64 become infinite and are reported later
            return _check_distinguishable(column.astype(np.float64), column, label_text), ()
    if column.dtype.kind in "mM":
        return np.where(np.isnat(column), np.nan, column.astype("int64").astype(float)), ()
    if column.dtype.kind not in "OUS":
        raise UserError(f"{label_text} holds {column.dtype.name}, which are not real numbers")
    cells = column.tolist()
    gap = np.array([_is_gap(cell) for cell in cells], dtype=bool)
    numbers = [None if missing else _as_number(cell) for cell, missing in zip(cells, gap, strict=True)]
    numeric = np.array([number is not None for number in numbers], dtype=bool)
    if not (~gap).any():
        raise UserError(f"{label_text} is empty")
    if numeric.sum() < settings.MIN_NUMERIC_SHARE * (~gap).sum():
        codes = np.full(len(cells), np.nan)
        words = [str(cells[place]) for place in np.flatnonzero(~gap)]
        levels = {word: code for code, word in enumerate(sorted(set(words)))}
        codes[~gap] = [levels[word] for word in words]
        return codes, tuple(levels)
    wrong = np.flatnonzero(~numeric & ~gap)
    if len(wrong):
        row = int(wrong[0])
        line = "" if first_line is None else f" (line {row + first_line})"
        raise UserError(
            f"{label_text} holds {cells[row]!r} at row {row}{line}, which is not a number although at least "
            "half of the column is; leave it empty if it is a gap"
        )
    values = np.array([np.nan if number is None else number for number in numbers], dtype=float)
    return _check_distinguishable(values, column, label_text), ()


def _check_distinguishable(numbers: np.ndarray, column: np.ndarray, label_text: str) -> np.ndarray:
    """Refuses different whole numbers that are so large that float64 makes them all equal."""
    if len(numbers) and abs(numbers[0]) >= settings.MAX_EXACT and (numbers == numbers[0]).all():
        different = np.flatnonzero(column != column[0])
        if len(different):
            raise UserError(
                f"{label_text} holds {column[0]} and {column[different[0]]}, which are one number in "
                "float64, as all of the column is; subtract what they share, or give them as words"
            )
    return numbers


def _is_gap(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in GAP_WORDS
    return (
        cell is None
        or (isinstance(cell, float) and cell != cell)
        or type(cell).__name__ in ("NAType", "NaTType")
    )


def _as_number(cell: Any) -> float | None:
    if isinstance(cell, complex):
        return None
    if isinstance(cell, datetime.datetime):
        return (cell if cell.tzinfo else cell.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(cell, datetime.date):
        return float(cell.toordinal())
    if isinstance(cell, datetime.timedelta):
        return cell.total_seconds()
    try:
        return float(cell)
    except OverflowError:  # whole numbers beyond float64 are reported as infinite later
        return math.inf if cell > 0 else -math.inf
    except (ValueError, TypeError):
        return None
