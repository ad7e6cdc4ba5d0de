"""Categories as numbers, by what their levels say about the other side; then any ratio of numbers.

A level's score is its mean of the leading function of the other side (reciprocal averaging, Hill 1973), drawn towards
the mean of all levels. Scores of training rows come from the other half of the rows, so that no row votes for its own.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.blocks import column_functions
from nearfar.estimate.ratios.sides import Fit, Ratio, SideRows, normal_ranks

MAX_COLUMNS = 12  # of both sides
PRIOR_ROWS = 3.0  # weight of the mean of all levels


@dataclass(frozen=True)
class ScoreMap:
    """The score of every level of every categorical column; the last entry, 0, is for unseen levels."""

    scores: tuple[Float[np.ndarray, "level"], ...]
    sorted: Float[np.ndarray, "row category"]

    @staticmethod
    def fit(side: SideRows, other: SideRows, seed: int) -> tuple["ScoreMap", SideRows]:
        """The map, and the training rows with scores that were learned from the other half."""
        functions = column_functions(other).values
        first = np.random.default_rng(seed).permutation(len(side)) % 2 == 0
        scores, crossed = [], np.empty(side.categories.shape)
        for k, (code, levels) in enumerate(zip(side.categories.T, side.category_levels, strict=True)):
            total, count = _level_sums(code, levels, functions)
            leading = np.linalg.svd(total / np.sqrt(count + PRIOR_ROWS)[:, None], full_matrices=False)[2][0]
            target = functions @ leading
            scores.append(_level_scores(code, levels, target))
            for half in (first, ~first):
                crossed[half, k] = _level_scores(code[~half], levels, target[~half])[code[half]]
        numbers = np.column_stack(
            [score[code] for score, code in zip(scores, side.categories.T, strict=True)]
        )
        fitted = ScoreMap(tuple(scores), np.sort(numbers, axis=0))
        return fitted, fitted._with_numbers(side, crossed)

    def __call__(self, side: SideRows) -> SideRows:
        numbers = [score[code] for score, code in zip(self.scores, side.categories.T, strict=True)]
        return self._with_numbers(side, np.column_stack(numbers))

    def _with_numbers(self, side: SideRows, scores: np.ndarray) -> SideRows:
        plain = side.numbers - side.indicators
        return SideRows.of_numbers(
            np.hstack([side.normal[:, :plain], normal_ranks(scores, self.sorted)]),
            np.hstack([side.scaled[:, :plain], scores]),
        )


def _level_sums(code: np.ndarray, levels: int, functions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    member = (np.arange(levels)[:, None] == code).astype(float)
    return member @ functions, member.sum(axis=1)


def _level_scores(code: np.ndarray, levels: int, target: np.ndarray) -> Float[np.ndarray, "level"]:
    total, count = _level_sums(code, levels, target[:, None])
    return np.append(total[:, 0] / (count + PRIOR_ROWS), 0.0)


@dataclass(frozen=True)
class ScoredRatio:
    """A ratio of numbers, with categories as scores."""

    x: ScoreMap | None  # None: no category
    y: ScoreMap | None
    between: Ratio

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, inner: Fit) -> "ScoredRatio | None":
        width = x.column_count + y.column_count
        if (not x.category_levels and not y.category_levels) or not 3 <= width <= MAX_COLUMNS:
            return None
        (x_map, new_x), (y_map, new_y) = x.fit_cached(y, ("scores", seed), lambda: _fit_scores(x, y, seed))
        between = inner(new_x, new_y, seed)
        return None if between is None else ScoredRatio(x_map, y_map, between)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.pairs(_scored(self.x, x), _scored(self.y, y))

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.cross(_scored(self.x, x), _scored(self.y, y))


def _fit_scores(
    x: SideRows, y: SideRows, seed: int
) -> tuple[tuple[ScoreMap | None, SideRows], tuple[ScoreMap | None, SideRows]]:
    of_x = ScoreMap.fit(x, y, seed) if x.category_levels else (None, x)
    of_y = ScoreMap.fit(y, x, seed) if y.category_levels else (None, y)
    return of_x, of_y


def _scored(scores: ScoreMap | None, side: SideRows) -> SideRows:
    return side if scores is None else scores(side)
