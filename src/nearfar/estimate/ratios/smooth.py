"""Ratios p(x, y) / (p(x) p(y)) of one smooth density with all three read off it: mixtures of Gaussians, kernels.

Both are sums of bells, so marginals need no integral: those of a mixture are mixtures. A kernel ratio with the
distance to the k-th neighbour for a width is what the nearest-neighbour estimator of Kraskov et al. (2004) counts, as a function.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from nearfar.estimate.ratios.halves import Half

MOST_COLUMNS = 6  # of both sides together, for densities without a model
MOST_CENTRES = 1500  # kernels; more cost time and add little
MOST_FITTED = 10_000  # rows a mixture is fitted to
STEPS, GAIN, RIDGE = (
    60,
    3e-4,
    1e-4,
)  # of expectation maximisation: at most, nats that count as progress, least variance
LIGHT = 4.0  # spreads from the middle: Gaussians do not follow heavier tails than that
FLOOR = 1e-300
FLOOR_32, MOST_32 = np.float32(1e-30), np.float32(80.0)  # e^80 is still a float32


@dataclass(frozen=True)
class Mixture:
    """Gaussians with weights, means and precisions over x and y together."""

    log_weight: Float[np.ndarray, "part"]
    mean: Float[np.ndarray, "part column"]
    covariance: Float[np.ndarray, "part column column"]
    split: int  # columns of x
    plain: bool

    @staticmethod
    def fit(x: Half, y: Half, seed: int, parts: int, plain: bool = False) -> "Mixture | None":
        columns = x.numbers + y.numbers
        free = parts * (1 + columns + columns * (columns + 1) / 2)
        if x.code is not None or y.code is not None or columns > 2 * MOST_COLUMNS:
            return None
        if len(x) < max(2 * free, 40 * parts):
            return None
        both = np.hstack([half.chosen(plain) for half in (x, y)])[:MOST_FITTED]
        if plain and np.abs(both).max() > LIGHT:
            return None
        return Mixture(*fitted_mixture(both, parts, seed), x.numbers, plain)

    def _side(self, z: np.ndarray, columns: slice) -> np.ndarray:
        """log density of each part in some of the columns: (part, row)."""
        return np.stack(
            [
                _log_normal(z - m[columns], c[columns, columns])
                for m, c in zip(self.mean, self.covariance, strict=True)
            ]
        )

    def _marginals(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray]:
        at = self.split
        one = self._side(x.chosen(self.plain), slice(0, at))
        other = self._side(y.chosen(self.plain), slice(at, None))
        weight = self.log_weight[:, None]
        return logsumexp(one + weight, axis=0), logsumexp(other + weight, axis=0)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        joint = (
            self._side(np.hstack([x.chosen(self.plain), y.chosen(self.plain)]), slice(None))
            + self.log_weight[:, None]
        )
        p, q = self._marginals(x, y)
        return logsumexp(joint, axis=0) - p - q

    def cross(self, x: Half, y: Half) -> np.ndarray:
        a, b = x.chosen(self.plain), y.chosen(self.plain)
        p, q = (side.astype(np.float32) for side in self._marginals(x, y))
        total = np.full((len(x), len(y)), FLOOR_32, dtype=np.float32)
        for log_weight, mean, covariance in zip(self.log_weight, self.mean, self.covariance, strict=True):
            part = self._joint(a, b, mean, covariance).astype(np.float32)
            part += np.float32(log_weight)
            part -= p[:, None]
            part -= q[None, :]
            # sums of ratios, not of densities: they are of moderate size wherever there are data
            total += np.exp(np.minimum(part, MOST_32, out=part), out=part)
        return np.log(total).astype(float)

    def _joint(self, x: np.ndarray, y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        at = self.split
        precision = np.linalg.inv(covariance)
        a, b = x - mean[:at], y - mean[at:]
        own_x = ((a @ precision[:at, :at]) * a).sum(axis=1)
        own_y = ((b @ precision[at:, at:]) * b).sum(axis=1)
        form = own_x[:, None] + own_y[None, :] + 2 * (a @ precision[:at, at:]) @ b.T
        return -0.5 * (form + np.linalg.slogdet(2 * np.pi * covariance)[1])


def fitted_mixture(z: np.ndarray, parts: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log weights, means and covariances by expectation maximisation, from k-means."""
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is a part without weight
        _, part = kmeans2(z, parts, iter=10, minit="++", rng=rng)
    share = np.full((len(z), parts), 1e-3)
    share[np.arange(len(z)), part] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    ridge = RIDGE * np.eye(z.shape[1])
    before = -np.inf
    for _ in range(STEPS):
        total = share.sum(axis=0) + 1e-9
        mean = share.T @ z / total[:, None]
        # second moments less the mean's own, all parts by one product
        square = (share.T @ (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)).reshape(parts, *ridge.shape)
        covariance = square / total[:, None, None] - mean[:, :, None] * mean[:, None, :] + ridge
        log_weight = np.log(total / total.sum())
        log_q = (
            np.stack([_log_normal(z - m, c) for m, c in zip(mean, covariance, strict=True)], axis=1)
            + log_weight
        )
        value = logsumexp(log_q, axis=1)
        share = np.exp(log_q - value[:, None])
        if value.mean() < before + GAIN:
            break
        before = value.mean()
    return log_weight, mean, covariance


def _log_normal(centred: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    root = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(root, centred.T)
    constant = len(root) * np.log(2 * np.pi) / 2 + np.log(np.diag(root)).sum()
    return -0.5 * (whitened**2).sum(axis=0) - constant


@dataclass(frozen=True)
class Kernels:
    """A bell round every training row, as wide as `factor` times its distance to the k-th neighbour in x and y together."""

    x: Float[np.ndarray, "centre dx"]
    y: Float[np.ndarray, "centre dy"]
    width: Float[np.ndarray, "centre"]

    @staticmethod
    def fit(x: Half, y: Half, seed: int, neighbours: int, factor: float = 1.0) -> "Kernels | None":
        columns = x.numbers + y.numbers
        if x.code is not None or y.code is not None or columns > MOST_COLUMNS:
            return None
        chosen = np.random.default_rng(seed).permutation(len(x))[:MOST_CENTRES]
        a, b = x.normal[chosen], y.normal[chosen]
        both = np.hstack([a, b])
        reach = cKDTree(both).query(both, k=neighbours + 1)[0][:, -1]
        return Kernels(a, b, factor * np.maximum(reach, 1e-3))

    def _bells(self, z: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Each centre's density at each row, up to a constant: (row, centre)."""
        # a far row still has some nearest centre: exponents are kept where exp has digits
        form = (cdist(z, centre, "sqeuclidean") / (-2 * self.width**2)).astype(np.float32)
        np.exp(np.maximum(form, -MOST_32, out=form), out=form)
        form /= (self.width ** centre.shape[1]).astype(np.float32)
        return form

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._bells(x.normal, self.x), self._bells(y.normal, self.y)
        return _log_ratio((a * b).sum(axis=1), a.sum(axis=1), b.sum(axis=1), len(self.width))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._bells(x.normal, self.x), self._bells(y.normal, self.y)
        return _log_ratio(a @ b.T, a.sum(axis=1)[:, None], b.sum(axis=1)[None, :], len(self.width))


def _log_ratio(joint: np.ndarray, p: np.ndarray, q: np.ndarray, centres: int) -> np.ndarray:
    joint, p, q = (np.maximum(each.astype(float), FLOOR) for each in (joint, p, q))
    return np.log(joint) - np.log(p) - np.log(q) + np.log(centres)
