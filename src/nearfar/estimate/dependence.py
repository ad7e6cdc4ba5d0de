"""Are the rows independent draws? Every claim here rests on it, and three cheap looks can refute it.

    copies      joint rows that occur again although a side hardly repeats itself: bootstrap samples, joined tables
    order       lag-1 autocorrelation on both sides: time series, repeated measurements of one subject in a row
    sorted      a column in rising or falling order hides whatever order the rows had

None can prove independence: `groups` says which rows belong together where the user knows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, rankdata

from nearfar.errors import UserError
from nearfar.estimate.samples import Array

MOST_COPIES = 0.01  # share of rows that may be copies of others,
COPIES_OVER_CHANCE = 30  # unless that is so many times what independent ties would make
DISTINCT = 0.25  # a side with at least this share of distinct rows hardly repeats itself
LEAST_CORRELATION = 0.1  # of neighbouring rows: less than this moves no estimate much
FALSE_ALARM = 1e-5  # chance that independent rows look ordered, over all columns
FEWEST_GROUPS = 20


@dataclass(frozen=True)
class RowsSeen:
    """What the rows look like: `refuted` says in a clause why they are not independent, `doubt` why nobody can tell."""

    refuted: str = ""
    doubt: str = ""


def look_at_rows(x: Array, y: Array) -> RowsSeen:
    """Copies and order of the rows, as far as they speak against independence."""
    copies = _copies(x, y)
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
    measured = all(_measurements(side) for side in (x, y)) and distinct <= 1.1 * min(x_distinct, y_distinct)
    repeats_itself = max(x_distinct, y_distinct) < DISTINCT * len(x) and not measured
    few = copied < max(3, MOST_COPIES * len(x)) or together < COPIES_OVER_CHANCE * by_chance
    if few or repeats_itself:
        return ""
    return f"{copied} of {len(x)} rows are copies of others, in x and in y"


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
    """Only if both sides follow their neighbours can order make x and y look dependent."""
    columns = x.shape[1] + y.shape[1]
    chance = float(norm.isf(FALSE_ALARM / columns / 2)) / np.sqrt(len(x))
    largest = [float(np.abs(neighbours(side)).max()) for side in (x, y)]
    if min(largest) <= max(chance, LEAST_CORRELATION):
        return ""
    return (
        f"rows follow their neighbours (lag-1 rank correlation {largest[0]:.2f} in x and {largest[1]:.2f} in y), "
        "as in a time series or repeated measurements"
    )


def neighbours(side: Array) -> Float[np.ndarray, "column"]:
    """Rank correlation of each column with itself one row later."""
    ranks = rankdata(side, axis=0)
    ranks -= ranks.mean(axis=0)
    return (ranks[1:] * ranks[:-1]).sum(axis=0) / (ranks**2).sum(axis=0)


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
