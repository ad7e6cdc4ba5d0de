"""Every column of a table against a target, ranked; and lags of a series."""

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from nearfar.errors import UserError
from nearfar.estimate.columns import arrow_cells, as_columns, is_empty
from nearfar.estimate.dependence import autocorrelation
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate
from nearfar.estimate.samples import column_kinds

FEWEST_BLOCKS, FOLDS = 40, 5  # a fold needs ten blocks
LEVELS = 0.05  # a column whose rank correlation with itself is below this has forgotten


@dataclass(frozen=True)
class Ranked:
    """One column: what it tells about the target, and its p-value among so many (Holm 1979)."""

    column: str
    estimate: Estimate
    p_value: float

    def as_json(self) -> dict[str, Any]:
        return {"column": self.column, "p_among_all": self.p_value, **self.estimate.as_json()}


def rank_columns(table: Any, target: Any, *, folds: int = 3, **options: Any) -> tuple[Ranked, ...]:
    """Columns of the table by what each alone tells about the target, the most first.

    `target` is the name of one of them, or a column of its own. Empty columns and constants are left out. Three folds are enough to rank.
    """
    columns = _named(table)
    if isinstance(target, str):
        if target not in columns:
            raise UserError(f"target was {target!r}; the table has {', '.join(columns)}")
        target = columns.pop(target)
    known = ~np.isnan(as_columns({"target": target}, "table").values).any(axis=1)
    found = {}
    for name, column in columns.items():
        if is_empty(column, f"table column {name}"):
            continue
        values = as_columns({name: column}, "table").values
        seen = values[known & ~np.isnan(values).any(axis=1)] if len(values) == len(known) else values
        if len(np.unique(seen, axis=0)) > 1:
            found[name] = estimate_mi(
                {name: column}, {"target": target}, folds=folds, **{"baselines": False, **options}
            )
    if not found:
        raise UserError("the table has no column beside the target that varies")
    # a p-value may be zero to all digits; only a bound that was asked for has none
    adjusted = holm({name: 1.0 if one.p_value is None else one.p_value for name, one in found.items()})
    ranked = [Ranked(str(name), one, adjusted[name]) for name, one in found.items()]
    return tuple(sorted(ranked, key=lambda one: -one.estimate.nats))


def holm(p: dict[str, float]) -> dict[str, float]:
    """p-values that hold for all of them at once (Holm 1979): the k-th smallest times how many are left, never falling."""
    so_far, adjusted = 0.0, {}
    for k, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        so_far = max(so_far, min(1.0, value * (len(p) - k)))
        adjusted[name] = so_far
    return adjusted


def _named(table: Any) -> dict[str, Any]:
    """Columns by name, each as it was given (words stay words)."""
    if isinstance(table, dict):
        return dict(table)
    if hasattr(table, "column_names"):
        return {name: arrow_cells(table.column(name)) for name in table.column_names}
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        return {str(name): table[name] for name in table.columns}
    array = np.asarray(table)
    if array.ndim != 2:
        raise UserError(f"table has shape {array.shape}; it must be (rows, columns), or have named columns")
    return {str(k): array[:, k] for k in range(array.shape[1])}


def mi_over_lags(
    x: Any, y: Any, lags: Any = range(6), *, block: int | None = None, **options: Any
) -> dict[int, Estimate]:
    """I(x_t; y_(t + lag)) for series of one length, in order of time; a negative lag asks y about the future of x.

    Neighbours in time depend on one another, so folds are made of whole `block`s of time steps, and the bound reads one step
    of each at a time. Without `block`, it is as long as the series take to forget themselves.
    """
    of_x, of_y = as_columns(x, "x"), as_columns(y, "y")
    first, second = of_x.values, of_y.values
    if len(first) != len(second):
        raise UserError(f"x has {len(first)} steps and y {len(second)}; they must have one length")
    lags = _checked_lags(lags, len(first))
    # words are categories at every lag, however many there are
    whole = ~(np.isnan(first).any(axis=1) | np.isnan(second).any(axis=1))
    kinds = column_kinds(first[whole], second[whole], options.pop("discrete", "auto"), of_x.words, of_y.words)
    longest = max(abs(lag) for lag in lags)
    steps = len(first) - longest
    size = block or max(_memory(first), _memory(second)) + longest
    if steps // size < FEWEST_BLOCKS:
        raise UserError(
            f"{steps} steps in blocks of {size} are {steps // max(1, size)} blocks; at least {FEWEST_BLOCKS} are needed: a longer "
            "series, a shorter lag, or block= if you know that they forget sooner"
        )
    options = {"baselines": False, "folds": min(FOLDS, steps // size // 10), **options}
    found = {}
    for lag in lags:
        a = first[max(0, -lag) : len(first) - max(0, lag)]
        b = second[max(0, lag) : len(second) - max(0, -lag)]
        groups = np.arange(len(a)) // size
        found[lag] = estimate_mi(a, b, groups=groups, discrete=kinds, **options)
    return found


def _checked_lags(lags: Any, steps: int) -> list[int]:
    most = 2 * steps  # from -steps on, no more are shorter than the series
    found = list(islice(lags, most + 1)) if isinstance(lags, Iterable) else [lags]
    if len(found) > most:
        raise UserError(
            f"lags were more than {most}; series of {steps} steps allow {1 - steps} to {steps - 1}"
        )
    if not found or not all(isinstance(lag, numbers.Integral) for lag in found):
        raise UserError(f"lags was {lags!r}; it must be whole numbers, at least one, for instance range(6)")
    beyond = next((lag for lag in found if abs(lag) >= steps), None)
    if beyond is not None:
        raise UserError(
            f"lags held {beyond}, which is longer than the series; {steps} steps allow {1 - steps} to {steps - 1}"
        )
    return [int(lag) for lag in found]


def _memory(series: np.ndarray) -> int:
    """Steps after which no column is correlated with its past."""
    gap = ~np.isnan(series).any(axis=1)
    whole = series[gap]
    for lag in range(1, max(2, len(whole) // FEWEST_BLOCKS)):
        thinned = [whole[start::lag] for start in range(min(lag, 3))]
        largest = np.mean([np.abs(autocorrelation(part)).max() for part in thinned if len(part) > 3])
        if largest < max(LEVELS, 2.5 / np.sqrt(len(whole) / lag)):
            return lag
    return max(2, len(whole) // FEWEST_BLOCKS)
