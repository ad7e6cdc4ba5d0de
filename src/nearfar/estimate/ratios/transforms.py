"""Ratios between transformed sides: leading directions, independent components, categories as scores.

A function of x has at most the information of x, and a one-to-one function has all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nearfar.estimate import settings
from nearfar.estimate.ratios.blocks import column_functions
from nearfar.estimate.ratios.gaussian import GaussianRatio
from nearfar.estimate.ratios.sides import Fit, Ratio, SideRows, normal_ranks
from nearfar.estimate.samples import Array, CanonicalMap, whitening

Transform = Callable[[SideRows], SideRows]


@dataclass(frozen=True)
class TransformedRatio:
    """A ratio between transformed sides."""

    x: Transform
    y: Transform
    between: Ratio

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.pairs(self.x(x), self.y(y))

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.cross(self.x(x), self.y(y))


def unchanged(side: SideRows) -> SideRows:
    return side


@dataclass(frozen=True)
class LinearMap:
    """(columns - mean) @ matrix, as numbers and as normal ranks. `scaled`: of scaled columns, not of ranks."""

    mean: Float[np.ndarray, "column"]
    matrix: Float[np.ndarray, "column direction"]
    scaled: bool
    sorted: Array  # results for the training rows, each column in rising order

    @staticmethod
    def fit(side: SideRows, mean: np.ndarray, matrix: np.ndarray, scaled: bool = False) -> "LinearMap":
        return LinearMap(mean, matrix, scaled, np.sort((side.columns(scaled) - mean) @ matrix, axis=0))

    def __call__(self, side: SideRows) -> SideRows:
        projected = (side.columns(self.scaled) - self.mean) @ self.matrix
        return SideRows.of_numbers(normal_ranks(projected, self.sorted), projected)


# ------------------------------------------------------------------------------- leading directions


def fit_leading(x: SideRows, y: SideRows, seed: int, inner: Fit) -> TransformedRatio | None:
    """`inner` between the leading canonical directions of sides of any width, also wider than there are rows.

    Directions are canonical ones with a ridge of `RIDGE` mean variances. They look better on the rows they were
    fitted to, so half of the rows gives the directions; the other half says how many are real and gives the ratio.
    """
    is_wide = [side.numbers >= settings.MIN_RIDGE_COLUMNS for side in (x, y)]
    a, b = (
        side.columns() if project else side.columns(max_levels=len(side) - 1)
        for side, project in zip((x, y), is_wide, strict=True)
    )
    if not any(is_wide) or not a.shape[1] or not b.shape[1]:
        return None
    order = np.random.default_rng(seed).permutation(len(x))
    for_directions, for_ratio = order[: len(x) // 2], order[len(x) // 2 :]
    canonical = x.fit_cached(
        y,
        ("leading", seed),
        lambda: CanonicalMap.fit_ridge(a[for_directions], b[for_directions], settings.RIDGE),
    )
    chosen = _confirmed_directions(*canonical.transform(a[for_ratio], b[for_ratio]))
    sides = x[for_ratio], y[for_ratio]
    x_map = LinearMap.fit(sides[0], canonical.x_mean, canonical.x_map[:, chosen]) if is_wide[0] else unchanged
    y_map = LinearMap.fit(sides[1], canonical.y_mean, canonical.y_map[:, chosen]) if is_wide[1] else unchanged
    between = inner(x_map(sides[0]), y_map(sides[1]), seed)
    return None if between is None else TransformedRatio(x_map, y_map, between)


def _confirmed_directions(x: Array, y: Array) -> Int[np.ndarray, "direction"]:
    """Leading pairs of directions that correlate beyond chance on rows they were not fitted to.

    At least one.
    """
    count = min(
        x.shape[1], y.shape[1], settings.MAX_RIDGE_DIRECTIONS, max(1, len(x) // settings.ROWS_PER_DIRECTION)
    )
    x, y = x[:, :count] - x[:, :count].mean(axis=0), y[:, :count] - y[:, :count].mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0)) + 1e-12
    correlation = (x * y).sum(axis=0) / scale
    confirmed = np.flatnonzero(correlation > settings.MIN_DIRECTION_ERRORS / np.sqrt(len(x)))
    return confirmed if len(confirmed) else np.array([0])


# --------------------------------------------------------------------------- independent components


def fit_unmixed(x: SideRows, y: SideRows, seed: int) -> TransformedRatio | None:
    """A Gaussian of independent components: for columns that are mixtures of bent Gaussian sources."""
    widest = max(x.numbers, y.numbers)
    if x.code is not None or y.code is not None or not 2 <= widest <= settings.MAX_COMPONENT_COLUMNS:
        return None
    if (
        len(x) < settings.ROWS_PER_INDEPENDENT_COMPONENT * widest
        or max(np.abs(side.scaled).max() for side in (x, y)) > settings.FAR
    ):
        return None
    x_map, y_map = component_map(x, seed), component_map(y, seed)
    gaussian = GaussianRatio.fit(x_map(x), y_map(y), seed)
    return None if gaussian is None else TransformedRatio(x_map, y_map, gaussian)


def component_map(side: SideRows, seed: int) -> LinearMap:
    """Rotates scaled columns to independent components."""
    z = side.columns(scaled=True)
    mean = z.mean(axis=0)
    white = whitening(z - mean)
    rotation = white @ _fast_ica((z - mean)[: settings.MAX_ICA_ROWS] @ white, seed)
    return LinearMap.fit(side, mean, rotation, scaled=True)


def _fast_ica(white: Array, seed: int) -> Float[np.ndarray, "column component"]:
    """The rotation of FastICA with tanh, all components at once (Hyvärinen 1999)."""
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(white.shape[1],) * 2))[0]
    for _ in range(settings.ICA_STEPS):
        bent = np.tanh(white @ rotation)
        new = white.T @ bent / len(white) - rotation * (1 - bent**2).mean(axis=0)
        u, _, vt = np.linalg.svd(new)
        previous, rotation = rotation, u @ vt
        if np.abs(np.abs((previous * rotation).sum(axis=0)) - 1).max() < settings.ICA_TOLERANCE:
            break
    return rotation


# ------------------------------------------------------------------------------ categories as scores


def fit_scored(x: SideRows, y: SideRows, seed: int, inner: Fit) -> TransformedRatio | None:
    """`inner` between numbers, with categories as scores."""
    width = x.column_count + y.column_count
    if (not x.category_levels and not y.category_levels) or not 3 <= width <= settings.MAX_SCORED_COLUMNS:
        return None
    (x_map, new_x), (y_map, new_y) = x.fit_cached(
        y, ("scores", seed), lambda: (_fit_scores(x, y, seed), _fit_scores(y, x, seed))
    )
    between = inner(new_x, new_y, seed)
    return None if between is None else TransformedRatio(x_map, y_map, between)


def _fit_scores(side: SideRows, other: SideRows, seed: int) -> tuple[Transform, SideRows]:
    return ScoreMap.fit(side, other, seed) if side.category_levels else (unchanged, side)


@dataclass(frozen=True)
class ScoreMap:
    """The score of every level of every categorical column; the last entry, 0, is for unseen levels.

    A level's score is its mean of the leading function of the other side (reciprocal averaging, Hill 1973), drawn
    towards the mean of all levels. Scores of training rows come from the other half of the rows, so that no row
    votes for its own.
    """

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
            leading = np.linalg.svd(
                total / np.sqrt(count + settings.PRIOR_ROWS)[:, None], full_matrices=False
            )[2][0]
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
    return np.append(total[:, 0] / (count + settings.PRIOR_ROWS), 0.0)
