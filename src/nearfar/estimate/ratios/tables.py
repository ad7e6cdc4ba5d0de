"""Ratios for categories: a table of counts drawn towards independence, and a Gaussian for every level."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from nearfar.estimate.ratios.halves import Half

LEAST = 1e-9
DISCOUNTS = 0.05, 0.95  # of one row


@dataclass(frozen=True)
class Cells:
    """A side as one whole number: its category, or the interval between quantiles that its one number falls in."""

    edges: Float[np.ndarray, "edge"] | None
    count: int
    pooled: Int[np.ndarray, "level"] | None = None  # the cell of each level, rare ones in one; last: not seen

    @staticmethod
    def fit(half: Half, bins: int, rare: int = 0) -> "Cells | None":
        if half.code is not None and half.numbers == 0:
            return _pooled(half, rare)
        if half.code is not None or half.numbers != 1:
            return None
        edges = np.unique(np.quantile(half.normal[:, 0], np.arange(1, bins) / bins))
        return Cells(edges, len(edges) + 1)

    def __call__(self, half: Half) -> Int[np.ndarray, "row"]:
        if self.edges is None:
            assert half.code is not None
            return half.code if self.pooled is None else self.pooled[half.code]
        return np.searchsorted(self.edges, half.normal[:, 0], "right")


def _pooled(half: Half, rare: int) -> Cells:
    """Levels with fewer rows than `rare` share a cell, and a level that was not seen is one of them."""
    assert half.code is not None
    seldom = np.bincount(half.code, minlength=half.levels) < rare
    often = int((~seldom).sum())
    if seldom.sum() < 2 or often == 0:
        return Cells(None, half.levels)
    return Cells(None, often + 1, np.r_[np.where(seldom, often, np.cumsum(~seldom) - 1), often])


@dataclass(frozen=True)
class Table:
    """r of the cells of x and y: (n_xy + strength p(y)) / ((n_x + strength) p(y)), and so with x and y exchanged.

    Each row of the table is drawn towards the margin, the more the rarer its level (Dirichlet's posterior mean). That takes as large a share from a cell
    that is often met as from one met by chance; without a strength the same discount d is taken from every cell that was met and given to the
    margin, (n_xy - d + d t_x p(y)) / (n_x p(y)) with t_x such cells in the row (Ney et al. 1994). A level that training did not see says
    nothing, or what rare levels say together where they are pooled.
    """

    x: Cells
    y: Cells
    log_ratio: Float[np.ndarray, "level level"]  # last row and column: not seen

    @staticmethod
    def fit(x: Half, y: Half, seed: int, bins: int, strength: float | None, rare: int = 0) -> "Table | None":
        cells_x, cells_y = Cells.fit(x, bins, rare), Cells.fit(y, bins, rare)
        if cells_x is None or cells_y is None or cells_x.count * cells_y.count > 4_000_000:
            return None
        if rare and cells_x.pooled is None and cells_y.pooled is None:
            return None  # nothing is rare: as good as without
        binned = cells_x.edges is not None or cells_y.edges is not None
        if binned != (bins > 0):
            return None  # numbers need cells, two categories have their own
        counts = np.zeros((cells_x.count, cells_y.count))
        np.add.at(counts, (cells_x(x), cells_y(y)), 1.0)
        shrunk = _discounted if strength is None else partial(_drawn, strength=strength)
        ratio = np.maximum((shrunk(counts) + shrunk(counts.T).T) / 2, LEAST)
        return Table(cells_x, cells_y, np.pad(np.log(ratio), ((0, 1), (0, 1))))

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.log_ratio[self.x(x), self.y(y)]

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.log_ratio[np.ix_(self.x(x), self.y(y))]


def _drawn(counts: Float[np.ndarray, "level level"], strength: float) -> Float[np.ndarray, "level level"]:
    """p(y | x) / p(y), each row with so many rows' worth of the margin."""
    p, q = counts.sum(axis=1, keepdims=True), counts.sum(axis=0, keepdims=True) / counts.sum()
    return (counts + strength * q) / ((p + strength) * np.maximum(q, LEAST))


def _discounted(counts: Float[np.ndarray, "level level"]) -> Float[np.ndarray, "level level"]:
    """The same with a discount, of which cells that were met once and twice say how much chance gave them."""
    once, twice = float((counts == 1).sum()), float((counts == 2).sum())
    discount = np.clip(once / max(once + 2 * twice, 1.0), *DISCOUNTS)
    p, q = (
        np.maximum(counts.sum(axis=1, keepdims=True), LEAST),
        counts.sum(axis=0, keepdims=True) / counts.sum(),
    )
    met = (counts > 0).sum(axis=1, keepdims=True)
    return (np.maximum(counts - discount, 0.0) / np.maximum(q, LEAST) + discount * met) / p


@dataclass(frozen=True)
class Levels:
    """A category beside numbers: in every level they are Gaussian, with mean and covariance drawn towards all levels' own.

    r = q(v | level) / sum over levels of p(level) q(v | level): the conditional density of Barber and Agakov (2003).
    """

    swapped: bool
    plain: bool
    log_share: Float[np.ndarray, "level"]
    mean: Float[np.ndarray, "level column"]
    root: Float[np.ndarray, "level column column"]  # inverse Cholesky factors

    @staticmethod
    def fit(x: Half, y: Half, seed: int, plain: bool, own_spread: bool) -> "Levels | None":
        swapped = x.code is None
        level, other = (y, x) if swapped else (x, y)
        if level.code is None or level.numbers or other.code is not None or not other.numbers:
            return None
        z = other.plain if plain else other.normal
        if z.shape[1] > 20 or len(z) < 5 * z.shape[1]:
            return None
        z = np.clip(z, -20, 20)
        assert level.code is not None
        count = np.bincount(level.code, minlength=level.levels).astype(float)
        mean = np.stack([np.bincount(level.code, c, level.levels) for c in z.T], axis=1)
        mean = mean / np.maximum(count, 1)[:, None]
        centred = z - mean[level.code]
        within = centred.T @ centred / max(1, len(z) - level.levels) + 1e-6 * np.eye(z.shape[1])
        mean = _shrunk_means(mean, count, z, within)
        covariance = _covariances(z - mean[level.code], level.code, count, within, own_spread)
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        return Levels(swapped, plain, np.log(np.maximum(count, 1e-3) / count.sum()), mean, root)

    def _values(self, half: Half) -> np.ndarray:
        """log q(v | level) - log q(v): (level or unseen, row)."""
        z = np.clip(half.plain if self.plain else half.normal, -20, 20)
        moved = np.einsum("kij,knj->kni", self.root, z[None] - self.mean[:, None])
        log_q = -0.5 * (moved**2).sum(axis=2) + np.log(np.einsum("kii->ki", self.root)).sum(axis=1)[:, None]
        log_q -= logsumexp(log_q + self.log_share[:, None], axis=0)
        return np.vstack([log_q, np.zeros(len(z))])

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        level, other = (y, x) if self.swapped else (x, y)
        return self._values(other)[level.code, np.arange(len(x))]

    def cross(self, x: Half, y: Half) -> np.ndarray:
        level, other = (y, x) if self.swapped else (x, y)
        found = self._values(other)[level.code]
        return found.T if self.swapped else found


def _shrunk_means(mean: np.ndarray, count: np.ndarray, z: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Empirical Bayes: between levels the means vary by what is left of their variance after sampling error."""
    overall = z.mean(axis=0)
    error = np.diag(within)[None] / np.maximum(count, 1e-3)[:, None]
    between = np.maximum(
        (count[:, None] * ((mean - overall) ** 2 - error)).sum(axis=0) / count.sum(), 1e-9 * np.diag(within)
    )
    return overall + (mean - overall) * between / (between + error)


def _covariances(
    centred: np.ndarray, code: np.ndarray, count: np.ndarray, within: np.ndarray, own_spread: bool
) -> np.ndarray:
    if not own_spread:
        return np.broadcast_to(within, (len(count), *within.shape))
    columns = within.shape[0]
    outer = np.zeros((len(count), columns, columns))
    np.add.at(outer, code, centred[:, :, None] * centred[:, None, :])
    strength = 5.0 + columns  # rows' worth of the common covariance
    return (outer + strength * within) / (count + strength)[:, None, None]
