"""A line through numbers with long tails: y = a + b x + e in their own units, e of any density and tails as long as theirs.

Ranks and squeezed tails bend such a line, and far out, where most of the information is, a bent line has the wrong noise. The line is that of the least
absolute misses, which a few rows far out do not turn; the density of a miss is read where its tails are squeezed. r as in conditional.py.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.halves import LONG, Half, squeezed, stretched
from nearfar.estimate.ratios.regressions import FLOOR, density

MOST_FITTED = 5000  # rows
MOST_AVERAGED = 800  # training rows whose conditional densities are averaged
STEPS = 50  # of reweighting
CHUNK = 2000  # rows at a time


@dataclass(frozen=True)
class Line:
    swapped: bool
    start: float
    slope: float
    scale: float  # of misses
    grid: Float[np.ndarray, "grid"]
    log_density: Float[np.ndarray, "grid"]  # of squeezed misses
    centres: Float[np.ndarray, "centre"]  # predictions of training rows

    @staticmethod
    def fit(x: Half, y: Half, seed: int, swapped: bool) -> "Line | None":
        """None but for two numbers whose tails are both long: otherwise a regression is as good."""
        if any(h.code is not None or h.numbers != 1 or np.abs(h.plain).max() <= LONG for h in (x, y)):
            return None
        given, target = (stretched(half.plain[:, 0]) for half in ((y, x) if swapped else (x, y)))
        start, slope = _least_absolute(given[:MOST_FITTED], target[:MOST_FITTED])
        missed = target - start - slope * given
        scale = float(np.subtract(*np.quantile(missed, [0.9, 0.1]))) + FLOOR
        some = np.random.default_rng(seed).permutation(len(given))[:MOST_AVERAGED]
        return Line(
            swapped, start, slope, scale, *density(squeezed(missed / scale)), start + slope * given[some]
        )

    def _log_q(self, target: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """log density of a number about its prediction; squeezing has slope 1 / (1 + beyond)."""
        miss = (target - centre) / self.scale
        place = np.interp(squeezed(miss), self.grid, self.log_density)
        return place - np.log1p(np.maximum(np.abs(miss) - LONG, 0.0))

    def _sides(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        given, target = (stretched(half.plain[:, 0]) for half in ((y, x) if self.swapped else (x, y)))
        marginal = [
            np.log(np.exp(self._log_q(part[:, None], self.centres[None, :])).mean(axis=1) + 1e-300)
            for part in np.array_split(target, max(1, len(target) // CHUNK))
        ]
        return target, self.start + self.slope * given, np.concatenate(marginal)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        target, centre, marginal = self._sides(x, y)
        return self._log_q(target, centre) - marginal

    def cross(self, x: Half, y: Half) -> np.ndarray:
        target, centre, marginal = self._sides(x, y)
        found = self._log_q(target[None, :], centre[:, None]) - marginal[None, :]
        return found.T if self.swapped else found


def _least_absolute(given: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """argmin of the sum of |target - start - slope given|, by weighted least squares, each row's weight one over its last miss."""
    basis = np.column_stack([np.ones(len(given)), given])
    found, least = np.zeros(2), 1e-4 * np.median(np.abs(target - np.median(target))) + FLOOR
    weight = 1 / (1 + given**2)
    for _ in range(STEPS):
        before = found
        found = np.linalg.lstsq(basis * np.sqrt(weight)[:, None], target * np.sqrt(weight), rcond=None)[0]
        weight = 1 / np.maximum(np.abs(target - basis @ found), least)
        if np.abs(found - before).max() < 1e-6:
            break
    return float(found[0]), float(found[1])
