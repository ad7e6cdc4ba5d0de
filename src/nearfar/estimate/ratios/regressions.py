"""Regressions m(x) of a number on one side: splines, additive models, means of levels."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import block_diag, eigh

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows

Regression = Callable[[SideRows], Float[np.ndarray, "row"]]
PENALTIES = 10.0 ** np.arange(*settings.PENALTY_EXPONENTS)


class SplineBasis:
    """Cubic B-splines of one column with a penalty on second differences of coefficients (Eilers & Marx
    1996).

    Knots are quantiles. Differences are divided by the distance of coefficients, so that a line has no
    penalty.
    """

    def __init__(self, z: np.ndarray, knots: int) -> None:
        self.low, self.high = float(z.min()), float(z.max())
        inner = np.unique(np.quantile(z, np.linspace(0, 1, knots)[1:-1]))
        inner = inner[(inner > self.low) & (inner < self.high)]
        self.knots = np.r_[[self.low] * 4, inner, [self.high] * 4]
        self.penalty = _curvature_penalty(self.knots) if self.low < self.high else np.zeros((4, 4))

    def __call__(self, z: np.ndarray) -> np.ndarray:
        if self.low == self.high:
            return np.zeros((len(z), len(self.penalty)))
        inside = np.clip(z, self.low, self.high)
        return BSpline.design_matrix(inside, self.knots, 3).toarray()

    def curve(self, z: np.ndarray, coefficient: np.ndarray) -> Float[np.ndarray, "row"]:
        """The sum of the splines with these coefficients; faster than by a design matrix."""
        if self.low == self.high:
            return np.zeros(len(z))
        return BSpline.construct_fast(self.knots, coefficient, 3)(np.clip(z, self.low, self.high))


def _curvature_penalty(knots: np.ndarray) -> Float[np.ndarray, "coefficient coefficient"]:
    """Squared change of slope between neighbouring coefficients, per unit of the column, up to a factor.

    A coefficient lies at the mean of three knots (Greville's abscissa).
    """
    place = (knots[1:-3] + knots[2:-2] + knots[3:-1]) / 3
    gap = np.diff(place)
    slope = np.diff(np.eye(len(place)), axis=0) / gap[:, None]
    distance = (place[2:] - place[:-2]) / 2
    bend = np.diff(slope, axis=0) * (np.median(gap) ** 1.5 / np.sqrt(distance))[:, None]
    return bend.T @ bend


def _fit_penalised(basis: np.ndarray, target: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Coefficients; the weight of the penalty by generalised cross-validation."""
    gram, image = basis.T @ basis, basis.T @ target
    scale = np.trace(gram) / len(gram) + settings.TINY
    # with one decomposition every weight is a division: gram + l penalty = V^-T (1 + l d) V^-1
    d, v = eigh(penalty, gram / scale + 1e-6 * np.eye(len(gram)))
    rotated, total = v.T @ image / scale, float(target @ target)
    shrinkage = 1 / (1 + PENALTIES * d[:, None])
    coefficients = v @ (rotated[:, None] * shrinkage)
    error = total - 2 * image @ coefficients + (coefficients * (gram @ coefficients)).sum(axis=0)
    free = np.maximum(1e-9, 1 - shrinkage.sum(axis=0) / len(target))
    return coefficients[:, (np.maximum(error, 0.0) / free**2).argmin()]


class AdditiveModel:
    """A sum of a penalised spline of every numeric column and an offset for every level of the category."""

    def __init__(self, side: SideRows, target: np.ndarray, scaled: bool) -> None:
        self.scaled = scaled
        side, target = (
            side[np.arange(min(len(side), settings.MAX_SPLINE_ROWS))],
            target[: settings.MAX_SPLINE_ROWS],
        )
        numbers = side.values(scaled)
        self.columns = _informative_columns(numbers, target)
        is_curve = side.features == 1
        knots = settings.KNOTS if is_curve else settings.ADDITIVE_KNOTS
        self.splines = [SplineBasis(z, knots) for z in numbers[:, self.columns].T]
        parts = [spline(z) for spline, z in zip(self.splines, numbers[:, self.columns].T, strict=True)]
        # a little ridge, so that uninformative columns cost nothing
        ridge = 0.0 if is_curve else 1e-3
        penalties = [spline.penalty + ridge * np.eye(len(spline.penalty)) for spline in self.splines]
        if side.code is not None:
            parts.append((side.code[:, None] == np.arange(side.levels)).astype(float))
            penalties.append(1e-2 * np.eye(side.levels))
        self.offset = float(target.mean())
        coefficient = _fit_penalised(np.hstack(parts), target - self.offset, block_diag(*penalties))
        self.coefficients = np.split(coefficient, np.cumsum([len(penalty) for penalty in penalties])[:-1])

    def __call__(self, side: SideRows) -> np.ndarray:
        numbers = side.values(self.scaled)[:, self.columns]
        curves = zip(self.splines, numbers.T, self.coefficients, strict=False)
        parts = [spline.curve(z, coefficient) for spline, z, coefficient in curves]
        if side.code is not None:
            parts.append(
                np.append(self.coefficients[-1], 0.0)[side.code]
            )  # the last entry is for unseen levels
        return self.offset + np.sum(parts, axis=0)


def _informative_columns(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of many columns, those between whose deciles the mean of the target varies most."""
    if columns.shape[1] <= settings.MAX_ADDITIVE_COLUMNS:
        return np.arange(columns.shape[1])
    explained = []
    for column in columns.T:
        cell = np.searchsorted(np.quantile(column, np.arange(1, 10) / 10), column)
        count = np.bincount(cell, minlength=10)
        explained.append((np.bincount(cell, target - target.mean(), 10) ** 2 / np.maximum(count, 1)).sum())
    return np.sort(np.argsort(explained)[-settings.MAX_ADDITIVE_COLUMNS :])


class LevelMeans:
    """Means of levels by empirical Bayes: they vary by their variance less the sampling error."""

    def __init__(self, side: SideRows, target: np.ndarray) -> None:
        code = side.level_codes
        count = np.maximum(np.bincount(code, minlength=side.levels), 1e-3)
        mean = np.bincount(code, target, side.levels) / count
        self.offset = float(target.mean())
        error = (target - mean[code]).var() * len(target) / max(1, len(target) - side.levels) / count
        between = max(float((count * ((mean - self.offset) ** 2 - error)).sum() / count.sum()), 1e-12)
        self.mean = np.r_[self.offset + (mean - self.offset) * between / (between + error), self.offset]

    def __call__(self, side: SideRows) -> np.ndarray:
        return self.mean[side.level_codes]


def fit_regression(side: SideRows, target: np.ndarray, scaled: bool) -> Regression:
    """The regression for the columns of this side."""
    if side.numbers == 0:
        return LevelMeans(side, target)
    return AdditiveModel(side, target, scaled)
