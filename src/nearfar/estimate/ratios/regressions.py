"""Regressions m(x) of a number on one side: splines, additive models, boosted trees, means of levels."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import eigh

from nearfar.estimate.ratios.sides import SideRows

Regression = Callable[[SideRows], Float[np.ndarray, "row"]]
KNOTS = 32
ADDITIVE_KNOTS, MAX_ADDITIVE_COLUMNS = 14, 12  # knots per column, and columns
MAX_SPLINE_ROWS = 50_000
MAX_TREE_ROWS = 50_000
PENALTIES = 10.0 ** np.arange(-5, 5.1, 0.5)
FLOOR = 1e-12
MANY_CLASSES = 5  # from which trees take half as many rounds of twice the learning rate
MAX_TRIAL_ROWS = 2000
TRIAL_ROUNDS, MIN_TRIAL_GAIN = (
    15,
    0.01,
)  # rounds of a trial, and the share of the squared error it must remove


def boosted_trees(
    task: Literal["regression", "classification"],
    rows: int,
    seed: int,
    rounds: int | None = None,
    classes: int = 2,
    categorical: list[int] | None = None,
) -> Any:
    """Boosted trees of moderate size, for a few thousand rows; not fitted.

    A round grows a tree for every class, so many classes get half as many rounds with twice the learning
    rate.
    """
    from sklearn import ensemble  # takes a second to import

    kind = (
        ensemble.HistGradientBoostingRegressor
        if task == "regression"
        else ensemble.HistGradientBoostingClassifier
    )
    speed = 2 if classes >= MANY_CLASSES else 1
    return kind(
        max_iter=rounds or (60 if rows < 5000 else 100) // speed,
        learning_rate=0.1 * speed,
        max_leaf_nodes=15,
        min_samples_leaf=max(8, min(20, rows // 25)),
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
        categorical_features=categorical,
    )


def tree_features(side: SideRows) -> np.ndarray:
    """Normal ranks and the code of the category; NaN for an unseen level."""
    if side.code is None:
        return side.normal
    return np.column_stack([side.normal, np.where(side.code < 0, np.nan, side.code)])


def categorical_features(side: SideRows) -> list[int] | None:
    """Which of `tree_features` trees treat as a category."""
    return [side.numbers] if side.code is not None and side.levels <= 255 else None


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
    scale = np.trace(gram) / len(gram) + FLOOR
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


class BoostedTrees:
    """Boosted trees of the residual of an additive model."""

    def __init__(
        self, side: SideRows, target: np.ndarray, scaled: bool, seed: int, rounds: int | None = None
    ) -> None:
        rows = np.arange(min(len(side), MAX_TREE_ROWS))
        side, target = side[rows], target[rows]
        self.additive = AdditiveModel(side, target, scaled)
        self.trees = boosted_trees(
            "regression", len(target), seed, rounds, categorical=categorical_features(side)
        )
        self.trees.fit(tree_features(side), target - self.additive(side))

    def __call__(self, side: SideRows) -> np.ndarray:
        return self.additive(side) + self.trees.predict(tree_features(side))


def trees_may_help(side: SideRows, target: np.ndarray, scaled: bool, seed: int) -> bool:
    """Whether a few trees, grown on half of the rows, predict the others better than an additive model."""
    rows = np.random.default_rng(seed).permutation(len(side))[: 2 * MAX_TRIAL_ROWS]
    train, unseen = np.array_split(rows, 2)
    trial = BoostedTrees(side[train], target[train], scaled, seed, TRIAL_ROUNDS)
    unseen_side = side[unseen]
    additive = ((target[unseen] - trial.additive(unseen_side)) ** 2).mean()
    return bool(((target[unseen] - trial(unseen_side)) ** 2).mean() < (1 - MIN_TRIAL_GAIN) * additive)


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


def fit_regression(side: SideRows, target: np.ndarray, scaled: bool, seed: int, boosted: bool) -> Regression:
    """The regression for the columns of this side; `boosted` adds trees."""
    if side.numbers == 0:
        return LevelMeans(side, target)
    if boosted:
        return BoostedTrees(side, target, scaled, seed)
    if side.numbers == 1 and side.code is None:
        return SplineCurve(side, target, scaled)
    return AdditiveModel(side, target, scaled)
