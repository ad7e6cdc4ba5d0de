"""Mutual information and run features with the conventions of scikit-learn.

SelectKBest(mutual_info_regression, k=10).fit(X, y)
make_pipeline(RunFeatures("runs/photos"), LogisticRegression()).fit(images, labels)
"""

from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_random_state, check_X_y

from nearfar.errors import UserError
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.samples import Kinds, discrete_columns


def mutual_info_regression(
    X: Any, y: Any, *, discrete_features: Any = "auto", random_state: Any = 0
) -> Float[np.ndarray, "feature"]:
    """Nats of each column of X about a numeric target y, as `sklearn.feature_selection` has it.

    `discrete_features`: "auto", True, False, a mask, or numbers of columns. "auto" takes columns with few
    distinct values as categories. `random_state`: a seed, a generator, or None for another seed each time.
    """
    return _information(X, y, discrete_features, random_state, discrete_target=False)


def mutual_info_classif(
    X: Any, y: Any, *, discrete_features: Any = "auto", random_state: Any = 0
) -> Float[np.ndarray, "feature"]:
    """Nats of each column of X about classes y; options as in `mutual_info_regression`."""
    return _information(X, y, discrete_features, random_state, discrete_target=True)


def _information(
    X: Any, y: Any, discrete_features: Any, random_state: Any, discrete_target: bool
) -> Float[np.ndarray, "feature"]:
    X, y = check_X_y(X, y, y_numeric=not discrete_target)
    if discrete_target:
        y = np.unique(y, return_inverse=True)[1]
    columns = np.arange(X.shape[1])
    if isinstance(discrete_features, str) and discrete_features == "auto":
        kinds = discrete_columns(X, "auto")
    elif isinstance(discrete_features, bool):
        kinds = np.full(len(columns), discrete_features)
    else:
        kinds = np.isin(columns, columns[_positions(discrete_features, len(columns))])
    target = np.array([discrete_target])
    is_seed = isinstance(random_state, Integral)
    seed = random_state if is_seed else int(check_random_state(random_state).randint(2**31))
    return np.array(
        [_column_information(X[:, column], y, (kinds[[column]], target), seed) for column in columns]
    )


def _positions(
    discrete_features: Any, columns: int
) -> Int[np.ndarray, "column"] | Bool[np.ndarray, "column"]:
    """A mask or column numbers, checked."""
    positions = np.asarray(discrete_features) if np.size(discrete_features) else np.empty(0, int)
    is_mask = positions.dtype.kind == "b" and positions.shape == (columns,)
    if not is_mask and not (positions.dtype.kind in "iu" and np.isin(positions, np.arange(columns)).all()):
        raise UserError(
            f"discrete_features was {discrete_features!r}; expected auto, True, False, a mask of {columns} "
            f"columns, or column numbers below {columns}"
        )
    return positions


def _column_information(column: np.ndarray, y: np.ndarray, kinds: Kinds, seed: int) -> float:
    if (column == column[0]).all() or (y == y[0]).all():
        return 0.0
    return estimate_mi(column, y, discrete=kinds, folds=3, baselines=False, seed=seed).nats


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
