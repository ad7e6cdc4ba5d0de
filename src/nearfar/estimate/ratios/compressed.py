"""A ratio of a few directions: of many columns, those that predict the other side best, fitted on training rows.

A function of x tells no more than x, so whatever is found between directions is there between the columns. Directions fitted to rows promise more on
those rows than on others: so one half of them gives the directions, the other is what the ratio between them is fitted to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nearfar.estimate.ratios.halves import Half, Ratio, ranks_to_normal
from nearfar.estimate.samples import Array, Canonical

WIDE = 7  # columns from which a side is compressed: with fewer, ratios read them all
MOST_DIRECTIONS = 2  # of either side
ROWS_PER_COLUMN = 3
MIN_SHRUNK_COLUMNS = 5  # with fewer, a Gaussian of all columns exists for the smallest sample
MOST_SHRUNK_DIRECTIONS = 20  # as many as a Gaussian of every level takes
# with a ridge: rows for each direction, and the standard errors by which a correlation on the second half must exceed zero
ROWS_PER_DIRECTION, MIN_STANDARD_ERRORS = 5, 3.0

Inner = Callable[[Half, Half, int], Ratio | None]


@dataclass(frozen=True)
class Directions:
    """The map of a wide side to its leading directions, as ranks made normal and as they are; a narrow side stays."""

    mean: Float[np.ndarray, "column"]
    turn: Float[np.ndarray, "column direction"]
    sorted: Array

    @staticmethod
    def fit(half: Half, mean: np.ndarray, turn: np.ndarray) -> "Directions":
        moved = (half.columns() - mean) @ turn
        return Directions(mean, turn, np.sort(moved, axis=0))

    def __call__(self, half: Half) -> Half:
        moved = (half.columns() - self.mean) @ self.turn
        normal = np.column_stack(
            [ranks_to_normal(c, known) for c, known in zip(moved.T, self.sorted.T, strict=True)]
        )
        return Half(normal, moved, None, 0)


@dataclass(frozen=True)
class Compressed:
    x: Directions | None  # None: narrow, and read as it is
    y: Directions | None
    between: Ratio

    @staticmethod
    def fit(x: Half, y: Half, seed: int, inner: Inner) -> "Compressed | None":
        wide = [half.code is None and half.numbers >= WIDE for half in (x, y)]
        a, b = x.columns(), y.columns()
        if not any(wide) or not a.shape[1] or not b.shape[1]:
            return None
        order = np.random.default_rng(seed).permutation(len(x))
        learned, others = order[: len(x) // 2], order[len(x) // 2 :]
        if max(a.shape[1], b.shape[1]) > len(learned) // ROWS_PER_COLUMN:
            return None
        canonical = Canonical.fit(a[learned], b[learned])
        kept = min(int((canonical.correlation > 0).sum()), MOST_DIRECTIONS)
        if kept == 0:
            return None  # no direction stands out from chance
        return _between(canonical, np.arange(kept), (x[others], y[others]), wide, seed, inner)

    @staticmethod
    def shrunk(x: Half, y: Half, seed: int, ridge: float, inner: Inner) -> "Compressed | None":
        """The same for sides of any width, also wider than there are rows: directions by canonical correlations with a ridge of so
        many mean variances, as many of them as the second half of the rows confirms."""
        wide = [half.numbers >= MIN_SHRUNK_COLUMNS for half in (x, y)]
        a, b = (
            half.columns() if is_wide else half.columns(most_levels=len(half) - 1)
            for half, is_wide in zip((x, y), wide, strict=True)
        )
        if not any(wide) or not a.shape[1] or not b.shape[1]:
            return None
        order = np.random.default_rng(seed).permutation(len(x))
        learned, others = order[: len(x) // 2], order[len(x) // 2 :]
        key = ("shrunk", seed, ridge)
        canonical = x.about(y, key, lambda: Canonical.shrunk(a[learned], b[learned], ridge))
        kept = _confirmed(*canonical.moved(a[others], b[others]))
        return _between(canonical, kept, (x[others], y[others]), wide, seed, inner)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.between.pairs(_moved(self.x, x), _moved(self.y, y))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.between.cross(_moved(self.x, x), _moved(self.y, y))


def _between(
    canonical: Canonical,
    kept: Int[np.ndarray, "direction"],
    halves: tuple[Half, Half],
    wide: list[bool],
    seed: int,
    inner: Inner,
) -> Compressed | None:
    """The inner ratio between these directions of the wide sides."""
    maps = [
        Directions.fit(half, mean, turn[:, kept]) if is_wide else None
        for half, is_wide, mean, turn in (
            (halves[0], wide[0], canonical.x_mean, canonical.x_map),
            (halves[1], wide[1], canonical.y_mean, canonical.y_map),
        )
    ]
    between = inner(_moved(maps[0], halves[0]), _moved(maps[1], halves[1]), seed)
    return None if between is None else Compressed(maps[0], maps[1], between)


def _confirmed(x: Array, y: Array) -> Int[np.ndarray, "direction"]:
    """The leading pairs of directions whose correlation on these rows, which they were not fitted to, is no chance; at least one."""
    count = min(x.shape[1], y.shape[1], MOST_SHRUNK_DIRECTIONS, max(1, len(x) // ROWS_PER_DIRECTION))
    x, y = x[:, :count] - x[:, :count].mean(axis=0), y[:, :count] - y[:, :count].mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0)) + 1e-12
    correlation = (x * y).sum(axis=0) / scale
    above = np.flatnonzero(correlation > MIN_STANDARD_ERRORS / np.sqrt(len(x)))
    return above if len(above) else np.array([0])


def _moved(directions: Directions | None, half: Half) -> Half:
    return half if directions is None else directions(half)
