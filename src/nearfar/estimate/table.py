"""All columns of a table against a target, ranked; and lags of two series."""

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from nearfar.core.statistics import holm
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.columns import as_array, as_columns, is_empty, named_columns
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate
from nearfar.estimate.rows import autocorrelation
from nearfar.estimate.samples import column_kinds


@dataclass(frozen=True)
class RankedColumn:
    """A column, its information about the target, and its p-value among all columns (Holm 1979)."""

    column: str
    estimate: Estimate
    p_value: float

    def as_json(self) -> dict[str, Any]:
        return {"column": self.column, "p_among_all": self.p_value, **self.estimate.as_json()}


def rank_columns(table: Any, target: Any, *, folds: int = 3, **options: Any) -> tuple[RankedColumn, ...]:
    """Columns of the table by the information of each alone about the target, in falling order.

    `target`: the name of a column, or values of its own. Empty and constant columns are left out. Options are
    those of `estimate_mi`.
    """
    columns = columns_by_name(table)
    target_name = "target"
    if isinstance(target, str):
        if target not in columns:
            raise UserError(f"target was {target!r}; the table has {', '.join(columns)}")
        target_name, target = target, columns.pop(target)
    complete = as_columns({target_name: target}, "table").complete
    estimates = {}
    for name, column in columns.items():
        if is_empty(column, f"table column {name}"):
            continue
        side = as_columns({name: column}, "table")
        values = side.values[complete & side.complete] if len(side.values) == len(complete) else side.values
        if len(np.unique(values, axis=0)) > 1:
            estimates[name] = estimate_mi(
                {name: column}, {target_name: target}, folds=folds, **{"baselines": False, **options}
            )
    if not estimates:
        raise UserError("the table has no column beside the target that varies")
    # a p-value of exactly 0 is valid; only a chosen bound has none
    p_values = holm([1.0 if e.p_value is None else e.p_value for e in estimates.values()])
    ranked = [
        RankedColumn(name, estimate, p)
        for (name, estimate), p in zip(estimates.items(), p_values, strict=True)
    ]
    return tuple(sorted(ranked, key=lambda column: -column.estimate.nats))


def columns_by_name(table: Any) -> dict[str, Any]:
    """Columns by name, unconverted (words stay words)."""
    columns = dict(named_columns(table))
    if set(columns) != {""}:
        return columns
    array = as_array(columns[""], "table")
    if array.ndim != 2:
        raise UserError(f"table has shape {array.shape}; it must be (rows, columns), or have named columns")
    return {str(k): array[:, k] for k in range(array.shape[1])}


def mi_over_lags(
    x: Any, y: Any, lags: Any = range(6), *, block: int | None = None, **options: Any
) -> dict[int, Estimate]:
    """I(x_t; y_(t + lag)) in nats per lag, for series of one length in order of time.

    A negative lag pairs y with the future of x. Neighbours in time depend on one another, so folds consist of
    blocks of `block` time steps, and the bound reads one step of each at a time. Default: as long as the
    series remember.
    """
    x_table, y_table = as_columns(x, "x"), as_columns(y, "y")
    first, second = x_table.values, y_table.values
    if len(first) != len(second):
        raise UserError(f"x has {len(first)} steps and y {len(second)}; they must have one length")
    lags = _check_lags(lags, len(first))
    # kinds are decided once, so that words are categories at every lag
    complete = x_table.complete & y_table.complete
    discrete = options.pop("discrete", "auto")
    kinds = column_kinds(first[complete], second[complete], discrete, x_table.words, y_table.words)
    longest = max(abs(lag) for lag in lags)
    steps = len(first) - longest
    size = block or max(_memory(first), _memory(second)) + longest
    if steps // size < settings.MIN_TIME_BLOCKS:
        raise UserError(
            f"{steps} steps in blocks of {size} are {steps // max(1, size)} blocks; at least {settings.MIN_TIME_BLOCKS} "
            "are needed: a longer series, a shorter lag, or block= if you know that they forget sooner"
        )
    options = {"baselines": False, "folds": min(settings.TIME_FOLDS, steps // size // 10), **options}
    estimates = {}
    for lag in lags:
        a = first[max(0, -lag) : len(first) - max(0, lag)]
        b = second[max(0, lag) : len(second) - max(0, -lag)]
        groups = np.arange(len(a)) // size
        estimates[lag] = estimate_mi(a, b, groups=groups, discrete=kinds, **options)
    return estimates


def _check_lags(lags: Any, steps: int) -> list[int]:
    max_count = 2 * steps  # there are fewer valid lags
    values = list(islice(lags, max_count + 1)) if isinstance(lags, Iterable) else [lags]
    if len(values) > max_count:
        raise UserError(
            f"lags were more than {max_count}; series of {steps} steps allow {1 - steps} to {steps - 1}"
        )
    if not values or not all(isinstance(lag, numbers.Integral) for lag in values):
        raise UserError(f"lags was {lags!r}; it must be whole numbers, at least one, for instance range(6)")
    too_long = next((lag for lag in values if abs(lag) >= steps), None)
    if too_long is not None:
        raise UserError(
            f"lags held {too_long}, which is longer than the series; {steps} steps allow {1 - steps} to "
            f"{steps - 1}"
        )
    return [int(lag) for lag in values]


def _memory(series: np.ndarray) -> int:
    """Steps after which no column correlates with its past."""
    rows = series[~np.isnan(series).any(axis=1)]
    for lag in range(1, max(2, len(rows) // settings.MIN_TIME_BLOCKS)):
        thinned = [rows[start::lag] for start in range(min(lag, 3))]
        largest = np.mean([np.abs(autocorrelation(part)).max() for part in thinned if len(part) > 3])
        if largest < max(settings.FORGOTTEN, 2.5 / np.sqrt(len(rows) / lag)):
            return lag
    return max(2, len(rows) // settings.MIN_TIME_BLOCKS)
