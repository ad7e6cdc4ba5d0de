"""Ratios p(x, y) / (p(x) p(y)) of one smooth density with all three read off it: mixtures of Gaussians, kernels.

Both are sums of bells, so marginals need no integral: those of a mixture are mixtures. A kernel ratio with the
distance to the k-th neighbour for a width is what the nearest-neighbour estimator of Kraskov et al. (2004) counts, as a function.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from nearfar.estimate.ratios.halves import Half

MOST_COLUMNS = 6  # of both sides together, for densities without a model
MOST_CENTRES = 1500  # kernels; more cost time and add little
MOST_FITTED = 10_000  # rows a mixture is fitted to,
ROWS_OF_PART = 20  # at least for each of its parts
STEPS, GAIN, RIDGE = (
    60,
    3e-4,
    1e-4,
)  # of expectation maximisation: at most, nats that count as progress, least variance
MOST_LOCAL, LOCAL_TIMES_ROWS = 1000, 1_500_000  # Gaussians of single rows, and times how many rows
MOST_LOCAL_ROWS = 4000  # beyond which a fitted mixture serves better
LOCAL_WIDTH, LOCAL_ROUND = (
    0.5,
    0.03,
)  # of neighbours' covariance; share of it that is the same in all directions
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
        if len(x) < max(2 * free, ROWS_OF_PART * parts):
            return None
        both = np.hstack([half.chosen(plain) for half in (x, y)])[:MOST_FITTED]
        if plain and np.abs(both).max() > LIGHT:
            return None
        return Mixture(*fitted_mixture(both, parts, seed), x.numbers, plain)

    @staticmethod
    def local(x: Half, y: Half, seed: int, neighbours: int, plain: bool = False) -> "Mixture | None":
        """A Gaussian for every row, as wide in every direction as its neighbours are apart: thin along a curve (Vincent & Bengio 2003)."""
        columns = x.numbers + y.numbers
        if x.code is not None or y.code is not None or not 2 <= columns <= MOST_COLUMNS:
            return None
        if not 4 * neighbours <= len(x) <= MOST_LOCAL_ROWS:
            return None
        both = np.hstack([half.chosen(plain) for half in (x, y)])
        if plain and np.abs(both).max() > LIGHT:
            return None
        most = min(MOST_LOCAL, LOCAL_TIMES_ROWS // len(both))
        mean = both[np.random.default_rng(seed).permutation(len(both))[:most]]
        near = mean[cKDTree(mean).query(mean, k=neighbours + 1)[1][:, 1:]] - mean[:, None]
        covariance = LOCAL_WIDTH * np.einsum("kni,knj->kij", near, near) / neighbours
        round_part = np.trace(covariance, axis1=1, axis2=2)[:, None, None] / columns * np.eye(columns)
        covariance += LOCAL_ROUND * round_part + RIDGE * np.eye(columns)
        return Mixture(np.full(len(mean), -np.log(len(mean))), mean, covariance, x.numbers, plain)

    @cached_property
    def _forms(self) -> tuple[np.ndarray, ...]:
        """Every part's weight and log density as coefficients of `_squares`: of x, of y, of both."""
        parts = slice(0, self.split), slice(self.split, None), slice(None)
        found = tuple(_normals(self.mean[:, k], self.covariance[:, k, k]) for k in parts)
        for form in found:
            form[-1] += self.log_weight
        return found

    def _marginals(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray]:
        one, other = (_squares(half.chosen(self.plain)) for half in (x, y))
        return _log_sum(one @ self._forms[0])[0], _log_sum(other @ self._forms[1])[0]

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        p, q = self._marginals(x, y)
        both = np.hstack([x.chosen(self.plain), y.chosen(self.plain)])
        return _log_sum(_squares(both) @ self._forms[2])[0] - p - q

    def cross(self, x: Half, y: Half) -> np.ndarray:
        p, q = self._marginals(x, y)
        at, precision = self.split, np.linalg.inv(self.covariance)
        # each Gaussian in three parts: of x alone, of y alone, and what both say together
        own = [
            _squares(half.chosen(self.plain)) @ _quadratic(self.mean[:, k], precision[:, k, k])
            for half, k in ((x, slice(0, at)), (y, slice(at, None)))
        ]
        constant = self.log_weight - 0.5 * np.linalg.slogdet(2 * np.pi * self.covariance)[1]
        first = (own[0] + constant - p[:, None]).astype(np.float32)
        second = (own[1] - q[:, None]).astype(np.float32)
        a, b = x.chosen(self.plain).astype(np.float32), y.chosen(self.plain).astype(np.float32)
        total = np.full((len(x), len(y)), FLOOR_32, dtype=np.float32)
        for k, mean in enumerate(self.mean.astype(np.float32)):
            part = ((mean[:at] - a) @ precision[k, :at, at:].astype(np.float32)) @ (b - mean[at:]).T
            part += first[:, k, None]
            part += second[None, :, k]
            # sums of ratios, not of densities: they are of moderate size wherever there are data
            total += np.exp(np.minimum(part, MOST_32, out=part), out=part)
        return np.log(total).astype(float)


def fitted_mixture(z: np.ndarray, parts: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log weights, means and covariances by expectation maximisation, from k-means.

    A Gaussian's logarithm is linear in the products of a row's columns, and its moments are their means: both steps are one product of matrices.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is a part without weight
        _, part = kmeans2(z, parts, iter=10, minit="++", rng=np.random.default_rng(seed))
    share = np.full((len(z), parts), 1e-3)
    share[np.arange(len(z)), part] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    columns, squares = z.shape[1], _squares(z)
    before = -np.inf
    for _ in range(STEPS):
        moments = share.T @ squares
        total = moments[:, -1] + 1e-9
        mean = moments[:, -1 - columns : -1] / total[:, None]
        square = (moments[:, : columns**2] / total[:, None]).reshape(parts, columns, columns)
        covariance = square - mean[:, :, None] * mean[:, None, :] + RIDGE * np.eye(columns)
        log_weight = np.log(total / total.sum())
        value, share = _log_sum(squares @ _normals(mean, covariance) + log_weight)
        if value.mean() < before + GAIN:
            break
        before = value.mean()
    return log_weight, mean, covariance


def _squares(z: np.ndarray) -> Float[np.ndarray, "row product"]:
    """Products of all pairs of columns, the columns, and one."""
    products = (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
    return np.hstack([products, z, np.ones((len(z), 1))])


def _quadratic(mean: np.ndarray, precision: np.ndarray) -> Float[np.ndarray, "product part"]:
    """-(z - mean)' precision (z - mean) / 2 of every part, as coefficients of `_squares`."""
    turned = np.einsum("kij,kj->ki", precision, mean)
    rest = -0.5 * (turned * mean).sum(axis=1, keepdims=True)
    return np.hstack([-0.5 * precision.reshape(len(mean), -1), turned, rest]).T


def _normals(mean: np.ndarray, covariance: np.ndarray) -> Float[np.ndarray, "product part"]:
    """The log density of every part, as coefficients of `_squares`."""
    form = _quadratic(mean, np.linalg.inv(covariance))
    form[-1] -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    return form


def _log_sum(log_q: np.ndarray) -> tuple[Float[np.ndarray, "row"], Float[np.ndarray, "row part"]]:
    """log of the sum of each row's exponentials, and each one's share of it."""
    highest = log_q.max(axis=1)
    share = np.exp(log_q - highest[:, None])
    total = share.sum(axis=1)
    share /= total[:, None]
    return np.log(total) + highest, share


@dataclass(frozen=True)
class Kernels:
    """A bell round every training row, as wide as `factor` times its distance to the k-th neighbour in x and y together."""

    x: Float[np.ndarray, "centre dx"]
    y: Float[np.ndarray, "centre dy"]
    width: Float[np.ndarray, "centre"]
    plain: bool

    @staticmethod
    def fit(
        x: Half, y: Half, seed: int, neighbours: int, factor: float = 1.0, plain: bool = False
    ) -> "Kernels | None":
        columns = x.numbers + y.numbers
        if x.code is not None or y.code is not None or columns > MOST_COLUMNS or len(x) <= neighbours:
            return None
        chosen = np.random.default_rng(seed).permutation(len(x))[:MOST_CENTRES]
        a, b = x.chosen(plain)[chosen], y.chosen(plain)[chosen]
        both = np.hstack([a, b])
        if plain and np.abs(both).max() > LIGHT:
            return None
        reach = cKDTree(both).query(both, k=neighbours + 1)[0][:, -1]
        return Kernels(a, b, factor * np.maximum(reach, 1e-3), plain)

    def _both_bells(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray]:
        return self._bells(x.chosen(self.plain), self.x), self._bells(y.chosen(self.plain), self.y)

    def _bells(self, z: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Each centre's density at each row, up to a constant: (row, centre)."""
        # a far row still has some nearest centre: exponents are kept where exp has digits
        form = (cdist(z, centre, "sqeuclidean") / (-2 * self.width**2)).astype(np.float32)
        np.exp(np.maximum(form, -MOST_32, out=form), out=form)
        form /= (self.width ** centre.shape[1]).astype(np.float32)
        return form

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._both_bells(x, y)
        return _log_ratio((a * b).sum(axis=1), a.sum(axis=1), b.sum(axis=1), len(self.width))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._both_bells(x, y)
        return _log_ratio(a @ b.T, a.sum(axis=1)[:, None], b.sum(axis=1)[None, :], len(self.width))


def _log_ratio(joint: np.ndarray, p: np.ndarray, q: np.ndarray, centres: int) -> np.ndarray:
    joint, p, q = (np.maximum(each.astype(float), FLOOR) for each in (joint, p, q))
    return np.log(joint) - np.log(p) - np.log(q) + np.log(centres)
