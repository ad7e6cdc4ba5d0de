"""Are the rows independent draws? Every claim here rests on it, and four cheap looks can refute it.

    copies      joint rows that occur again although a side hardly repeats itself: bootstrap samples, joined tables
    jitter      rows that lie in x and in y far closer than their neighbours do: copies with a little noise
    order       autocorrelation at one lag on both sides: time series, seasons, repeated measurements of one subject in a row
    sorted      a column in rising or falling order hides whatever order the rows had

None can prove independence: `groups` says which rows belong together where the user knows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import minimum_filter1d
from scipy.stats import norm, rankdata

from nearfar.errors import UserError
from nearfar.estimate.samples import Array

MOST_COPIES = 0.01  # share of rows that may be copies of others,
COPIES_OVER_CHANCE = 30  # unless that is so many times what independent ties would make
DISTINCT = 0.25  # a side with at least this share of distinct rows hardly repeats itself
SAME_ROWS = (
    1.1  # so many distinct joint rows for one of the finer side: levels that recur by themselves make more
)
CLOSE = 0.02  # of the mean gap between values round about: of independent draws that share are closer,
MOST_CLOSE, FEWEST_CLOSE = 0.05, 8  # and of rows not more than this
APART = 0.2  # share of rows that must lie apart: copies are few of each, levels many
ROUND_ABOUT = 20  # gaps on either side
MOST_LAGS = 60  # rows apart
LEAST_CORRELATION = 0.1  # of rows so far apart: less than this moves no estimate much
FALSE_ALARM = 1e-5  # chance that independent rows look ordered, over all columns
FEWEST_GROUPS = 20


@dataclass(frozen=True)
class RowsSeen:
    """What the rows look like: `refuted` says in a clause why they are not independent, `doubt` why nobody can tell."""

    refuted: str = ""
    doubt: str = ""


def look_at_rows(x: Array, y: Array) -> RowsSeen:
    """Copies and order of the rows, as far as they speak against independence."""
    copies = _copies(x, y) or _jitter(x, y)
    if copies:
        return RowsSeen(refuted=copies)
    ordered = next((f"{name} column {k}" for name, side in (("x", x), ("y", y)) for k in _sorted(side)), None)
    if ordered:
        return RowsSeen(doubt=f"the rows are sorted by {ordered}, so their own order cannot be looked at")
    return RowsSeen(refuted=_order(x, y))


def _copies(x: Array, y: Array) -> str:
    pairs = len(x) * (len(x) - 1) / 2
    (x_ties, x_distinct), (y_ties, y_distinct) = _ties(x), _ties(y)
    together, distinct = _ties(np.hstack([x, y]))
    copied = len(x) - distinct
    by_chance = x_ties * y_ties / pairs
    # few different rows on both sides are categories, unless their values are measurements: those never recur by themselves
    measured = all(_measurements(side) for side in (x, y)) and distinct <= SAME_ROWS * min(
        x_distinct, y_distinct
    )
    repeats_itself = max(x_distinct, y_distinct) < DISTINCT * len(x) and not measured
    few = copied < max(3, MOST_COPIES * len(x)) or together < COPIES_OVER_CHANCE * by_chance
    recurring = distinct > SAME_ROWS * max(x_distinct, y_distinct)
    if few or repeats_itself or recurring:
        return ""
    return f"{copied} of {len(x)} rows are copies of others, in x and in y"


def _jitter(x: Array, y: Array) -> str:
    """Rows next to each other in a column of x that are far closer there than values round about are, and in a column of y too.

    Gaps between independent draws of a smooth density are exponential round about: a share `CLOSE` of them is below `CLOSE` times
    their mean, and no more than that in both, even if y is x.
    """
    first, second = _smooth(x), _smooth(y)
    if first is None:
        return ""
    order = np.argsort(first, kind="stable")
    here, there = order[:-1], order[1:]
    near = _close(first, here, there)
    alike = (y[here] == y[there]).all(axis=1) if second is None else _close(second, here, there)
    copied = int((near & alike).sum())
    if copied < max(FEWEST_CLOSE, MOST_CLOSE * len(x)):
        return ""
    gaps = np.diff(first[order])
    if (gaps > 10 * np.median(gaps[near & alike])).sum() < APART * len(x):
        return ""  # few places at which rows lie are levels, with or without noise
    return f"{copied} of {len(x)} rows are copies of others but for a little noise, in x and in y"


def _smooth(side: Array) -> Float[np.ndarray, "sample"] | None:
    """The first column that hardly repeats itself, if there is one."""
    return next((column for column in side.T if len(np.unique(column)) > len(column) / 2), None)


def _close(column: Float[np.ndarray, "sample"], here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which pairs of rows are far closer than values round about. Of a reading that was rounded, equal values may be half a step apart; the
    smallest difference round about is a step."""
    order = np.argsort(column, kind="stable")
    ranked, place = column[order], np.arange(len(column))
    steps = np.diff(ranked)
    steps = np.where(steps > 0, steps, np.inf)
    half_step = np.empty(len(column))
    half_step[order] = minimum_filter1d(np.append(steps, steps[-1]), 2 * ROUND_ABOUT + 1, mode="nearest") / 2
    low, high = np.maximum(place - ROUND_ABOUT, 0), np.minimum(place + ROUND_ABOUT, len(column) - 1)
    gap = np.empty(len(column))
    # towards the middle of a distribution with heavy tails gaps are smaller: the nearer side counts
    below, above = ranked - ranked[low], ranked[high] - ranked
    gap[order] = np.minimum(
        np.where(place > low, below / np.maximum(place - low, 1), np.inf),
        np.where(place < high, above / np.maximum(high - place, 1), np.inf),
    )
    apart = np.maximum(np.abs(column[here] - column[there]), np.minimum(half_step[here], half_step[there]))
    return apart < CLOSE * np.minimum(gap[here], gap[there])


def _measurements(side: Array) -> bool:
    """Whether a column holds many numbers with more digits than anybody writes for a level."""
    return any(
        len(levels := np.unique(column)) >= FEWEST_GROUPS
        and bool((np.round(levels, 6) != levels).mean() > 0.9)
        for column in side.T
    )


def _ties(side: Array) -> tuple[float, int]:
    """How many pairs of rows are equal, and how many rows are distinct."""
    counts = np.unique(side, axis=0, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / 2), len(counts)


def _sorted(side: Array) -> list[int]:
    step = np.diff(side, axis=0)
    return [int(k) for k in np.flatnonzero((step >= 0).all(axis=0) | (step <= 0).all(axis=0))]


def _order(x: Array, y: Array) -> str:
    """Only if both sides follow what was so many rows before can order make x and y look dependent. Rows whose size follows their neighbours'
    (calm times and wild ones) need not be correlated with them, so distances from the middle are looked at too."""
    lags = min(MOST_LAGS, len(x) // 4)
    looked = [_and_distances(side) for side in (x, y)]
    surely = float(norm.isf(FALSE_ALARM / sum(side.shape[1] for side in looked) / lags / 2))
    largest = [np.abs(autocorrelation(side, lags, surely)).max(axis=1) for side in looked]
    both = np.minimum(*largest)
    lag = int(both.argmax())
    if both[lag] <= LEAST_CORRELATION:
        return ""
    return (
        f"rows follow {'their neighbours' if lag == 0 else f'those {lag + 1} before'} (lag-{lag + 1} rank correlation "
        f"{largest[0][lag]:.2f} in x and {largest[1][lag]:.2f} in y), as in a time series or repeated measurements"
    )


def _and_distances(side: Array) -> Array:
    """The columns, and of those that have any the distances from their medians."""
    apart = np.abs(side - np.median(side, axis=0))
    return np.hstack([side, apart[:, np.ptp(apart, axis=0) > 0]])


def autocorrelation(side: Array, lags: int = 1, surely: float = 0.0) -> Float[np.ndarray, "lag column"]:
    """Rank correlation of each column with itself so many rows later, from one on; zero where it is not so many of its own standard
    errors from zero, which are large where a few rows make it."""
    ranks = rankdata(side, axis=0)
    ranks -= ranks.mean(axis=0)
    found = np.zeros((lags, side.shape[1]))
    for lag in range(1, lags + 1):
        products = ranks[lag:] * ranks[:-lag]
        total, error = products.sum(axis=0), np.sqrt((products**2).sum(axis=0))
        found[lag - 1] = np.where(np.abs(total) >= surely * error, total, 0.0)
    return found / (ranks**2).sum(axis=0)


def checked_groups(groups: Any, samples: int) -> Int[np.ndarray, "sample"]:
    """Which rows belong together, as whole numbers from 0 in random-access order; None: each row by itself."""
    if groups is None:
        return np.arange(samples)
    labels = np.asarray(groups)
    if labels.shape != (samples,):
        raise UserError(f"groups has shape {labels.shape}; it must be ({samples},): one label per row")
    distinct, number = np.unique(labels, return_inverse=True)
    if len(distinct) < FEWEST_GROUPS:
        raise UserError(
            f"groups names {len(distinct)} groups; at least {FEWEST_GROUPS} are needed, since rows of one group count as one"
        )
    return number
