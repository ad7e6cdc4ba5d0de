"""Ratios of categories: tables of counts, a Gaussian for every level."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows


@dataclass(frozen=True)
class CellMap:
    """Maps a side to one whole number: its category, or the quantile bin of its single number."""

    edges: Float[np.ndarray, "edge"] | None
    count: int

    @staticmethod
    def fit(side: SideRows, bins: int) -> "CellMap | None":
        if side.code is not None and side.numbers == 0:
            return CellMap(None, side.levels)
        if side.code is not None or side.numbers != 1:
            return None
        edges = np.unique(np.quantile(side.normal[:, 0], np.arange(1, bins) / bins))
        return CellMap(edges, len(edges) + 1)

    def __call__(self, side: SideRows) -> Int[np.ndarray, "row"]:
        if self.edges is None:
            return side.level_codes
        return np.searchsorted(self.edges, side.normal[:, 0], "right")


@dataclass(frozen=True)
class TableRatio:
    """log r of the cells of x and y, from counts shrunk towards independence.

    Bins: r = (n_xy + s p(y)) / ((n_x + s) p(y)), the Dirichlet posterior mean. Two categories: absolute
    discounting, (n_xy - d + d t_x p(y)) / (n_x p(y)) with t_x the number of occupied cells of the row (Ney et al.
    1994). Either is averaged with the same for x and y exchanged. An unseen level gives log r = 0.
    """

    x: CellMap
    y: CellMap
    log_ratio: Float[np.ndarray, "x_cell y_cell"]  # last row and column: unseen levels

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, bins: int) -> "TableRatio | None":
        cells_x, cells_y = CellMap.fit(x, bins), CellMap.fit(y, bins)
        if cells_x is None or cells_y is None or cells_x.count * cells_y.count > settings.MAX_CELLS:
            return None
        binned = cells_x.edges is not None or cells_y.edges is not None
        if binned != (bins > 0):
            return None  # numbers need bins, two categories do not
        counts = np.zeros((cells_x.count, cells_y.count))
        np.add.at(counts, (cells_x(x), cells_y(y)), 1.0)
        shrink = _posterior_mean if binned else _discount
        ratio = np.maximum((shrink(counts) + shrink(counts.T).T) / 2, settings.MIN_TABLE_RATIO)
        return TableRatio(cells_x, cells_y, np.pad(np.log(ratio), ((0, 1), (0, 1))))

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.log_ratio[self.x(x), self.y(y)]

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.log_ratio[np.ix_(self.x(x), self.y(y))]


def _posterior_mean(counts: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "row column"]:
    """p(column | row) / p(column), with the margin as a prior worth `TABLE_PRIOR_ROWS` rows."""
    p, q = counts.sum(axis=1, keepdims=True), counts.sum(axis=0, keepdims=True) / counts.sum()
    return (counts + settings.TABLE_PRIOR_ROWS * q) / (
        (p + settings.TABLE_PRIOR_ROWS) * np.maximum(q, settings.MIN_TABLE_RATIO)
    )


def _discount(counts: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "row column"]:
    """p(column | row) / p(column) by absolute discounting.

    The discount comes from cells with one and two rows.
    """
    singles, doubles = float((counts == 1).sum()), float((counts == 2).sum())
    discount = np.clip(
        singles / max(singles + 2 * doubles, 1.0), settings.MIN_DISCOUNT, settings.MAX_DISCOUNT
    )
    p = np.maximum(counts.sum(axis=1, keepdims=True), settings.MIN_TABLE_RATIO)
    q = counts.sum(axis=0, keepdims=True) / counts.sum()
    occupied = (counts > 0).sum(axis=1, keepdims=True)
    return (
        np.maximum(counts - discount, 0.0) / np.maximum(q, settings.MIN_TABLE_RATIO) + discount * occupied
    ) / p


@dataclass(frozen=True)
class LevelGaussianRatio:
    """x a category, y numbers that are Gaussian in every level; moments are shrunk towards those of all levels.

    r = q(y | level) / sum over levels of p(level) q(y | level), as in Barber & Agakov (2003).
    """

    scaled: bool
    log_share: Float[np.ndarray, "level"]
    mean: Float[np.ndarray, "level column"]
    root: Float[np.ndarray, "level column column"]  # inverse Cholesky factors of the covariances

    @staticmethod
    def fit(
        x: SideRows, y: SideRows, seed: int, scaled: bool, own_covariance: bool
    ) -> "LevelGaussianRatio | None":
        if x.code is None or x.numbers or y.code is not None or not y.numbers:
            return None
        if x.levels > len(x):
            return None  # combinations of several categories, most of which never occur
        z = y.scaled if scaled else y.normal
        if z.shape[1] > settings.MAX_LEVEL_GAUSSIAN_COLUMNS or len(z) < 5 * z.shape[1]:
            return None
        z = np.clip(z, -settings.FAR, settings.FAR)
        code, levels = x.level_codes, x.levels
        count = np.bincount(code, minlength=levels).astype(float)
        mean = np.stack([np.bincount(code, column, levels) for column in z.T], axis=1)
        mean = mean / np.maximum(count, 1)[:, None]
        centred = z - mean[code]
        within = centred.T @ centred / max(1, len(z) - levels) + 1e-6 * np.eye(z.shape[1])
        mean = _shrink_means(mean, count, z, within)
        covariance = _level_covariances(z - mean[code], code, count, within, own_covariance)
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        log_share = np.log(np.maximum(count, 1e-3) / count.sum())
        return LevelGaussianRatio(scaled, log_share, mean, root)

    def _level_log_ratios(self, y: SideRows) -> Float[np.ndarray, "level row"]:
        """log q(y | level) - log q(y); the last level is an unseen one."""
        z = np.clip(y.scaled if self.scaled else y.normal, -settings.FAR, settings.FAR)
        white = np.einsum("kij,knj->kni", self.root, z[None] - self.mean[:, None])
        log_q = -0.5 * (white**2).sum(axis=2) + np.log(np.einsum("kii->ki", self.root)).sum(axis=1)[:, None]
        log_q -= logsumexp(log_q + self.log_share[:, None], axis=0)
        return np.vstack([log_q, np.zeros(len(z))])

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._level_log_ratios(y)[x.level_codes, np.arange(len(x))]

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._level_log_ratios(y)[x.level_codes]


def _shrink_means(mean: np.ndarray, count: np.ndarray, z: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Empirical Bayes: means vary between levels by their variance less the sampling error."""
    overall = z.mean(axis=0)
    error = np.diag(within)[None] / np.maximum(count, 1e-3)[:, None]
    between = np.maximum(
        (count[:, None] * ((mean - overall) ** 2 - error)).sum(axis=0) / count.sum(), 1e-9 * np.diag(within)
    )
    return overall + (mean - overall) * between / (between + error)


def _level_covariances(
    centred: np.ndarray, code: np.ndarray, count: np.ndarray, within: np.ndarray, own_covariance: bool
) -> Float[np.ndarray, "level column column"]:
    if not own_covariance:
        return np.broadcast_to(within, (len(count), *within.shape))
    columns = within.shape[0]
    outer = np.zeros((len(count), columns, columns))
    np.add.at(outer, code, centred[:, :, None] * centred[:, None, :])
    strength = 5.0 + columns  # weight of the common covariance, in rows
    return (outer + strength * within) / (count + strength)[:, None, None]
