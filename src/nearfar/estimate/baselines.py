"""Baselines without a network: Gaussian (canonical correlations) and KSG (nearest neighbours)."""

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.special import digamma

from nearfar.estimate.samples import Array, whitening

NEIGHBOURS = 5
TREE_COLUMNS = 10  # beyond, a search tree visits nearly all pairs
MOST_POINTS = 3000  # for all pairs,
MOST_IN_TREE = 30_000  # and for a tree: a baseline need not take minutes


def gaussian_information(x: Array, y: Array) -> float:
    """I if (x, y) were jointly Gaussian: -1/2 sum_k log(1 - rho_k^2) over the canonical correlations.

    Less what chance alone adds, dx dy / 2n to first order, and never below zero.
    """
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    x_white, y_white = whitening(x), whitening(y)
    rho = np.linalg.svd(x_white.T @ (x.T @ y / len(x)) @ y_white, compute_uv=False)
    plain = -0.5 * np.log1p(-(np.minimum(rho, 1 - 1e-12) ** 2)).sum()
    return float(max(0.0, plain - x_white.shape[1] * y_white.shape[1] / (2 * len(x))))


def ksg_information(x: Array, y: Array, seed: int = 0, neighbours: int = NEIGHBOURS) -> float:
    """Kraskov, Stögbauer and Grassberger's first estimator: psi(k) + psi(n) - <psi(n_x + 1) + psi(n_y + 1)>,
    where n_x and n_y count the points strictly nearer in x or in y alone than the k-th neighbour in both."""
    few = x.shape[1] + y.shape[1] <= TREE_COLUMNS
    chosen = np.random.default_rng(seed).permutation(len(x))[: MOST_IN_TREE if few else MOST_POINTS]
    x, y = _apart(x[chosen], seed), _apart(y[chosen], seed + 1)
    inside = _counts_by_tree(x, y, neighbours) if few else _counts_by_all_pairs(x, y, neighbours)
    return float(digamma(neighbours) + digamma(len(x)) - sum(digamma(count).mean() for count in inside))


def _counts_by_tree(x: Array, y: Array, neighbours: int) -> list[Float[np.ndarray, "sample"]]:
    """n_x + 1 and n_y + 1: how many points lie nearer than the k-th neighbour, each point itself among them."""
    together = cKDTree(np.concatenate([x, y], axis=1))
    reach = np.nextafter(together.query(together.data, k=neighbours + 1, p=np.inf)[0][:, -1], 0)
    counts = [cKDTree(z).query_ball_point(z, reach, p=np.inf, return_length=True) for z in (x, y)]
    return [np.asarray(count, dtype=float) for count in counts]


def _counts_by_all_pairs(x: Array, y: Array, neighbours: int) -> list[Float[np.ndarray, "sample"]]:
    """The same without trees, which visit nearly every pair in many dimensions and more slowly."""
    apart = [cdist(z, z, "chebyshev") for z in (x, y)]
    reach = np.partition(np.maximum(*apart), neighbours, axis=1)[:, neighbours]
    return [(distance < reach[:, None]).sum(axis=1).astype(float) for distance in apart]


def _apart(side: Array, seed: int) -> Array:
    """Standardised, and moved by a hair, so that equal values do not stand at distance zero."""
    scaled = (side - side.mean(axis=0)) / side.std(axis=0)
    return scaled + 1e-8 * np.random.default_rng(seed).normal(size=side.shape)
