"""Several numbers round a curve or a surface: y = m(x) + e, every column of y predicted by itself, their misses Gaussian together.

r = q(y | x) / mean over training rows of q(y | x_j), as in conditional.py, where y is one number and its misses have any density.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate.ratios.halves import FAR, Half
from nearfar.estimate.ratios.regressions import Regression, regression

MOST_GIVEN, MOST_COLUMNS = 2, 8  # numbers of a curve or a surface, and those round it
MOST_AVERAGED = 800  # training rows whose conditional densities are averaged
RIDGE = 1e-6


@dataclass(frozen=True)
class Around:
    swapped: bool
    predict: tuple[Regression, ...]
    root: Float[np.ndarray, "column column"]  # turns misses to independent ones of unit spread
    centres: Float[np.ndarray, "centre column"]  # predictions of training rows, turned

    @staticmethod
    def fit(x: Half, y: Half, seed: int, swapped: bool) -> "Around | None":
        given, other = (y, x) if swapped else (x, y)
        if given.code is not None or other.code is not None or not 2 <= other.numbers <= MOST_COLUMNS:
            return None
        if not 1 <= given.numbers <= MOST_GIVEN or max(np.abs(h.plain).max() for h in (x, y)) > FAR:
            return None
        target = other.plain
        first = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
        missed = np.empty_like(target)
        for part in (first, ~first):  # by predictions that have not seen the row
            missed[~part] = target[~part] - _predicted(
                _learned(given[part], target[part], seed), given[~part]
            )
        covariance = missed.T @ missed / len(missed) + RIDGE * np.eye(target.shape[1])
        root = np.linalg.inv(np.linalg.cholesky(covariance)).T
        predict = _learned(given, target, seed)
        some = np.linspace(0, len(given) - 1, min(len(given), MOST_AVERAGED)).astype(int)
        centres = _predicted(predict, given[np.random.default_rng(seed).permutation(len(given))[some]])
        return Around(swapped, predict, root, centres @ root)

    def _turned(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predictions and values, turned, and the log of the mean over training rows, all up to one constant."""
        given, other = (y, x) if self.swapped else (x, y)
        value = np.clip(other.plain, -FAR, FAR) @ self.root
        marginal = logsumexp(_log_bell(value, self.centres), axis=1) - np.log(len(self.centres))
        return _predicted(self.predict, given) @ self.root, value, marginal

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        centre, value, marginal = self._turned(x, y)
        return -0.5 * ((value - centre) ** 2).sum(axis=1) - marginal

    def cross(self, x: Half, y: Half) -> np.ndarray:
        centre, value, marginal = self._turned(x, y)
        found = _log_bell(value, centre) - marginal[:, None]
        return found if self.swapped else found.T


def _learned(given: Half, target: np.ndarray, seed: int) -> tuple[Regression, ...]:
    return tuple(regression(given, column, True, seed, boosted=False) for column in target.T)


def _predicted(predict: tuple[Regression, ...], given: Half) -> Float[np.ndarray, "row column"]:
    return np.column_stack([one(given) for one in predict])


def _log_bell(value: np.ndarray, centre: np.ndarray) -> Float[np.ndarray, "row centre"]:
    square = (value**2).sum(axis=1)[:, None] + (centre**2).sum(axis=1)[None, :]
    return value @ centre.T - 0.5 * square
