"""Two samples of one length, checked, and the maps that bring their columns to a common scale.

Mutual information does not change under one-to-one maps of either side. The maps here are chosen so that a
small
critic can learn from few samples: ranks to standard normals, levels of a discrete column to indicators, then
both sides rotated into canonical pairs. Every map is fitted on the training rows of a fold and applied to the
others.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import ndtri

from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.columns import ColumnTable, as_columns

Scaling = Literal["rank", "standard", "none"]
DISCRETE_WORDS = ("auto", "all", "none", "x", "y")
Kinds = tuple[Bool[np.ndarray, "x_column"], Bool[np.ndarray, "y_column"]]  # which columns are categories
Discrete = Literal["auto", "all", "none", "x", "y"] | Kinds
Array = Float[np.ndarray, "sample column"]


@dataclass(frozen=True)
class SamplePair:
    """Two samples of one length without gaps, and which columns are categories."""

    x: Array
    y: Array
    kinds: Kinds
    groups: Any
    rows: np.ndarray  # positions in the original samples
    names: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...]  # what was changed, for the user


def check_pair(x: Any, y: Any, discrete: Discrete = "auto", groups: Any = None) -> SamplePair:
    """Reads both samples. Rows with a gap on either side are dropped, with a note."""
    first, second = as_columns(x, "x"), as_columns(y, "y")
    if len(first.values) != len(second.values):
        raise UserError(
            f"x has {len(first.values)} samples and y {len(second.values)}; row i of one must belong to row "
            "i of the other"
        )
    complete = first.complete & second.complete
    rows = np.flatnonzero(complete)
    if groups is not None and len(rows) < len(complete) and np.shape(groups) == (len(complete),):
        groups = np.asarray(groups)[rows]
    sides = [_check_side(side, rows, name) for side, name in ((first, "x"), (second, "y"))]
    kinds = column_kinds(sides[0], sides[1], discrete, first.words, second.words)
    return SamplePair(
        sides[0], sides[1], kinds, groups, rows, (first.names, second.names), gap_notes(complete)
    )


def gap_notes(complete: Bool[np.ndarray, "sample"]) -> tuple[str, ...]:
    """The note about rows with gaps, if there are any."""
    gaps = int((~complete).sum())
    return (f"{gaps} of {len(complete)} rows have gaps and were left out",) if gaps else ()


def _check_side(side: ColumnTable, rows: np.ndarray, name: str) -> Array:
    array = side.values[rows]
    if len(array) < settings.MIN_SAMPLES:
        raise UserError(f"{name} has {len(array)} samples; at least {settings.MIN_SAMPLES} are needed")
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise UserError(
            f"{name} holds {array[row, column]} at row {row}, column {column}; every value must be finite"
        )
    check_varies(side, rows, name)
    # columns of extreme size are divided by a power of two, which is exact, so that their squares are finite
    exponent = np.frexp(np.abs(array).max(axis=0))[1]
    return np.ldexp(array, np.where(np.abs(exponent) > 300, -exponent, 0))


def check_varies(side: ColumnTable, rows: np.ndarray, name: str) -> None:
    """Refuses a constant column."""
    array = side.values[rows]
    for k in np.flatnonzero((array == array[:1]).all(axis=0))[: min(1, len(array))]:
        constant = f"{name} column {side.names[k]} is {side.format(array[0, k], k)} in every row"
        if not side.words[k] and abs(array[0, k]) >= settings.MAX_EXACT:
            raise UserError(
                f"{constant} to the 16 digits that float64 holds; subtract what the numbers share, or leave "
                "it out"
            )
        raise UserError(f"{constant}; a constant carries no information, leave it out")


def drop_shared_columns(pair: SamplePair) -> SamplePair:
    """Drops a numeric column that is in x and in y from the wider side, with a note.

    If that would leave a side empty, nothing is dropped and the note says so. Categories stay: the
    information of a category about itself is its entropy.
    """
    x, y = pair.x, pair.y
    candidates = np.argwhere(~pair.kinds[0][:, None] & ~pair.kinds[1] & (x[0][:, None] == y[0]))
    shared = np.array([(i, j) for i, j in candidates if np.array_equal(x[:, i], y[:, j])], dtype=int)
    shared = shared.reshape(-1, 2)
    if not len(shared):
        return pair
    rest = [np.setdiff1d(np.arange(z.shape[1]), shared[:, k]) for k, z in enumerate((x, y))]
    side = max((0, 1), key=lambda k: (len(rest[k]) > 0, (x, y)[k].shape[1]))
    names = [f"{name} column {pair.names[k][shared[0, k]]}" for k, name in enumerate("xy")]
    if not len(rest[side]):
        note = (
            f"{names[0]} and {names[1]} are the same: the information of a number about itself is infinite, "
            "so the result depends only on the number of rows"
        )
        return replace(pair, notes=(*pair.notes, note))
    note = (
        f"{names[side]} equals {names[1 - side]}, so its information about it is infinite; it was left out "
        f"of {'xy'[side]}"
    )
    columns = [rest[k] if k == side else np.arange(z.shape[1]) for k, z in enumerate((x, y))]
    return replace(
        pair,
        x=x[:, columns[0]],
        y=y[:, columns[1]],
        kinds=(pair.kinds[0][columns[0]], pair.kinds[1][columns[1]]),
        names=(tuple(pair.names[0][k] for k in columns[0]), tuple(pair.names[1][k] for k in columns[1])),
        notes=(*pair.notes, note),
    )


def column_kinds(x: Array, y: Array, discrete: Discrete, x_words: np.ndarray, y_words: np.ndarray) -> Kinds:
    """Which columns of either side are categories. Text columns always are."""
    if isinstance(discrete, tuple):
        return discrete
    if discrete not in DISCRETE_WORDS:
        raise UserError(f"discrete was {discrete!r}; expected {', '.join(DISCRETE_WORDS)}")
    of_x = "all" if discrete == "x" else "auto" if discrete == "y" else discrete
    of_y = "all" if discrete == "y" else "auto" if discrete == "x" else discrete
    return discrete_columns(x, of_x) | x_words, discrete_columns(y, of_y) | y_words


def discrete_columns(sample: Array, discrete: str) -> Bool[np.ndarray, "column"]:
    """Which columns are categories: all, none, or ("auto") those with few distinct values, each occurring
    often."""
    if discrete != "auto":
        return np.full(sample.shape[1], discrete == "all")
    levels = np.array([len(np.unique(column)) for column in sample.T])
    return levels <= min(settings.MAX_NUMERIC_LEVELS, len(sample) // 10)


def rank_to_normal(column: Float[np.ndarray, "sample"], fitted: Float[np.ndarray, "fitted"]) -> np.ndarray:
    """Normal quantiles of a column's ranks among `fitted`, sorted values of the training rows."""
    # ties share the mean of their ranks, so that the map stays a function of the value
    low, high = np.searchsorted(fitted, fitted, "left"), np.searchsorted(fitted, fitted, "right")
    return np.interp(column, fitted, ndtri((low + high) / (2 * len(fitted))))


@dataclass(frozen=True)
class ColumnEncoding:
    """Maps columns to numbers of comparable size; fitted on training rows. Input of network critics."""

    scaling: Scaling
    discrete: Bool[np.ndarray, "column"]
    sorted: Array  # continuous columns of the training rows, each in rising order
    levels: tuple[Float[np.ndarray, "level"], ...]

    @staticmethod
    def fit(sample: Array, scaling: Scaling, discrete: Bool[np.ndarray, "column"]) -> "ColumnEncoding":
        if scaling not in get_args(Scaling):
            raise UserError(f"scaling was {scaling!r}; expected {', '.join(get_args(Scaling))}")
        levels = tuple(np.unique(column) for column in sample.T[discrete])
        return ColumnEncoding(scaling, discrete, np.sort(sample[:, ~discrete], axis=0), levels)

    def __call__(self, sample: Array) -> Array:
        continuous = [
            self._scale(column, fitted)
            for column, fitted in zip(sample.T[~self.discrete], self.sorted.T, strict=True)
        ]
        # unseen level: all-zero indicators
        indicators = [
            (column[:, None] == levels[None, :]).astype(np.float64)
            for column, levels in zip(sample.T[self.discrete], self.levels, strict=True)
        ]
        return np.concatenate(
            [np.empty((len(sample), 0)), *(c[:, None] for c in continuous), *indicators], axis=1
        )

    def _scale(self, column: Float[np.ndarray, "sample"], fitted: Float[np.ndarray, "fitted"]) -> np.ndarray:
        if self.scaling == "rank":
            return rank_to_normal(column, fitted)
        if self.scaling == "standard":
            # the standard deviation of a constant is rounding error, not a scale
            return (column - fitted.mean()) / (fitted.std() if fitted[0] < fitted[-1] else 1.0)
        return column


@dataclass(frozen=True)
class CanonicalMap:
    """Whitens and rotates both sides so that column k of x correlates with column k of y alone."""

    x_mean: Float[np.ndarray, "dx"]
    y_mean: Float[np.ndarray, "dy"]
    x_map: Float[np.ndarray, "dx kx"]
    y_map: Float[np.ndarray, "dy ky"]
    correlation: Float[np.ndarray, "pair"]  # zero where chance would give as much

    @staticmethod
    def fit(x: Array, y: Array, max_correlation: float = settings.MAX_CORRELATION) -> "CanonicalMap":
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        x, y = x - x_mean, y - y_mean
        x_white, y_white = whitening(x), whitening(y)
        u, correlation, vt = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white)
        # independent samples of these widths show correlations up to about this (Wachter's edge, small d/n)
        chance = np.sqrt(x_white.shape[1] / len(x)) + np.sqrt(y_white.shape[1] / len(x))
        significant = np.where(correlation > chance, np.minimum(correlation, max_correlation), 0.0)
        return CanonicalMap(x_mean, y_mean, x_white @ u, y_white @ vt.T, significant)

    @staticmethod
    def fit_ridge(x: Array, y: Array, ridge: float) -> "CanonicalMap":
        """The same with `ridge` mean variances added to every direction (Vinod 1976), for any number of
        columns.

        Correlations are those of the regularised directions, and none is set to zero.
        """
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        x, y = x - x_mean, y - y_mean
        x_white, y_white = _ridge_whitening(x, ridge), _ridge_whitening(y, ridge)
        u, correlation, vt = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white, full_matrices=False)
        return CanonicalMap(x_mean, y_mean, x_white @ u, y_white @ vt.T, correlation)

    def transform(self, x: Array, y: Array) -> tuple[Array, Array]:
        return (x - self.x_mean) @ self.x_map, (y - self.y_mean) @ self.y_map

    def __call__(self, x: Array, y: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Both sides transformed, as float32 tensors."""
        first, second = (torch.from_numpy(side).float() for side in self.transform(x, y))
        return first, second


def _ridge_whitening(centred: Array, ridge: float) -> Float[np.ndarray, "column direction"]:
    _, singular, direction = np.linalg.svd(centred / np.sqrt(len(centred)), full_matrices=False)
    variance = singular**2
    return direction.T / np.sqrt(variance + ridge * variance.sum() / centred.shape[1] + 1e-12)


def whitening(centred: Array) -> Float[np.ndarray, "column direction"]:
    """The map to unit covariance. Directions without variance are dropped.

    If none is left, one column of zeros.
    """
    variance, direction = np.linalg.eigh(centred.T @ centred / len(centred))
    varies = variance > 1e-9 * variance.max()
    if not varies.any():
        return np.zeros((len(variance), 1))
    return direction[:, varies] / np.sqrt(variance[varies])
