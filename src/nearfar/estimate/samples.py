"""Two samples as numbers: checked, each column continuous or discrete, brought to a common scale.

Mutual information does not change under one-to-one maps of either side, so the maps here are free choices, made so
that a small critic can learn from few samples: ranks to a standard normal (or plain standardising), levels of a
discrete column to indicators, then both sides rotated into canonical pairs. Everything is fitted on the training part
of a fold and only applied to the part that is scored, so that scoring stays honest.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import ndtri

from nearfar.errors import UserError
from nearfar.estimate.columns import EXACT, Columns, as_columns

Scaling = Literal["rank", "standard", "none"]
SIDES = ("auto", "all", "none", "x", "y")
Discrete = Literal["auto", "all", "none", "x", "y"] | tuple[np.ndarray, np.ndarray]
Array = Float[np.ndarray, "sample column"]

FEWEST = 50  # samples: below this a fold has nothing to learn from
MOST_CORRELATION = 0.9995  # of a canonical pair of ranks
MOST_LEVELS = 32  # a numeric column with more distinct values than this is taken as continuous


@dataclass(frozen=True)
class Pair:
    """Two samples of one length without gaps, which columns are categories, and what was done to get there."""

    x: Array
    y: Array
    kinds: tuple[Bool[np.ndarray, "column"], Bool[np.ndarray, "column"]]
    groups: Any
    kept: np.ndarray  # rows of what was handed over
    names: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...]


def checked_pair(x: Any, y: Any, discrete: Discrete = "auto", groups: Any = None) -> Pair:
    """Both samples, of one length; rows with a gap on either side are left out, and that is said."""
    first, second = as_columns(x, "x"), as_columns(y, "y")
    if len(first.values) != len(second.values):
        raise UserError(
            f"x has {len(first.values)} samples and y {len(second.values)}; row i of one must belong to row i of the other"
        )
    whole = ~(np.isnan(first.values).any(axis=1) | np.isnan(second.values).any(axis=1))
    kept = np.flatnonzero(whole)
    left_out = len(whole) - len(kept)
    notes = (f"{left_out} of {len(whole)} rows have gaps and were left out",) if left_out else ()
    if groups is not None and left_out and np.shape(groups) == (len(whole),):
        groups = np.asarray(groups)[kept]
    sides = [_checked(side, kept, name) for side, name in ((first, "x"), (second, "y"))]
    kinds = column_kinds(sides[0], sides[1], discrete, first.words, second.words)
    return Pair(sides[0], sides[1], kinds, groups, kept, (first.names, second.names), notes)


def _checked(side: Columns, kept: np.ndarray, name: str) -> Array:
    array = side.values[kept]
    if len(array) < FEWEST:
        raise UserError(f"{name} has {len(array)} samples; at least {FEWEST} are needed")
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise UserError(
            f"{name} holds {array[row, column]} at row {row}, column {column}; every value must be finite"
        )
    check_varies(side, kept, name)
    return _of_usual_size(array)


def check_varies(side: Columns, kept: np.ndarray, name: str) -> None:
    array = side.values[kept]
    for k in np.flatnonzero((array == array[:1]).all(axis=0))[:1]:
        is_one = f"{name} column {side.names[k]} is {side.shown(array[0, k], k)} in every row"
        if not side.words[k] and abs(array[0, k]) >= EXACT:
            raise UserError(
                f"{is_one} to the 16 digits that float64 holds; subtract what the numbers share, or leave it out"
            )
        raise UserError(f"{is_one}; a constant tells nothing, leave it out")


def _of_usual_size(array: Array) -> Array:
    """Columns of extreme size divided by a power of two, which loses nothing: their squares must be numbers too."""
    exponent = np.frexp(np.abs(array).max(axis=0))[1]
    return np.ldexp(array, np.where(np.abs(exponent) > 300, -exponent, 0))


def without_shared(pair: Pair) -> Pair:
    """A number on both sides would be asked about itself: it is left out of the wider side, and that is said. Where nothing else is left of either
    side, it is only said. A category may be asked about itself: it tells its entropy."""
    x, y = pair.x, pair.y
    alike = np.argwhere(~pair.kinds[0][:, None] & ~pair.kinds[1] & (x[0][:, None] == y[0]))
    shared = np.array([(i, j) for i, j in alike if np.array_equal(x[:, i], y[:, j])], dtype=int).reshape(
        -1, 2
    )
    if not len(shared):
        return pair
    left = [np.setdiff1d(np.arange(z.shape[1]), shared[:, k]) for k, z in enumerate((x, y))]
    side = max((0, 1), key=lambda k: (len(left[k]) > 0, (x, y)[k].shape[1]))
    names = [f"{name} column {pair.names[k][shared[0, k]]}" for k, name in enumerate("xy")]
    if not len(left[side]):
        same = f"{names[0]} and {names[1]} are the same: a number tells infinitely much about itself, so the result says only how many rows there are"
        return replace(pair, notes=(*pair.notes, same))
    note = f"{names[side]} is {names[1 - side]} and tells infinitely much about itself; it was left out of {'xy'[side]}"
    kept = [left[k] if k == side else np.arange(z.shape[1]) for k, z in enumerate((x, y))]
    return replace(
        pair,
        x=x[:, kept[0]],
        y=y[:, kept[1]],
        kinds=(pair.kinds[0][kept[0]], pair.kinds[1][kept[1]]),
        names=(tuple(pair.names[0][k] for k in kept[0]), tuple(pair.names[1][k] for k in kept[1])),
        notes=(*pair.notes, note),
    )


def column_kinds(
    x: Array, y: Array, discrete: Discrete, x_words: np.ndarray, y_words: np.ndarray
) -> tuple[Bool[np.ndarray, "column"], Bool[np.ndarray, "column"]]:
    """Which columns of either side are categories; words always are."""
    if isinstance(discrete, tuple):
        return discrete
    if discrete not in SIDES:
        raise UserError(f"discrete was {discrete!r}; expected {', '.join(SIDES)}")
    of_x = "all" if discrete == "x" else "auto" if discrete == "y" else discrete
    of_y = "all" if discrete == "y" else "auto" if discrete == "x" else discrete
    return discrete_columns(x, of_x) | x_words, discrete_columns(y, of_y) | y_words


def discrete_columns(sample: Array, discrete: str) -> Bool[np.ndarray, "column"]:
    """Which columns are taken as categories: few distinct values, each seen often (or as the user says)."""
    if discrete != "auto":
        return np.full(sample.shape[1], discrete == "all")
    levels = np.array([len(np.unique(column)) for column in sample.T])
    return levels <= min(MOST_LEVELS, len(sample) // 10)


@dataclass(frozen=True)
class Encoding:
    """A sample's columns as numbers of comparable size, by maps fitted elsewhere."""

    scaling: Scaling
    discrete: Bool[np.ndarray, "column"]
    sorted: Array  # the continuous columns of the sample it was fitted on, each in rising order
    levels: tuple[Float[np.ndarray, "level"], ...]

    @staticmethod
    def fit(sample: Array, scaling: Scaling, discrete: Bool[np.ndarray, "column"]) -> "Encoding":
        if scaling not in get_args(Scaling):
            raise UserError(f"scaling was {scaling!r}; expected {', '.join(get_args(Scaling))}")
        levels = tuple(np.unique(column) for column in sample.T[discrete])
        return Encoding(scaling, discrete, np.sort(sample[:, ~discrete], axis=0), levels)

    def __call__(self, sample: Array) -> Array:
        continuous = [
            self._scaled(column, known)
            for column, known in zip(sample.T[~self.discrete], self.sorted.T, strict=True)
        ]
        # a level the fit never saw is nobody: all zeros
        indicators = [
            (column[:, None] == known[None, :]).astype(np.float64)
            for column, known in zip(sample.T[self.discrete], self.levels, strict=True)
        ]
        return np.concatenate(
            [np.empty((len(sample), 0)), *(c[:, None] for c in continuous), *indicators], axis=1
        )

    def _scaled(self, column: Float[np.ndarray, "sample"], known: Float[np.ndarray, "fitted"]) -> np.ndarray:
        if self.scaling == "rank":
            # equal values share the mean of their ranks, so that the map stays a function of the value
            low, high = np.searchsorted(known, known, "left"), np.searchsorted(known, known, "right")
            return np.interp(column, known, ndtri((low + high) / (2 * len(known))))
        if self.scaling == "standard":
            # one level in the fitted part: its standard deviation is rounding, not a scale
            return (column - known.mean()) / (known.std() if known[0] < known[-1] else 1.0)
        return column


@dataclass(frozen=True)
class Canonical:
    """Both sides whitened and rotated so that column k of one is correlated with column k of the other alone."""

    x_mean: Float[np.ndarray, "dx"]
    y_mean: Float[np.ndarray, "dy"]
    x_map: Float[np.ndarray, "dx kx"]
    y_map: Float[np.ndarray, "dy ky"]
    correlation: Float[np.ndarray, "pair"]  # zero where not larger than chance would make it

    @staticmethod
    def fit(x: Array, y: Array, most: float = MOST_CORRELATION) -> "Canonical":
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        x, y = x - x_mean, y - y_mean
        x_white, y_white = whitening(x), whitening(y)
        u, correlation, vt = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white)
        # independent samples of these widths already show correlations up to about this (Wachter's edge, small d/n)
        chance = np.sqrt(x_white.shape[1] / len(x)) + np.sqrt(y_white.shape[1] / len(x))
        kept = np.where(correlation > chance, np.minimum(correlation, most), 0.0)
        return Canonical(x_mean, y_mean, x_white @ u, y_white @ vt.T, kept)

    @staticmethod
    def shrunk(x: Array, y: Array, ridge: float) -> "Canonical":
        """The same with `ridge` mean variances added to every direction (Vinod 1976): exists for any number of columns. Correlations are
        those of the shrunk directions; none is cut."""
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        x, y = x - x_mean, y - y_mean
        x_white, y_white = _shrunk_whitening(x, ridge), _shrunk_whitening(y, ridge)
        u, correlation, vt = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white, full_matrices=False)
        return Canonical(x_mean, y_mean, x_white @ u, y_white @ vt.T, correlation)

    def moved(self, x: Array, y: Array) -> tuple[Array, Array]:
        return (x - self.x_mean) @ self.x_map, (y - self.y_mean) @ self.y_map

    def __call__(self, x: Array, y: Array) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (torch.from_numpy(side).float() for side in self.moved(x, y))
        return first, second


def _shrunk_whitening(centred: Array, ridge: float) -> Float[np.ndarray, "column direction"]:
    _, singular, direction = np.linalg.svd(centred / np.sqrt(len(centred)), full_matrices=False)
    variance = singular**2
    return direction.T / np.sqrt(variance + ridge * variance.sum() / centred.shape[1] + 1e-12)


def whitening(centred: Array) -> Float[np.ndarray, "column direction"]:
    """The map to unit covariance, without directions in which nothing varies; to a zero if nothing does at all."""
    variance, direction = np.linalg.eigh(centred.T @ centred / len(centred))
    varies = variance > 1e-9 * variance.max()
    if not varies.any():
        return np.zeros((len(variance), 1))
    return direction[:, varies] / np.sqrt(variance[varies])
