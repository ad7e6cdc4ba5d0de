"""Are the rows independent draws, and which of them does a fold learn from?

Every claim rests on independent rows. Four checks can refute independence; none can prove it:

    copies      joint rows that recur although a side rarely repeats: bootstrap samples, joined tables
    jitter      rows far closer in x and in y than their neighbours: copies with a little noise
    order       autocorrelation at one lag on both sides: time series, repeated measurements of one subject
    sorted      rows sorted by a column, whose own order cannot be checked

`groups` names the rows that depend on one another. A group stays on one side of every split.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import minimum_filter1d
from scipy.stats import norm, rankdata

from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.samples import Array

ADVICE = "the claim needs independent rows; name those that belong together with groups, or thin a series"
SHUFFLE_ADVICE = "the claim needs independent rows; if they were drawn independently, shuffle them"


RowNumbers = Int[np.ndarray, "row"]


@dataclass(frozen=True)
class RowCheck:
    """`refuted`: a clause that says why the rows are not independent. `doubt`: why that cannot be checked."""

    refuted: str = ""
    doubt: str = ""
    advice: str = ADVICE

    @property
    def warnings(self) -> tuple[str, ...]:
        return (f"{self.refuted}: {self.advice}",) if self.refuted else (self.doubt,) if self.doubt else ()


def check_rows(x: Array, y: Array, names: tuple[tuple[str, ...], tuple[str, ...]] | None = None) -> RowCheck:
    """Looks for copies and for an order of the rows. `names` are those of the columns, for messages."""
    copies = _copies(x, y) or _jitter(x, y)
    if copies:
        return RowCheck(refuted=copies)
    for k, side in enumerate((x, y)):
        for column in _sorted_columns(side):
            label = f"{'xy'[k]} column {names[k][column] if names else column}"
            return _check_sorted(label, "yx"[k], (y, x)[k])
    return RowCheck(refuted=_order(x, y))


def is_dependent(sample: Array) -> bool:
    """Whether rows of one sample are copies of one another or follow their neighbours; sorted rows pass."""
    if _copies(sample, sample) or _jitter(sample, sample):
        return True
    return not _sorted_columns(sample) and bool(_order(sample, sample))


def _check_sorted(label: str, other_name: str, other_side: Array) -> RowCheck:
    """Sorted rows whose other side is autocorrelated may be a series in time.

    Nothing in them says otherwise.
    """
    if np.abs(_significant_autocorrelation([other_side])[0]).max() > settings.MIN_AUTOCORRELATION:
        refuted = f"the rows are sorted by {label}, and {other_name} follows their order"
        return RowCheck(refuted=refuted, advice=SHUFFLE_ADVICE)
    return RowCheck(doubt=f"the rows are sorted by {label}, so their original order cannot be checked")


def _copies(x: Array, y: Array) -> str:
    pairs = len(x) * (len(x) - 1) / 2
    (x_ties, x_distinct), (y_ties, y_distinct) = _count_ties(x), _count_ties(y)
    joint_ties, distinct = _count_ties(np.hstack([x, y]))
    copied = len(x) - distinct
    by_chance = x_ties * y_ties / pairs
    # few distinct rows on both sides are categories, unless their values are measurements, which never recur
    measured = all(_is_measured(side) for side in (x, y))
    measured = measured and distinct <= settings.SAME_ROWS * min(x_distinct, y_distinct)
    repeats = max(x_distinct, y_distinct) < settings.DISTINCT_SHARE * len(x) and not measured
    few = (
        copied < max(3, settings.MAX_COPIES * len(x)) or joint_ties < settings.COPIES_OVER_CHANCE * by_chance
    )
    recurring = distinct > settings.SAME_ROWS * max(x_distinct, y_distinct)
    if few or repeats or recurring:
        return ""
    return f"{copied} of {len(x)} rows are copies of others, in x and in y"


def _jitter(x: Array, y: Array) -> str:
    """Finds rows next to each other in a column of x that are far closer than values nearby, in x and in y.

    Gaps between independent draws of a smooth density are locally exponential: a share `CLOSE` of them is below
    `CLOSE` times their mean, and no more than that in both columns, even if y is x.
    """
    first, second = _continuous_column(x), _continuous_column(y)
    if first is None:
        return ""
    order = np.argsort(first, kind="stable")
    previous, following = order[:-1], order[1:]
    close_x = _is_close(first, previous, following)
    close_y = (
        (y[previous] == y[following]).all(axis=1)
        if second is None
        else _is_close(second, previous, following)
    )
    copied = close_x & close_y
    if copied.sum() < max(settings.MIN_CLOSE, settings.MAX_CLOSE * len(x)):
        return ""
    gaps = np.diff(first[order])
    if (gaps > 10 * np.median(gaps[copied])).sum() < settings.MIN_APART * len(x):
        return ""  # rows at few places are levels, with or without noise
    return f"{copied.sum()} of {len(x)} rows are copies of others but for a little noise, in x and in y"


def _continuous_column(side: Array) -> Float[np.ndarray, "sample"] | None:
    """The first column that rarely repeats, if there is one."""
    return next((column for column in side.T if len(np.unique(column)) > len(column) / 2), None)


def _is_close(column: Float[np.ndarray, "sample"], previous: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Which pairs of rows are far closer than values nearby.

    Equal values of a rounded reading may be half a step apart; the step is the smallest difference nearby.
    """
    order = np.argsort(column, kind="stable")
    ranked, place = column[order], np.arange(len(column))
    steps = np.diff(ranked)
    steps = np.where(steps > 0, steps, np.inf)
    half_step = np.empty(len(column))
    half_step[order] = (
        minimum_filter1d(np.append(steps, steps[-1]), 2 * settings.NEARBY_GAPS + 1, mode="nearest") / 2
    )
    low, high = (
        np.maximum(place - settings.NEARBY_GAPS, 0),
        np.minimum(place + settings.NEARBY_GAPS, len(column) - 1),
    )
    gap = np.empty(len(column))
    # towards the middle of a heavy-tailed distribution gaps are smaller: the smaller side counts
    down, up = ranked - ranked[low], ranked[high] - ranked
    gap[order] = np.minimum(
        np.where(place > low, down / np.maximum(place - low, 1), np.inf),
        np.where(place < high, up / np.maximum(high - place, 1), np.inf),
    )
    distance = np.maximum(
        np.abs(column[previous] - column[following]), np.minimum(half_step[previous], half_step[following])
    )
    return distance < settings.CLOSE * np.minimum(gap[previous], gap[following])


def _is_measured(side: Array) -> bool:
    """Whether a column holds many distinct numbers of more than six decimals, which levels do not have."""
    return any(
        len(levels := np.unique(column)) >= settings.MIN_GROUPS
        and bool((np.round(levels, 6) != levels).mean() > 0.9)
        for column in side.T
    )


def _count_ties(side: Array) -> tuple[float, int]:
    """Number of pairs of equal rows, and number of distinct rows."""
    counts = np.unique(side, axis=0, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / 2), len(counts)


def _sorted_columns(side: Array) -> list[int]:
    """Columns in rising or falling order, and columns of levels each of which stands in one run of rows."""
    step = np.diff(side, axis=0)
    monotone = (step >= 0).all(axis=0) | (step <= 0).all(axis=0)
    runs = (step != 0).sum(axis=0) + 1
    grouped = (runs <= len(side) // 2) & (runs == [len(np.unique(column)) for column in side.T])
    return [int(k) for k in np.flatnonzero(monotone | grouped)]


def _order(x: Array, y: Array) -> str:
    """Order makes x and y look dependent only if both sides follow earlier rows at the same lag."""
    largest = [np.abs(side).max(axis=1) for side in _significant_autocorrelation([x, y])]
    in_both = np.minimum(*largest)
    lag = int(in_both.argmax())
    if in_both[lag] <= settings.MIN_AUTOCORRELATION:
        return ""
    return (
        f"rows follow {'their neighbours' if lag == 0 else f'those {lag + 1} before'} (lag-{lag + 1} rank "
        f"correlation {largest[0][lag]:.2f} in x and {largest[1][lag]:.2f} in y), as in a time series or "
        "repeated measurements"
    )


def _significant_autocorrelation(sides: list[Array]) -> list[Float[np.ndarray, "lag column"]]:
    """Autocorrelations beyond chance (`FALSE_ALARM` over all columns), of columns and of their distances from
    the
    median: rows whose size follows their neighbours' (calm and volatile times) need not correlate."""
    lags = min(settings.MAX_LAGS, len(sides[0]) // 4)
    columns = [_with_distances(side) for side in sides]
    min_errors = float(norm.isf(settings.FALSE_ALARM / sum(side.shape[1] for side in columns) / lags / 2))
    return [autocorrelation(side, lags, min_errors) for side in columns]


def _with_distances(side: Array) -> Array:
    """The columns, and the distances from their medians where those vary."""
    distance = np.abs(side - np.median(side, axis=0))
    return np.hstack([side, distance[:, np.ptp(distance, axis=0) > 0]])


def autocorrelation(side: Array, lags: int = 1, min_errors: float = 0.0) -> Float[np.ndarray, "lag column"]:
    """Rank correlation of each column with itself 1 to `lags` rows later.

    Zero where it is less than `min_errors` of its standard errors from zero.
    """
    ranks = rankdata(side, axis=0)
    ranks -= ranks.mean(axis=0)
    correlation = np.zeros((lags, side.shape[1]))
    for lag in range(1, lags + 1):
        products = ranks[lag:] * ranks[:-lag]
        total, error = products.sum(axis=0), np.sqrt((products**2).sum(axis=0))
        correlation[lag - 1] = np.where(np.abs(total) >= min_errors * error, total, 0.0)
    return correlation / (ranks**2).sum(axis=0)


def group_numbers(groups: Any, samples: int) -> Int[np.ndarray, "sample"]:
    """The unit of every row as a number from 0: its group, or without groups the row itself."""
    if groups is None:
        return np.arange(samples)
    labels = np.asarray(groups)
    if labels.shape != (samples,):
        raise UserError(f"groups has shape {labels.shape}; it must be ({samples},): one label per row")
    distinct, number = np.unique(labels, return_inverse=True)
    if len(distinct) < settings.MIN_GROUPS:
        raise UserError(
            f"groups names {len(distinct)} groups; at least {settings.MIN_GROUPS} are needed, since rows of one group "
            "count as one"
        )
    return number


@dataclass(frozen=True)
class Split:
    """Rows of one fold."""

    train: RowNumbers
    validation: RowNumbers  # for early stopping
    draws: list[RowNumbers]  # of unseen rows, one row per unit in each draw
    unseen: RowNumbers

    @property
    def rest(self) -> RowNumbers:
        """The rows a fold may learn from, at most `MAX_LEARNED`."""
        return np.concatenate([self.train, self.validation])[: settings.MAX_LEARNED]


def split_folds(unit: Int[np.ndarray, "row"], folds: int, seed: int) -> list[Split]:
    """Cross-validation folds: every unit (a row, or a group of rows) is unseen once."""
    return [_split(unit, *units, seed=seed + k) for k, units in enumerate(_divide_units(unit, folds, seed))]


def _divide_units(unit: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out units of every fold."""
    parts = np.array_split(np.random.default_rng(seed).permutation(int(unit.max()) + 1), folds)
    for k, held_out in enumerate(parts):
        yield np.concatenate([part for j, part in enumerate(parts) if j != k]), held_out


def _split(unit: np.ndarray, rest: np.ndarray, held_out: np.ndarray, seed: int) -> Split:
    stop, learn = np.split(rest, [min(len(rest) // 6, settings.MAX_BLOCK)])
    if int(unit.max()) + 1 == len(unit):
        return Split(learn, stop, [held_out], held_out)
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    train, validation, unseen = (
        rng.permutation(np.concatenate([members[u] for u in units])) for units in (learn, stop, held_out)
    )
    draws = [np.array([rng.choice(members[u]) for u in held_out]) for _ in range(settings.GROUP_DRAWS)]
    return Split(train, validation[: settings.MAX_BLOCK], draws, unseen)


def blocks(rows: RowNumbers, max_rows: int = settings.MAX_BLOCK) -> list[RowNumbers]:
    """Rows in equal blocks, each contrasted within itself."""
    return np.array_split(rows, math.ceil(len(rows) / max_rows))
