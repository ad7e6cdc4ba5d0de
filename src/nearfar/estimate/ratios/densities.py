"""The density of one number, and the ratio of a category and one number made of it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.sides import FAR, SideRows

GRID = 2048
KERNEL_WIDTHS = (0.02, 0.04, 0.08, 0.15, 0.25, 0.4)  # in half the central 68 % range
BINS = (1, 2, 4, 8, 16, 32)  # of a histogram between hard edges
# histograms with blurred edges: bins, blur as a share of the range, share of rows cut at either end
BLURRED_BINS, BLURS, OUTERMOST = (1, 2, 4, 8), (0.01, 0.03, 0.06), 0.03
FLOOR = 1e-12
LEVEL_GRID = 1024
MAX_LEVELS = 64
MIN_LEVEL_ROWS = 20

Candidate = tuple[np.ndarray, np.ndarray]  # counts per unit, and the contribution of a row at its own place


def fit_log_density(sample: Float[np.ndarray, "row"]) -> tuple[np.ndarray, np.ndarray]:
    """A grid and the log density on it, by kernels or a histogram.

    The width maximises leave-one-out likelihood.
    """
    low, high = np.quantile(sample, [0.005, 0.995])
    body = max(high - low, 1e-9)
    low, high = low - body, high + body
    grid = np.linspace(low, high, GRID)
    step = grid[1] - grid[0]
    place = np.clip(np.round((np.clip(sample, low, high) - low) / step).astype(int), 0, GRID - 1)
    counts = np.bincount(place, minlength=GRID).astype(float)
    candidates = [*_kernels(sample, counts, step), *_histograms(sample, counts, grid)]

    def leave_one_out(candidate: Candidate) -> float:
        smooth, contribution = candidate
        density = (smooth[place] - contribution[place]) / (len(sample) - 1)
        return float(np.log(np.maximum(density, 0) + 1e-3 / (2 * body)).mean())

    best = max(candidates, key=leave_one_out)[0] / len(sample)
    uniform = max(0.003, 2 / (2 + len(sample)))
    return grid, np.log((1 - uniform) * best + uniform / (high - low) + FLOOR)


def _kernels(sample: np.ndarray, counts: np.ndarray, step: float) -> list[Candidate]:
    spread = max(float(np.subtract(*np.quantile(sample, [0.84, 0.16]))) / 2, 1e-9)
    spectrum = np.fft.rfft(counts, 2 * GRID)
    candidates = []
    for factor in KERNEL_WIDTHS:
        width = max(factor * spread / step, 0.5)  # in steps of the grid
        smooth = np.fft.irfft(spectrum * _gaussian_spectrum(width))[:GRID] / step
        contribution = np.full(GRID, 1 / (np.sqrt(2 * np.pi) * width * step))
        candidates.append((np.maximum(smooth, 0.0), contribution))
    return candidates


def _histograms(sample: np.ndarray, counts: np.ndarray, grid: np.ndarray) -> list[Candidate]:
    """Equal bins between hard or blurred edges.

    Hard edges are the ends of the sample, widened by the mean gap. Blurred ones extrapolate the range of all
    but the
    outermost rows evenly: the error of a prediction carries residuals beyond the true edge.
    """
    low, high = float(sample.min()), float(sample.max())
    if low < grid[0] or high > grid[-1]:
        return []  # outliers: there is no hard edge
    margin = (high - low) / max(2, len(sample))
    candidates = [_histogram(counts, grid, low - margin, high + margin, bins) for bins in BINS]
    low, high = np.quantile(sample, [OUTERMOST, 1 - OUTERMOST])
    extension = OUTERMOST / (1 - 2 * OUTERMOST) * (high - low)
    for bins in BLURRED_BINS:
        hard = _histogram(counts, grid, low - extension, high + extension, bins)
        for blur in BLURS:
            width = blur * (high - low) / (grid[1] - grid[0])
            candidates.append((_blur(hard[0], width), _blur(hard[1], width)))
    return candidates


def _histogram(counts: np.ndarray, grid: np.ndarray, low: float, high: float, bins: int) -> Candidate:
    """Rows beyond the edges count in the outermost bins."""
    width = max((high - low) / bins, 1e-12)
    cell = np.floor((grid - low) / width).astype(int)
    inside = (cell >= 0) & (cell < bins)
    cell = np.clip(cell, 0, bins - 1)
    total = np.bincount(cell, counts, bins)
    return np.where(inside, total[cell] / width, 0.0), np.where(inside, 1 / width, 0.0)


def _blur(values: np.ndarray, width: float) -> np.ndarray:
    """Values on the grid, smoothed by a Gaussian of `width` grid steps."""
    return np.maximum(np.fft.irfft(np.fft.rfft(values, 2 * GRID) * _gaussian_spectrum(width))[:GRID], 0.0)


def _gaussian_spectrum(width: float) -> Float[np.ndarray, "frequency"]:
    """Fourier transform of a Gaussian of `width` grid steps."""
    return np.exp(-2 * (np.pi * np.fft.rfftfreq(2 * GRID) * width) ** 2)


@dataclass(frozen=True)
class LevelDensityRatio:
    """A category and one number: the density of the number in every level.

    Rare levels get that of all rows.
    """

    swapped: bool  # y is the category
    scaled: bool
    grid: Float[np.ndarray, "grid"]
    log_ratio: Float[np.ndarray, "level grid"]  # last row: unseen levels

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, scaled: bool) -> "LevelDensityRatio | None":
        swapped = x.code is None
        category, numeric = (y, x) if swapped else (x, y)
        if category.code is None or category.numbers or numeric.code is not None or numeric.numbers != 1:
            return None
        z = numeric.values(scaled)[:, 0]
        if category.levels > MAX_LEVELS or (scaled and np.abs(numeric.scaled).max() > FAR):
            return None
        count = np.bincount(category.code, minlength=category.levels)
        extent = z.max() - z.min() + 1e-9
        grid = np.linspace(z.min() - 0.05 * extent, z.max() + 0.05 * extent, LEVEL_GRID)
        log_q = np.zeros((category.levels, len(grid)))
        common = np.interp(grid, *fit_log_density(z))
        for k in range(category.levels):
            enough = count[k] >= MIN_LEVEL_ROWS
            log_q[k] = np.interp(grid, *fit_log_density(z[category.code == k])) if enough else common
        share = np.maximum(count, 1e-3) / count.sum()
        log_marginal = np.log(share @ np.exp(log_q))
        log_ratio = np.vstack([log_q - log_marginal, np.zeros(len(grid))])
        return LevelDensityRatio(swapped, scaled, grid, log_ratio)

    def _places(self, numeric: SideRows) -> np.ndarray:
        step = self.grid[1] - self.grid[0]
        z = numeric.values(self.scaled)[:, 0]
        return np.clip(np.round((z - self.grid[0]) / step).astype(int), 0, len(self.grid) - 1)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        category, numeric = (y, x) if self.swapped else (x, y)
        return self.log_ratio[category.level_codes, self._places(numeric)]

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        category, numeric = (y, x) if self.swapped else (x, y)
        log_r = self.log_ratio[category.level_codes][:, self._places(numeric)]
        return log_r.T if self.swapped else log_r
