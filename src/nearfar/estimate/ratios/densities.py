"""The density of one number, and the ratio of a category and one number made of it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows

Densities = tuple[
    Float[np.ndarray, "candidate grid"],  # counts per unit
    Float[np.ndarray, "candidate grid"],  # the contribution of a row at its own place
]


def fit_log_density(sample: Float[np.ndarray, "row"]) -> tuple[np.ndarray, np.ndarray]:
    """A grid and the log density on it, by kernels or a histogram.

    The width maximises leave-one-out likelihood.
    """
    low, high = np.quantile(sample, [0.005, 0.995])
    body = max(high - low, 1e-9)
    low, high = low - body, high + body
    grid = np.linspace(low, high, settings.DENSITY_GRID)
    step = grid[1] - grid[0]
    place = np.clip(
        np.round((np.clip(sample, low, high) - low) / step).astype(int), 0, settings.DENSITY_GRID - 1
    )
    counts = np.bincount(place, minlength=settings.DENSITY_GRID).astype(float)
    smooth, contribution = _kernels(sample, counts, step)
    if grid[0] <= sample.min() and sample.max() <= grid[-1]:  # with outliers there is no edge
        sharp, blurred = _sharp_histograms(sample, counts, grid), _blurred_histograms(sample, counts, grid)
        smooth = np.vstack([smooth, sharp[0], blurred[0]])
        contribution = np.vstack([contribution, sharp[1], blurred[1]])
    left_out = (smooth[:, place] - contribution[:, place]) / (len(sample) - 1)
    likelihood = np.log(np.maximum(left_out, 0) + 1e-3 / (2 * body)).mean(axis=1)
    best = smooth[likelihood.argmax()] / len(sample)
    uniform = max(0.003, 2 / (2 + len(sample)))
    return grid, np.log((1 - uniform) * best + uniform / (high - low) + settings.TINY)


def _kernels(sample: np.ndarray, counts: np.ndarray, step: float) -> Densities:
    spread = max(float(np.subtract(*np.quantile(sample, [0.84, 0.16]))) / 2, 1e-9)
    width = np.maximum(np.array(settings.KERNEL_WIDTHS) * spread / step, 0.5)[:, None]  # in steps of the grid
    contribution = 1 / (np.sqrt(2 * np.pi) * width * step)
    return _blur(counts, width) / step, np.broadcast_to(contribution, (len(width), settings.DENSITY_GRID))


def _sharp_histograms(sample: np.ndarray, counts: np.ndarray, grid: np.ndarray) -> Densities:
    """Equal bins between the ends of the sample, widened by the mean gap."""
    low, high = float(sample.min()), float(sample.max())
    margin = (high - low) / max(2, len(sample))
    return _histograms(counts, grid, low - margin, high + margin, settings.SHARP_BINS)


def _blurred_histograms(sample: np.ndarray, counts: np.ndarray, grid: np.ndarray) -> Densities:
    """Equal bins between edges that extrapolate the range of all but the outermost rows evenly, blurred: the
    error of a prediction carries residuals beyond the true edge."""
    low, high = np.quantile(sample, [settings.OUTERMOST, 1 - settings.OUTERMOST])
    extension = settings.OUTERMOST / (1 - 2 * settings.OUTERMOST) * (high - low)
    smooth, contribution = _histograms(counts, grid, low - extension, high + extension, settings.BLURRED_BINS)
    width = (np.array(settings.BLURS) * (high - low) / (grid[1] - grid[0]))[:, None]
    # the contributions are those of one bin times the number of bins
    blurred = _blur(np.vstack([smooth, contribution[:1]])[:, None], width)
    contributions = np.multiply.outer(settings.BLURRED_BINS, blurred[-1])
    return blurred[:-1].reshape(-1, settings.DENSITY_GRID), contributions.reshape(-1, settings.DENSITY_GRID)


def _histograms(
    counts: np.ndarray, grid: np.ndarray, low: float, high: float, bin_counts: tuple[int, ...]
) -> Densities:
    """Rows beyond the edges count in the outermost bins."""
    smooth, contribution = np.zeros((2, len(bin_counts), settings.DENSITY_GRID))
    for k, bins in enumerate(bin_counts):
        width = max((high - low) / bins, 1e-12)
        cell = np.floor((grid - low) / width).astype(int)
        inside = (cell >= 0) & (cell < bins)
        cell = np.clip(cell, 0, bins - 1)
        smooth[k] = np.where(inside, np.bincount(cell, counts, bins)[cell] / width, 0.0)
        contribution[k] = np.where(inside, 1 / width, 0.0)
    return smooth, contribution


def _blur(values: Float[np.ndarray, "... grid"], width: Float[np.ndarray, "width 1"]) -> np.ndarray:
    """Values on the grid, smoothed by Gaussians of `width` grid steps."""
    spectrum = np.exp(-2 * (np.pi * np.fft.rfftfreq(2 * settings.DENSITY_GRID) * width) ** 2)
    blurred = np.fft.irfft(np.fft.rfft(values, 2 * settings.DENSITY_GRID) * spectrum)[
        ..., : settings.DENSITY_GRID
    ]
    return np.maximum(blurred, 0.0)


@dataclass(frozen=True)
class LevelDensityRatio:
    """x a category, y one number: the density of y in every level. Rare levels get that of all rows."""

    scaled: bool
    grid: Float[np.ndarray, "grid"]
    log_ratio: Float[np.ndarray, "level grid"]  # last row: unseen levels

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, scaled: bool) -> "LevelDensityRatio | None":
        if x.code is None or x.numbers or y.code is not None or y.numbers != 1:
            return None
        z = y.values(scaled)[:, 0]
        if x.levels > settings.MAX_DENSITY_LEVELS or (scaled and np.abs(y.scaled).max() > settings.FAR):
            return None
        count = np.bincount(x.code, minlength=x.levels)
        extent = z.max() - z.min() + 1e-9
        grid = np.linspace(z.min() - 0.05 * extent, z.max() + 0.05 * extent, settings.LEVEL_GRID)
        log_q = np.zeros((x.levels, len(grid)))
        common = np.interp(grid, *fit_log_density(z))
        for k in range(x.levels):
            enough = count[k] >= settings.MIN_DENSITY_ROWS
            log_q[k] = np.interp(grid, *fit_log_density(z[x.code == k])) if enough else common
        share = np.maximum(count, 1e-3) / count.sum()
        log_marginal = np.log(share @ np.exp(log_q))
        log_ratio = np.vstack([log_q - log_marginal, np.zeros(len(grid))])
        return LevelDensityRatio(scaled, grid, log_ratio)

    def _places(self, y: SideRows) -> np.ndarray:
        step = self.grid[1] - self.grid[0]
        z = y.values(self.scaled)[:, 0]
        return np.clip(np.round((z - self.grid[0]) / step).astype(int), 0, len(self.grid) - 1)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.log_ratio[x.level_codes, self._places(y)]

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.log_ratio[x.level_codes][:, self._places(y)]
