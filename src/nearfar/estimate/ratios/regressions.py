"""Regressions m(x) of a number on one side: splines, additive models, means of levels."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import eigh

from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.settings import (
    ADDITIVE_KNOTS,
    KNOTS,
    MAX_ADDITIVE_COLUMNS,
    MAX_SPLINE_ROWS,
    PENALTY_EXPONENTS,
    TINY,
)

Regression = Callable[[SideRows], Float[np.ndarray, "row"]]
PENALTIES = 10.0 ** np.arange(*PENALTY_EXPONENTS)


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
    scale = np.trace(gram) / len(gram) + TINY
    # with one decomposition every weight is a division: gram + l penalty = V^-T (1 + l d) V^-1
    d, v = eigh(penalty, gram / scale + 1e-6 * np.eye(len(gram)))
    rotated, total = v.T @ image / scale, float(target @ target)
    best, best_score = np.zeros(len(d)), np.inf
    for weight in PENALTIES:
        coefficient = v @ (rotated / (1 + weight * d))
        error = total - 2 * coefficient @ image + coefficient @ gram @ coefficient
        parameters = (1 / (1 + weight * d)).sum()
        score = max(error, 0.0) / max(1e-9, 1 - parameters / len(target)) ** 2
        if score < best_score:
            best, best_score = coefficient, score
    return best


class SplineCurve:
    """A penalised spline of one number."""

    def __init__(self, side: SideRows, target: np.ndarray, scaled: bool) -> None:
        self.scaled = scaled
        z = side.values(scaled)[:MAX_SPLINE_ROWS, 0]
        self.spline = SplineBasis(z, KNOTS)
        target = target[:MAX_SPLINE_ROWS]
        self.offset = float(target.mean())
        self.coefficient = _fit_penalised(self.spline(z), target - self.offset, self.spline.penalty)

    def __call__(self, side: SideRows) -> np.ndarray:
        return self.offset + self.spline(side.values(self.scaled)[:, 0]) @ self.coefficient


class AdditiveModel:
    """A sum of a penalised spline of every numeric column and an offset for every level of the category."""

    def __init__(self, side: SideRows, target: np.ndarray, scaled: bool) -> None:
        self.scaled = scaled
        side, target = side[np.arange(min(len(side), MAX_SPLINE_ROWS))], target[:MAX_SPLINE_ROWS]
        self.columns = _informative_columns(side.values(scaled), target)
        self.splines = [SplineBasis(z, ADDITIVE_KNOTS) for z in side.values(scaled)[:, self.columns].T]
        basis = self._basis(side)
        penalty = np.zeros((basis.shape[1],) * 2)
        start = 0
        for spline in self.splines:
            k = len(spline.penalty)
            # a little ridge, so that uninformative columns cost nothing
            penalty[start : start + k, start : start + k] = spline.penalty + 1e-3 * np.eye(k)
            start += k
        penalty[start:, start:] = 1e-2 * np.eye(basis.shape[1] - start)
        self.offset = float(target.mean())
        self.coefficient = _fit_penalised(basis, target - self.offset, penalty)

    def _basis(self, side: SideRows) -> np.ndarray:
        columns = side.values(self.scaled)[:, self.columns]
        parts = [spline(z) for spline, z in zip(self.splines, columns.T, strict=True)]
        if side.code is not None:
            parts.append((side.code[:, None] == np.arange(side.levels)).astype(float))
        return np.hstack(parts)

    def __call__(self, side: SideRows) -> np.ndarray:
        return self.offset + self._basis(side) @ self.coefficient


def _informative_columns(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of many columns, those between whose deciles the mean of the target varies most."""
    if columns.shape[1] <= MAX_ADDITIVE_COLUMNS:
        return np.arange(columns.shape[1])
    explained = []
    for column in columns.T:
        cell = np.searchsorted(np.quantile(column, np.arange(1, 10) / 10), column)
        count = np.bincount(cell, minlength=10)
        explained.append((np.bincount(cell, target - target.mean(), 10) ** 2 / np.maximum(count, 1)).sum())
    return np.sort(np.argsort(explained)[-MAX_ADDITIVE_COLUMNS:])


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
    if side.numbers == 1 and side.code is None:
        return SplineCurve(side, target, scaled)
    return AdditiveModel(side, target, scaled)
