"""Baselines of mutual information: Gaussian (canonical correlations) and KSG (nearest neighbours)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.special import digamma

from nearfar.estimate import settings
from nearfar.estimate.samples import Array, SamplePair, whitening


@dataclass(frozen=True)
class References:
    """The number of columns of either side, and what KSG says about them."""

    columns: tuple[int, int] = (1, 1)
    ksg: float = 0.0

    @staticmethod
    def of(pair: SamplePair, seed: int) -> "References":
        columns = pair.x.shape[1], pair.y.shape[1]
        return References(columns, max(0.0, ksg_information(pair.x, pair.y, seed)))


def gaussian_information(x: Array, y: Array) -> float:
    """-1/2 sum_k log(1 - rho_k^2) over the canonical correlations: the information of jointly Gaussian (x,
    y).

    Less the expected value under independence, dx dy / 2n to first order, and never below zero.
    """
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    x_white, y_white = whitening(x), whitening(y)
    rho = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white, compute_uv=False)
    nats = -0.5 * np.log1p(-(np.minimum(rho, 1 - 1e-12) ** 2)).sum()
    return float(max(0.0, nats - x_white.shape[1] * y_white.shape[1] / (2 * len(x))))


def ksg_information(x: Array, y: Array, seed: int = 0, neighbours: int = settings.KSG_NEIGHBOURS) -> float:
    """psi(k) + psi(n) - <psi(n_x + 1) + psi(n_y + 1)>, the first estimator of Kraskov et al. (2004).

    n_x and n_y count the points that are strictly nearer in x or in y than the k-th neighbour in both.
    """
    use_tree = x.shape[1] + y.shape[1] <= settings.MAX_TREE_COLUMNS
    rows = np.random.default_rng(seed).permutation(len(x))[
        : settings.MAX_TREE_ROWS if use_tree else settings.MAX_DENSE_ROWS
    ]
    x, y = _without_ties(x[rows], seed), _without_ties(y[rows], seed + 1)
    counts = _tree_counts(x, y, neighbours) if use_tree else _dense_counts(x, y, neighbours)
    return float(digamma(neighbours) + digamma(len(x)) - sum(digamma(count).mean() for count in counts))


def _tree_counts(x: Array, y: Array, neighbours: int) -> list[Float[np.ndarray, "sample"]]:
    """n_x + 1 and n_y + 1 by search trees; each point counts itself."""
    joint = cKDTree(np.concatenate([x, y], axis=1))
    radius = np.nextafter(joint.query(joint.data, k=neighbours + 1, p=np.inf)[0][:, -1], 0)
    counts = [cKDTree(z).query_ball_point(z, radius, p=np.inf, return_length=True) for z in (x, y)]
    return [np.asarray(count, dtype=float) for count in counts]


def _dense_counts(x: Array, y: Array, neighbours: int) -> list[Float[np.ndarray, "sample"]]:
    """n_x + 1 and n_y + 1 from all pairs, which is faster in many dimensions."""
    distances = [cdist(z, z, "chebyshev") for z in (x, y)]
    radius = np.partition(np.maximum(*distances), neighbours, axis=1)[:, neighbours]
    return [(distance < radius[:, None]).sum(axis=1).astype(float) for distance in distances]


def _without_ties(side: Array, seed: int) -> Array:
    """Standardised columns with tiny noise, so that equal values have a positive distance."""
    standardised = (side - side.mean(axis=0)) / side.std(axis=0)
    return standardised + 1e-8 * np.random.default_rng(seed).normal(size=side.shape)
