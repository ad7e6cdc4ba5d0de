"""Ratios from a prediction of one side by the other and the density of its residual.

    ResidualRatio               one number, y = m(x) + s(x) e, any density of e: curves, hard edges
    MultivariateResidualRatio   several numbers, y = m(x) + e, e Gaussian

r = q(y | x) / mean over training rows of q(y | x_j): the conditional density of Barber & Agakov (2003) over
its own marginal. `swapped` predicts x instead of y. The predicting side is the `source`, the other the
`response`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate.ratios.densities import FLOOR, fit_log_density
from nearfar.estimate.ratios.regressions import Regression, fit_regression
from nearfar.estimate.ratios.sides import FAR, SideRows

MAX_SOURCE_COLUMNS, MAX_SOURCE_LEVELS = 100, 64
MARGINAL_GRID = 512  # coarse, since the marginal is smooth
MAX_AVERAGED = 400  # training rows whose conditional densities are averaged for the marginal,
MAX_AVERAGED_OTHERS = 800  # and for several numbers

MAX_SURFACE_COLUMNS, MAX_RESPONSE_COLUMNS = 2, 8  # of the source and of the response, with several numbers
COVARIANCE_RIDGE = 1e-6


@dataclass(frozen=True)
class ResidualDensity:
    """q(target | source) = g((target - m) / s) / s."""

    predict: Regression
    spread: Regression
    grid: Float[np.ndarray, "grid"]
    log_density: Float[np.ndarray, "grid"]  # of the scaled residual

    def __call__(self, target: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        z = (target - centre) / scale
        step = self.grid[1] - self.grid[0]
        place = np.clip((z - self.grid[0]) / step + 0.5, 0, len(self.grid) - 1).astype(np.int32)
        return self.log_density[place] - np.log(scale)


@dataclass(frozen=True)
class ResidualRatio:
    """log r of a `ResidualDensity`, with its marginal on a grid."""

    swapped: bool
    scaled: bool
    density: ResidualDensity
    grid: Float[np.ndarray, "grid"]
    log_marginal: Float[np.ndarray, "grid"]

    @staticmethod
    def fit(
        x: SideRows,
        y: SideRows,
        seed: int,
        swapped: bool,
        scaled: bool,
        spread_varies: bool,
    ) -> "ResidualRatio | None":
        """`spread_varies`: s(x) is fitted too."""
        source, response = (y, x) if swapped else (x, y)
        if response.numbers != 1 or response.code is not None or source.numbers > MAX_SOURCE_COLUMNS:
            return None
        if source.numbers and source.levels > MAX_SOURCE_LEVELS:
            return None
        target = response.values(scaled)[:, 0]
        if scaled and max(np.abs(side.scaled).max(initial=0) for side in (x, y)) > FAR:
            return None
        predict, residual = source.fit_cached(
            response,
            ("prediction", scaled, seed),
            lambda: _fit_prediction(source, target, scaled, seed),
        )
        if spread_varies:
            spread = _fit_spread(source, residual, scaled)
        else:
            spread = _unit_spread
        density = ResidualDensity(predict, spread, *fit_log_density(residual / spread(source)))
        return ResidualRatio(swapped, scaled, density, *_marginal(density, source, target))

    def _inputs(self, x: SideRows, y: SideRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Target, prediction and spread of every row."""
        source, response = (y, x) if self.swapped else (x, y)
        return response.values(self.scaled)[:, 0], self.density.predict(source), self.density.spread(source)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        target, centre, scale = self._inputs(x, y)
        return self.density(target, centre, scale) - np.interp(target, self.grid, self.log_marginal)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        target, centre, scale = self._inputs(x, y)
        log_r = self.density(target[None, :], centre[:, None], scale[:, None])
        log_r -= np.interp(target, self.grid, self.log_marginal)[None, :]
        return log_r.T if self.swapped else log_r


def _unit_spread(side: SideRows) -> np.ndarray:
    return np.ones(len(side))


def _fit_prediction(
    source: SideRows, target: np.ndarray, scaled: bool, seed: int
) -> tuple[Regression, np.ndarray]:
    """A regression, and the residuals of rows under regressions fitted to the other half."""
    first_half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    residual = np.empty(len(target))
    for train in (first_half, ~first_half):
        half_fit = fit_regression(source[train], target[train], scaled)
        residual[~train] = target[~train] - half_fit(source[~train])
    return fit_regression(source, target, scaled), residual


def _fit_spread(source: SideRows, residual: np.ndarray, scaled: bool) -> Regression:
    floor = 1e-3 * residual.std() + FLOOR
    log_size = fit_regression(source, np.log(np.abs(residual) + floor), scaled)
    return lambda side: np.exp(np.clip(log_size(side), -12, 12))


def _marginal(
    density: ResidualDensity, source: SideRows, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log of the mean of q(target | x_j) on a grid, over every k-th row in the order of predictions."""
    order = np.argsort(density.predict(source), kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), MAX_AVERAGED)).astype(int)
    averaged = source[order[places]]
    extent = target.max() - target.min() + 1e-9
    grid = np.linspace(target.min() - 0.2 * extent, target.max() + 0.2 * extent, MARGINAL_GRID)
    centre, scale = density.predict(averaged), density.spread(averaged)
    total = np.exp(density(grid[None, :], centre[:, None], scale[:, None])).mean(axis=0)
    return grid, np.log(total + FLOOR)


@dataclass(frozen=True)
class MultivariateResidualRatio:
    """Several numbers around a curve or surface; residuals are jointly Gaussian."""

    swapped: bool
    predict: tuple[Regression, ...]
    root: Float[np.ndarray, "column column"]  # whitens residuals
    centres: Float[np.ndarray, "centre column"]  # whitened predictions of training rows

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, swapped: bool) -> "MultivariateResidualRatio | None":
        source, response = (y, x) if swapped else (x, y)
        if source.code is not None or response.code is not None:
            return None
        if (
            not 2 <= response.numbers <= MAX_RESPONSE_COLUMNS
            or not 1 <= source.numbers <= MAX_SURFACE_COLUMNS
        ):
            return None
        if max(np.abs(side.scaled).max() for side in (x, y)) > FAR:
            return None
        target = response.scaled
        first_half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
        residual = np.empty_like(target)
        for train in (first_half, ~first_half):
            half_fit = _fit_columns(source[train], target[train])
            residual[~train] = target[~train] - _predict_columns(half_fit, source[~train])
        covariance = residual.T @ residual / len(residual) + COVARIANCE_RIDGE * np.eye(target.shape[1])
        root = np.linalg.inv(np.linalg.cholesky(covariance)).T
        predict = _fit_columns(source, target)
        places = np.linspace(0, len(source) - 1, min(len(source), MAX_AVERAGED_OTHERS)).astype(int)
        rows = np.random.default_rng(seed).permutation(len(source))[places]
        centres = _predict_columns(predict, source[rows])
        return MultivariateResidualRatio(swapped, predict, root, centres @ root)

    def _inputs(self, x: SideRows, y: SideRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whitened predictions and values, and the log marginal, all up to one constant."""
        source, response = (y, x) if self.swapped else (x, y)
        value = np.clip(response.scaled, -FAR, FAR) @ self.root
        log_marginal = logsumexp(_log_normal(value, self.centres), axis=1) - np.log(len(self.centres))
        return _predict_columns(self.predict, source) @ self.root, value, log_marginal

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        centre, value, log_marginal = self._inputs(x, y)
        return -0.5 * ((value - centre) ** 2).sum(axis=1) - log_marginal

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        centre, value, log_marginal = self._inputs(x, y)
        log_r = _log_normal(value, centre) - log_marginal[:, None]
        return log_r if self.swapped else log_r.T


def _fit_columns(source: SideRows, target: np.ndarray) -> tuple[Regression, ...]:
    return tuple(fit_regression(source, column, True) for column in target.T)


def _predict_columns(predict: tuple[Regression, ...], source: SideRows) -> Float[np.ndarray, "row column"]:
    return np.column_stack([regression(source) for regression in predict])


def _log_normal(value: np.ndarray, centre: np.ndarray) -> Float[np.ndarray, "row centre"]:
    """-|value_i - centre_j|^2 / 2."""
    square = (value**2).sum(axis=1)[:, None] + (centre**2).sum(axis=1)[None, :]
    return value @ centre.T - 0.5 * square
