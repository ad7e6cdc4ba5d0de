"""The one stratified split: which rows of a labelled set are held out.

    rows in an order that is a function of the seed → of every class the first few, as many as its quota

What differs is only how shares become whole numbers. `apportioned` holds out round(share · n) in all;
`at_least_one` puts at least one row of every class on either side.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Int, Int64

from nearfar.core.randomness import order

# added to seeds of draws: what is labelled has nothing to do with what a protocol holds out
LABEL_DRAW = 2**62

Quotas = Callable[[Int64[np.ndarray, "class"], float], Int64[np.ndarray, "class"]]


def held_out(
    labels: Int[np.ndarray, "row"], share: float, seed: int, quotas: Quotas
) -> Bool[np.ndarray, "row"]:
    """Which rows are held out: a function of its arguments alone."""
    codes = np.unique(labels, return_inverse=True)[1]
    shuffled = order(seed, 0, len(labels))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    counts = np.bincount(codes).astype(np.int64)
    rank = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    mask = np.zeros(len(labels), dtype=bool)
    mask[by_class[rank < np.repeat(quotas(counts, share), counts)]] = True
    return mask


def apportioned(counts: Int64[np.ndarray, "class"], share: float) -> Int64[np.ndarray, "class"]:
    """share × class size, rounded by largest remainder to round(share × n); no class is held out whole."""
    exact = share * counts.astype(np.float64)
    quota = np.floor(exact).astype(np.int64)
    spare = round(share * int(counts.sum())) - int(quota.sum())
    for place in np.argsort(quota - exact, kind="stable")[: max(spare, 0)]:
        quota[place] += quota[place] + 1 < counts[place]
    return quota


def draw_rows(labels: Int[np.ndarray, "row"], amount: float, seed: int) -> Int64[np.ndarray, "row"]:
    """A stratified sample of rows in rising order: a share of every class (0 < amount < 1, at least one row
    of each), or that many rows of each class (a whole number; all rows of smaller classes). A function of its
    arguments alone."""

    def quotas(counts: Int64[np.ndarray, "class"], share: float) -> Int64[np.ndarray, "class"]:
        if share < 1:
            return np.maximum(np.rint(share * counts).astype(np.int64), 1)
        return np.minimum(counts, int(share))

    return np.flatnonzero(held_out(labels, amount, LABEL_DRAW + seed, quotas))


def at_least_one(counts: Int64[np.ndarray, "class"], share: float) -> Int64[np.ndarray, "class"]:
    """share × class size, rounded, at least one row on either side; a class of one row is not held out."""
    # in single precision, where 0.3 × 5 is 1.5 and not below it
    quota = np.rint(counts.astype(np.float32) * np.float32(share)).astype(np.int64)
    return np.minimum(np.maximum(quota, 1), counts - 1)
