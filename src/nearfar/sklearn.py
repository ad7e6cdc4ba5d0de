"""Mutual information and run features with the conventions of scikit-learn.

SelectKBest(mutual_info_regression, k=10).fit(X, y)
make_pipeline(RunFeatures("runs/photos"), LogisticRegression()).fit(images, labels)
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_X_y

from nearfar.estimate.mi import estimate_mi


def mutual_info_regression(
    X: Any, y: Any, *, discrete_features: Any = "auto", random_state: int = 0
) -> Float[np.ndarray, "feature"]:
    """Nats of each column of X about a numeric target y, as `sklearn.feature_selection` has it.

    `discrete_features`: "auto", True, False, a mask, or numbers of columns. "auto" takes columns with few
    distinct values as categories.
    """
    return _information(X, y, discrete_features, random_state, discrete_target=False)


def mutual_info_classif(
    X: Any, y: Any, *, discrete_features: Any = "auto", random_state: int = 0
) -> Float[np.ndarray, "feature"]:
    """Nats of each column of X about classes y; options as in `mutual_info_regression`."""
    return _information(X, y, discrete_features, random_state, discrete_target=True)


def _information(
    X: Any, y: Any, discrete_features: Any, random_state: int, discrete_target: bool
) -> Float[np.ndarray, "feature"]:
    X, y = check_X_y(X, y, y_numeric=not discrete_target)
    if discrete_target:
        y = np.unique(y, return_inverse=True)[1]
    columns = np.arange(X.shape[1])
    if isinstance(discrete_features, str):
        kinds = [None] * len(columns)
    else:
        mask = np.zeros(len(columns), dtype=bool)
        mask[
            slice(None)
            if discrete_features is True
            else []
            if discrete_features is False
            else discrete_features
        ] = True
        kinds = mask.tolist()
    target = np.array([discrete_target])
    return np.array(
        [_column_information(X[:, column], y, kinds[column], target, random_state) for column in columns]
    )


def _column_information(
    column: np.ndarray, y: np.ndarray, is_category: bool | None, target: np.ndarray, seed: int
) -> float:
    if (column == column[0]).all() or (y == y[0]).all():
        return 0.0
    if is_category is None:
        from nearfar.estimate.samples import discrete_columns

        kind = discrete_columns(column[:, None], "auto")
    else:
        kind = np.array([is_category])
    return estimate_mi(column, y, discrete=(kind, target), folds=3, baselines=False, seed=seed).nats


class RunFeatures(TransformerMixin, BaseEstimator):
    """Features of a run's frozen encoder as a transformer: what it was trained on, to (n, dim)."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def fit(self, X: Any, y: Any = None) -> "RunFeatures":
        """Learns nothing: the encoder is frozen."""
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "instance dim"]:
        from nearfar.run.trained import Run

        run = self.run if isinstance(self.run, Run) else Run.open(self.run)
        return check_array(run.embed(X).numpy())

    def __sklearn_is_fitted__(self) -> bool:
        return True
