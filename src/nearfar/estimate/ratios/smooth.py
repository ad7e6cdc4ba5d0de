"""Ratios of a smooth joint density and its marginals: mixtures of Gaussians, fitted or at every row.

A sum of Gaussians has marginals of the same form, which need no integral.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows


@dataclass(frozen=True)
class MixtureRatio:
    """log r of a mixture of Gaussians over (x, y)."""

    log_weight: Float[np.ndarray, "component"]
    mean: Float[np.ndarray, "component column"]
    covariance: Float[np.ndarray, "component column column"]
    x_columns: int
    scaled: bool

    @staticmethod
    def fit(
        x: SideRows, y: SideRows, seed: int, components: int, scaled: bool = False
    ) -> "MixtureRatio | None":
        columns = x.numbers + y.numbers
        parameters = components * (1 + columns + columns * (columns + 1) / 2)
        if x.code is not None or y.code is not None or columns > 2 * settings.MAX_LOCAL_COLUMNS:
            return None
        if len(x) < max(2 * parameters, settings.ROWS_PER_COMPONENT * components):
            return None
        joint = np.hstack([side.values(scaled) for side in (x, y)])[: settings.MAX_MIXTURE_ROWS]
        if scaled and np.abs(joint).max() > settings.MAX_LIGHT_TAIL:
            return None
        return MixtureRatio(*fit_mixture(joint, components, seed), x.numbers, scaled)

    @staticmethod
    def fit_local(
        x: SideRows, y: SideRows, seed: int, neighbours: int, scaled: bool = False
    ) -> "MixtureRatio | None":
        """A Gaussian at every row with the covariance of its neighbours: thin along a curve (Vincent & Bengio
        2003)."""
        columns = x.numbers + y.numbers
        if x.code is not None or y.code is not None or not 2 <= columns <= settings.MAX_LOCAL_COLUMNS:
            return None
        if not 4 * neighbours <= len(x) <= settings.MAX_LOCAL_ROWS:
            return None
        joint = np.hstack([side.values(scaled) for side in (x, y)])
        if scaled and np.abs(joint).max() > settings.MAX_LIGHT_TAIL:
            return None
        count = min(settings.MAX_LOCAL, settings.MAX_LOCAL_WORK // len(joint))
        mean = joint[np.random.default_rng(seed).permutation(len(joint))[:count]]
        offset = mean[cKDTree(mean).query(mean, k=neighbours + 1)[1][:, 1:]] - mean[:, None]
        covariance = settings.LOCAL_WIDTH * np.einsum("kni,knj->kij", offset, offset) / neighbours
        isotropic = np.trace(covariance, axis1=1, axis2=2)[:, None, None] / columns * np.eye(columns)
        covariance += settings.LOCAL_ISOTROPY * isotropic + settings.MIXTURE_RIDGE * np.eye(columns)
        return MixtureRatio(np.full(len(mean), -np.log(len(mean))), mean, covariance, x.numbers, scaled)

    @cached_property
    def _forms(self) -> tuple[np.ndarray, ...]:
        """Weighted log densities of the components of x, of y and of (x, y), as coefficients of `_products`."""
        slices = slice(0, self.x_columns), slice(self.x_columns, None), slice(None)
        forms = tuple(_log_normals(self.mean[:, k], self.covariance[:, k, k]) for k in slices)
        for form in forms:
            form[-1] += self.log_weight
        return forms

    def _log_marginals(self, x: SideRows, y: SideRows) -> tuple[np.ndarray, np.ndarray]:
        first, second = (_products(side.values(self.scaled)) for side in (x, y))
        return _log_sum(first @ self._forms[0])[0], _log_sum(second @ self._forms[1])[0]

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        log_p, log_q = self._log_marginals(x, y)
        joint = np.hstack([x.values(self.scaled), y.values(self.scaled)])
        return _log_sum(_products(joint) @ self._forms[2])[0] - log_p - log_q

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        log_p, log_q = self._log_marginals(x, y)
        split, precision = self.x_columns, np.linalg.inv(self.covariance)
        # the exponent of each Gaussian is a term of x, a term of y, and an interaction
        terms = [
            _products(side.values(self.scaled)) @ _quadratic(self.mean[:, k], precision[:, k, k])
            for side, k in ((x, slice(0, split)), (y, slice(split, None)))
        ]
        constant = self.log_weight - 0.5 * np.linalg.slogdet(2 * np.pi * self.covariance)[1]
        x_term = (terms[0] + constant - log_p[:, None]).astype(np.float32)
        y_term = (terms[1] - log_q[:, None]).astype(np.float32)
        a, b = x.values(self.scaled).astype(np.float32), y.values(self.scaled).astype(np.float32)
        total = np.full((len(x), len(y)), settings.FLOOR_32, dtype=np.float32)
        for k, mean in enumerate(self.mean.astype(np.float32)):
            interaction = precision[k, :split, split:].astype(np.float32)
            exponent = ((mean[:split] - a) @ interaction) @ (b - mean[split:]).T
            exponent += x_term[:, k, None]
            exponent += y_term[None, :, k]
            # ratios, not densities, are summed: they are of moderate size wherever there are data
            total += np.exp(np.minimum(exponent, settings.MAX_EXPONENT_32, out=exponent), out=exponent)
        return np.log(total).astype(float)


def fit_mixture(z: np.ndarray, components: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log weights, means and covariances by expectation maximisation, initialised by k-means.

    A log Gaussian is linear in the products of the columns, and its moments are their means. So each step is
    one product of matrices.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is a component without weight
        _, cluster = kmeans2(z, components, iter=10, minit="++", rng=np.random.default_rng(seed))
    share = np.full((len(z), components), 1e-3)
    share[np.arange(len(z)), cluster] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    columns, products = z.shape[1], _products(z)
    previous = -np.inf
    for _ in range(settings.EM_STEPS):
        moments = share.T @ products
        total = moments[:, -1] + 1e-9
        mean = moments[:, -1 - columns : -1] / total[:, None]
        square = (moments[:, : columns**2] / total[:, None]).reshape(components, columns, columns)
        covariance = square - mean[:, :, None] * mean[:, None, :] + settings.MIXTURE_RIDGE * np.eye(columns)
        log_weight = np.log(total / total.sum())
        log_density, share = _log_sum(products @ _log_normals(mean, covariance) + log_weight)
        if log_density.mean() < previous + settings.EM_GAIN:
            break
        previous = log_density.mean()
    return log_weight, mean, covariance


def _products(z: np.ndarray) -> Float[np.ndarray, "row product"]:
    """All products of two columns, the columns, and 1."""
    products = (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
    return np.hstack([products, z, np.ones((len(z), 1))])


def _quadratic(mean: np.ndarray, precision: np.ndarray) -> Float[np.ndarray, "product component"]:
    """-(z - mean)' precision (z - mean) / 2 of every component, as coefficients of `_products`."""
    linear = np.einsum("kij,kj->ki", precision, mean)
    constant = -0.5 * (linear * mean).sum(axis=1, keepdims=True)
    return np.hstack([-0.5 * precision.reshape(len(mean), -1), linear, constant]).T


def _log_normals(mean: np.ndarray, covariance: np.ndarray) -> Float[np.ndarray, "product component"]:
    """The log density of every component, as coefficients of `_products`."""
    form = _quadratic(mean, np.linalg.inv(covariance))
    form[-1] -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    return form


def _log_sum(log_q: np.ndarray) -> tuple[Float[np.ndarray, "row"], Float[np.ndarray, "row component"]]:
    """log of the sum of exponentials of each row, and the share of each component in it."""
    highest = log_q.max(axis=1)
    share = np.exp(log_q - highest[:, None])
    total = share.sum(axis=1)
    share /= total[:, None]
    return np.log(total) + highest, share
