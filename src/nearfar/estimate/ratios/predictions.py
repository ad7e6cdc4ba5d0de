"""Ratios from a prediction of one side by the other and the density of its residual.

    ResidualRatio               one number, y = m(x) + s(x) e, any density of e: curves, hard edges
    MultivariateResidualRatio   several numbers, y = m(x) + e, e Gaussian
    LineRatio                   a line through numbers with long tails

r = q(y | x) / mean over training rows of q(y | x_j): the conditional density of Barber & Agakov (2003) over
its own marginal. `swapped` predicts x instead of y. The predicting side is the `source`, the other the
`response`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate.ratios.densities import FLOOR, fit_log_density
from nearfar.estimate.ratios.regressions import Regression, fit_regression, trees_may_help
from nearfar.estimate.ratios.sides import FAR, TAIL_START, SideRows, squeeze, unsqueeze

MAX_SOURCE_COLUMNS, MAX_SOURCE_LEVELS = 100, 64
MARGINAL_GRID = 512  # coarse, since the marginal is smooth
MAX_AVERAGED = 400  # training rows whose conditional densities are averaged for the marginal,
MAX_AVERAGED_OTHERS = 800  # and for a line or several numbers

MAX_SURFACE_COLUMNS, MAX_RESPONSE_COLUMNS = 2, 8  # of the source and of the response, with several numbers
COVARIANCE_RIDGE = 1e-6

MAX_LINE_ROWS = 5000
LINE_STEPS = 50  # of iteratively reweighted least squares
CHUNK = 2000  # rows


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
        boosted: bool = False,
    ) -> "ResidualRatio | None":
        """`spread_varies`: s(x) is fitted too.

        `boosted`: m(x) by trees, where a trial shows that they help.
        """
        source, response = (y, x) if swapped else (x, y)
        if response.numbers != 1 or response.code is not None or source.numbers > MAX_SOURCE_COLUMNS:
            return None
        if source.numbers and source.levels > MAX_SOURCE_LEVELS:
            return None
        if boosted and source.numbers + bool(source.levels) < 2:
            return None
        target = response.values(scaled)[:, 0]
        if scaled and max(np.abs(side.scaled).max(initial=0) for side in (x, y)) > FAR:
            return None
        if boosted and not trees_may_help(source, target, scaled, seed):
            return None
        predict, residual = source.fit_cached(
            response,
            ("prediction", scaled, seed, boosted),
            lambda: _fit_prediction(source, target, scaled, seed, boosted),
        )
        if spread_varies:
            spread = _fit_spread(source, residual, scaled, seed)
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
    source: SideRows, target: np.ndarray, scaled: bool, seed: int, boosted: bool
) -> tuple[Regression, np.ndarray]:
    """A regression, and the residuals of rows under regressions fitted to the other half."""
    first_half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    residual = np.empty(len(target))
    for train in (first_half, ~first_half):
        half_fit = fit_regression(source[train], target[train], scaled, seed, boosted)
        residual[~train] = target[~train] - half_fit(source[~train])
    return fit_regression(source, target, scaled, seed, boosted), residual


def _fit_spread(source: SideRows, residual: np.ndarray, scaled: bool, seed: int) -> Regression:
    floor = 1e-3 * residual.std() + FLOOR
    log_size = fit_regression(source, np.log(np.abs(residual) + floor), scaled, seed, boosted=False)
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
            half_fit = _fit_columns(source[train], target[train], seed)
            residual[~train] = target[~train] - _predict_columns(half_fit, source[~train])
        covariance = residual.T @ residual / len(residual) + COVARIANCE_RIDGE * np.eye(target.shape[1])
        root = np.linalg.inv(np.linalg.cholesky(covariance)).T
        predict = _fit_columns(source, target, seed)
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


def _fit_columns(source: SideRows, target: np.ndarray, seed: int) -> tuple[Regression, ...]:
    return tuple(fit_regression(source, column, True, seed, boosted=False) for column in target.T)


def _predict_columns(predict: tuple[Regression, ...], source: SideRows) -> Float[np.ndarray, "row column"]:
    return np.column_stack([regression(source) for regression in predict])


def _log_normal(value: np.ndarray, centre: np.ndarray) -> Float[np.ndarray, "row centre"]:
    """-|value_i - centre_j|^2 / 2."""
    square = (value**2).sum(axis=1)[:, None] + (centre**2).sum(axis=1)[None, :]
    return value @ centre.T - 0.5 * square


@dataclass(frozen=True)
class LineRatio:
    """y = a + b x + e in original units, for two numbers with long tails.

    Ranks and squeezed tails bend such a line and give far rows, which carry most of the information, the
    wrong noise. The line minimises absolute residuals; their density is fitted on squeezed residuals.
    """

    swapped: bool
    intercept: float
    slope: float
    scale: float  # of residuals
    grid: Float[np.ndarray, "grid"]
    log_density: Float[np.ndarray, "grid"]  # of squeezed residuals
    centres: Float[np.ndarray, "centre"]  # predictions of training rows

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, swapped: bool) -> "LineRatio | None":
        """None unless both numbers have long tails: otherwise a regression is as good."""
        for side in (x, y):
            if side.code is not None or side.numbers != 1 or np.abs(side.scaled).max() <= TAIL_START:
                return None
        source, target = (unsqueeze(side.scaled[:, 0]) for side in ((y, x) if swapped else (x, y)))
        intercept, slope = _least_absolute_line(source[:MAX_LINE_ROWS], target[:MAX_LINE_ROWS])
        residual = target - intercept - slope * source
        scale = float(np.subtract(*np.quantile(residual, [0.9, 0.1]))) + FLOOR
        rows = np.random.default_rng(seed).permutation(len(source))[:MAX_AVERAGED_OTHERS]
        density = fit_log_density(squeeze(residual / scale))
        return LineRatio(swapped, intercept, slope, scale, *density, intercept + slope * source[rows])

    def _log_q(self, target: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """log density of the target around its prediction.

        The slope of `squeeze` is 1 / (1 + distance beyond).
        """
        residual = (target - centre) / self.scale
        log_density = np.interp(squeeze(residual), self.grid, self.log_density)
        return log_density - np.log1p(np.maximum(np.abs(residual) - TAIL_START, 0.0))

    def _inputs(self, x: SideRows, y: SideRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Target, prediction and log marginal of every row."""
        source, target = (unsqueeze(side.scaled[:, 0]) for side in ((y, x) if self.swapped else (x, y)))
        log_marginal = [
            np.log(np.exp(self._log_q(part[:, None], self.centres[None, :])).mean(axis=1) + 1e-300)
            for part in np.array_split(target, max(1, len(target) // CHUNK))
        ]
        return target, self.intercept + self.slope * source, np.concatenate(log_marginal)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        target, centre, log_marginal = self._inputs(x, y)
        return self._log_q(target, centre) - log_marginal

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        target, centre, log_marginal = self._inputs(x, y)
        log_r = self._log_q(target[None, :], centre[:, None]) - log_marginal[None, :]
        return log_r.T if self.swapped else log_r


def _least_absolute_line(source: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Intercept and slope that minimise absolute residuals, by iteratively reweighted least squares."""
    basis = np.column_stack([np.ones(len(source)), source])
    line, floor = np.zeros(2), 1e-4 * np.median(np.abs(target - np.median(target))) + FLOOR
    weight = 1 / (1 + source**2)
    for _ in range(LINE_STEPS):
        previous = line
        line = np.linalg.lstsq(basis * np.sqrt(weight)[:, None], target * np.sqrt(weight), rcond=None)[0]
        weight = 1 / np.maximum(np.abs(target - basis @ line), floor)
        if np.abs(line - previous).max() < 1e-6:
            break
    return float(line[0]), float(line[1])
