"""Ratios from a prediction of y by x and the density of its residual.

    ResidualRatio               one number, y = m(x) + s(x) e, any density of e: curves, hard edges
    MultivariateResidualRatio   several numbers, y = m(x) + e, e Gaussian

r = q(y | x) / mean over training rows of q(y | x_j): the conditional density of Barber & Agakov (2003) over
its own marginal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate import settings
from nearfar.estimate.ratios.densities import fit_log_density
from nearfar.estimate.ratios.regressions import Regression, fit_regression
from nearfar.estimate.ratios.sides import SideRows

Regressions = Callable[[SideRows], Float[np.ndarray, "row column"]]


def _fit_columns(x: SideRows, target: Float[np.ndarray, "row column"], scaled: bool) -> Regressions:
    regressions = [fit_regression(x, column, scaled) for column in target.T]
    return lambda side: np.column_stack([regression(side) for regression in regressions])


def _fit_prediction(
    x: SideRows, target: Float[np.ndarray, "row column"], scaled: bool, seed: int
) -> tuple[Regressions, Float[np.ndarray, "row column"]]:
    """A regression per column, and the residuals of rows under regressions fitted to the other half."""
    first_half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    residual = np.empty_like(target)
    for train in (first_half, ~first_half):
        residual[~train] = target[~train] - _fit_columns(x[train], target[train], scaled)(x[~train])
    return _fit_columns(x, target, scaled), residual


@dataclass(frozen=True)
class ResidualDensity:
    """q(y | x) = g((y - m(x)) / s(x)) / s(x)."""

    predict: Regressions
    spread: Regression
    grid: Float[np.ndarray, "grid"]
    log_density: Float[np.ndarray, "grid"]  # of the scaled residual

    def moments(self, x: SideRows) -> tuple[Float[np.ndarray, "row"], Float[np.ndarray, "row"]]:
        """Prediction and spread of every row."""
        return self.predict(x)[:, 0], self.spread(x)

    def __call__(self, y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        step = self.grid[1] - self.grid[0]
        place = ((y - centre) / scale - self.grid[0]) / step + 0.5
        return self.log_density[np.clip(place, 0, len(self.grid) - 1).astype(np.int32)] - np.log(scale)


@dataclass(frozen=True)
class ResidualRatio:
    """log r of a `ResidualDensity`, with its marginal on a grid."""

    scaled: bool
    density: ResidualDensity
    grid: Float[np.ndarray, "grid"]
    log_marginal: Float[np.ndarray, "grid"]

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, scaled: bool, spread_varies: bool) -> "ResidualRatio | None":
        """`spread_varies`: s(x) is fitted too."""
        if y.numbers != 1 or y.code is not None or x.numbers > settings.MAX_SOURCE_COLUMNS:
            return None
        if x.levels > (settings.MAX_SOURCE_LEVELS if x.numbers else len(x)):
            return None
        if scaled and max(np.abs(side.scaled).max(initial=0) for side in (x, y)) > settings.FAR:
            return None
        target = y.values(scaled)
        predict, residual = x.fit_cached(
            y, ("prediction", scaled, seed), lambda: _fit_prediction(x, target, scaled, seed)
        )
        residual = residual[:, 0]
        spread = _fit_spread(x, residual, scaled) if spread_varies else _unit_spread
        density = ResidualDensity(predict, spread, *fit_log_density(residual / spread(x)))
        return ResidualRatio(scaled, density, *_marginal(density, x, target[:, 0]))

    def _log_marginal(self, y: np.ndarray) -> np.ndarray:
        return np.interp(y, self.grid, self.log_marginal)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        target = y.values(self.scaled)[:, 0]
        return self.density(target, *self.density.moments(x)) - self._log_marginal(target)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        target, (centre, scale) = y.values(self.scaled)[:, 0], self.density.moments(x)
        return self.density(target[None, :], centre[:, None], scale[:, None]) - self._log_marginal(target)


def _unit_spread(x: SideRows) -> np.ndarray:
    return np.ones(len(x))


def _fit_spread(x: SideRows, residual: np.ndarray, scaled: bool) -> Regression:
    floor = 1e-3 * residual.std() + settings.TINY
    log_size = fit_regression(x, np.log(np.abs(residual) + floor), scaled)
    return lambda side: np.exp(np.clip(log_size(side), -12, 12))


def _marginal(density: ResidualDensity, x: SideRows, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of the mean of q(y | x_j) on a grid, over every k-th row in the order of predictions."""
    centre, scale = density.moments(x)
    order = np.argsort(centre, kind="stable")
    averaged = order[np.linspace(0, len(order) - 1, min(len(order), settings.MAX_AVERAGED)).astype(int)]
    extent = target.max() - target.min() + 1e-9
    grid = np.linspace(target.min() - 0.2 * extent, target.max() + 0.2 * extent, settings.MARGINAL_GRID)
    total = np.exp(density(grid[None, :], centre[averaged, None], scale[averaged, None])).mean(axis=0)
    return grid, np.log(total + settings.TINY)


@dataclass(frozen=True)
class MultivariateResidualRatio:
    """Several numbers around a curve or surface; residuals are jointly Gaussian."""

    predict: Regressions
    root: Float[np.ndarray, "column column"]  # whitens residuals
    centres: Float[np.ndarray, "centre column"]  # whitened predictions of training rows

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int) -> "MultivariateResidualRatio | None":
        if x.code is not None or y.code is not None:
            return None
        if (
            not 1 <= x.numbers <= settings.MAX_SURFACE_COLUMNS
            or not 2 <= y.numbers <= settings.MAX_RESPONSE_COLUMNS
        ):
            return None
        if max(np.abs(side.scaled).max() for side in (x, y)) > settings.FAR:
            return None
        predict, residual = _fit_prediction(x, y.scaled, True, seed)
        covariance = residual.T @ residual / len(residual) + settings.COVARIANCE_RIDGE * np.eye(y.numbers)
        root = np.linalg.inv(np.linalg.cholesky(covariance)).T
        places = np.linspace(0, len(x) - 1, min(len(x), settings.MAX_AVERAGED_OTHERS)).astype(int)
        rows = np.random.default_rng(seed).permutation(len(x))[places]
        return MultivariateResidualRatio(predict, root, predict(x[rows]) @ root)

    def _inputs(self, x: SideRows, y: SideRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whitened predictions and values, and the log marginal, all up to one constant."""
        value = np.clip(y.scaled, -settings.FAR, settings.FAR) @ self.root
        log_marginal = logsumexp(_log_normal(value, self.centres), axis=1) - np.log(len(self.centres))
        return self.predict(x) @ self.root, value, log_marginal

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        centre, value, log_marginal = self._inputs(x, y)
        return -0.5 * ((value - centre) ** 2).sum(axis=1) - log_marginal

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        centre, value, log_marginal = self._inputs(x, y)
        return _log_normal(centre, value) - log_marginal


def _log_normal(value: np.ndarray, centre: np.ndarray) -> Float[np.ndarray, "row centre"]:
    """-|value_i - centre_j|^2 / 2."""
    square = (value**2).sum(axis=1)[:, None] + (centre**2).sum(axis=1)[None, :]
    return value @ centre.T - 0.5 * square
