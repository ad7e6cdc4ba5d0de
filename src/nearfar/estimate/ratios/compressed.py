"""A ratio of a few directions: of many columns, those that predict the other side best, fitted on training rows.

A function of x tells no more than x, so whatever is found between directions is there between the columns. Directions fitted to rows promise more on
those rows than on others: so one half of them gives the directions, the other is what the ratio between them is fitted to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.halves import Half, Ratio, ranks_to_normal
from nearfar.estimate.samples import Array, Canonical

WIDE = 7  # columns from which a side is compressed: with fewer, ratios read them all
MOST_DIRECTIONS = 2  # of either side
ROWS_PER_COLUMN = 3


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
    def fit(
        x: Half, y: Half, seed: int, inner: Callable[[Half, Half, int], Ratio | None]
    ) -> "Compressed | None":
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
        maps = [
            Directions.fit(half[others], mean, turn[:, :kept]) if is_wide else None
            for half, is_wide, mean, turn in (
                (x, wide[0], canonical.x_mean, canonical.x_map),
                (y, wide[1], canonical.y_mean, canonical.y_map),
            )
        ]
        between = inner(_moved(maps[0], x[others]), _moved(maps[1], y[others]), seed)
        return None if between is None else Compressed(maps[0], maps[1], between)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.between.pairs(_moved(self.x, x), _moved(self.y, y))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.between.cross(_moved(self.x, x), _moved(self.y, y))


def _moved(directions: Directions | None, half: Half) -> Half:
    return half if directions is None else directions(half)
