"""Ratios of distributions with elliptic contours: the Gaussian and Student's t, on canonical pairs."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, ndtr, stdtrit

from nearfar.estimate.ratios.halves import Half
from nearfar.estimate.samples import MOST_CORRELATION as MOST_OF_RANKS
from nearfar.estimate.samples import Array, Canonical

WIDE = 8  # columns from which it pays to leave out those that say nothing
MOST_CORRELATION = 1 - 1e-6  # of numbers: 6.6 nats
MOST_COMPARED = 10_000  # rows that say how heavy the tails are
PLACES = np.linspace(-6.0, 6.0, 8193)  # of normal scores
DEGREES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)


@dataclass(frozen=True)
class Forms:
    """|x|^2, |y|^2 and the quadratic form of both together, for pairs or for all combinations."""

    x: np.ndarray
    y: np.ndarray
    both: np.ndarray


def _forms(x: Array, y: Array, r: Float[np.ndarray, "pair"], cross: bool) -> Forms:
    """Canonical pair k has covariance ((1, r_k), (r_k, 1)), everything else is white."""
    own = r**2 / (1 - r**2)
    a, b = x[:, : len(r)], y[:, : len(r)]
    x_square, y_square = (x**2).sum(axis=1), (y**2).sum(axis=1)
    x_all, y_all = x_square + a**2 @ own, y_square + b**2 @ own
    mixed = a * (2 * r / (1 - r**2))
    if cross:
        both = x_all[:, None] + y_all[None, :] - mixed @ b.T
        return Forms(x_square[:, None], y_square[None, :], both)
    return Forms(x_square, y_square, x_all + y_all - (mixed * b).sum(axis=1))


@dataclass(frozen=True)
class Gaussian:
    """log r if ranks made normal, or the numbers themselves, were jointly Gaussian; correlations no larger than chance count as none."""

    canonical: Canonical
    plain: bool = False

    @staticmethod
    def fit(
        x: Half, y: Half, seed: int, crossed: bool = False, screened: bool = False, plain: bool = False
    ) -> "Gaussian | None":
        a, b = x.columns(plain), y.columns(plain)
        if x.numbers + y.numbers == 0 or not a.shape[1] or not b.shape[1]:
            return None  # two categories are a table
        if screened:
            return _screened(a, b)
        if max(a.shape[1], b.shape[1]) > len(x) // 3:
            return None
        if crossed and max(a.shape[1], b.shape[1]) < 3:
            return None  # directions are known well: as good as without
        if (
            plain
        ):  # ranks blur what is closer than they are apart, numbers do not; up to there ranks are as good
            beyond = Canonical.fit(a, b, MOST_CORRELATION)
            return Gaussian(beyond, plain) if beyond.correlation.max() > MOST_OF_RANKS else None
        canonical = Canonical.fit(a, b)
        return Gaussian(replace(canonical, correlation=_crossed(a, b, seed)) if crossed else canonical)

    def _value(self, x: Half, y: Half, cross: bool) -> np.ndarray:
        a, b = self.canonical.moved(x.columns(self.plain), y.columns(self.plain))
        r = self.canonical.correlation
        forms = _forms(a, b, r, cross)
        return (forms.x + forms.y - forms.both) / 2 - np.log1p(-(r**2)).sum() / 2

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self._value(x, y, cross=False)

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self._value(x, y, cross=True)


def _screened(x: Array, y: Array) -> Gaussian | None:
    """Of many columns, those alone that are correlated with some column of the other side beyond chance among all pairs."""
    if max(x.shape[1], y.shape[1]) < WIDE:
        return None
    scaled = [(side - side.mean(axis=0)) / (side.std(axis=0) + 1e-12) for side in (x, y)]
    correlation = np.abs(scaled[0].T @ scaled[1] / len(x))
    found = correlation > np.sqrt(2 * np.log(correlation.size) / len(x)) + 1 / np.sqrt(len(x))
    of_x, of_y = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    if not len(of_x) or max(len(of_x), len(of_y)) > len(x) // 3:
        return None
    small = Canonical.fit(x[:, of_x], y[:, of_y])
    x_map, y_map = np.zeros((x.shape[1], small.x_map.shape[1])), np.zeros((y.shape[1], small.y_map.shape[1]))
    x_map[of_x], y_map[of_y] = small.x_map, small.y_map
    return Gaussian(Canonical(x.mean(axis=0), y.mean(axis=0), x_map, y_map, small.correlation))


def _crossed(x: Array, y: Array, seed: int) -> Float[np.ndarray, "pair"]:
    """Canonical correlations as rows see them that the directions were not fitted to: many columns promise more than they keep."""
    order = np.random.default_rng(seed).permutation(len(x))
    found = []
    for unseen in np.array_split(order, 4):
        learned = np.setdiff1d(order, unseen)
        canonical = Canonical.fit(x[learned], y[learned])
        a, b = canonical.moved(x[unseen], y[unseen])
        k = len(canonical.correlation)
        scale = np.sqrt((a[:, :k] ** 2).mean(axis=0) * (b[:, :k] ** 2).mean(axis=0)) + 1e-12
        found.append(np.where(canonical.correlation > 0, (a[:, :k] * b[:, :k]).mean(axis=0) / scale, 0.0))
    shortest = min(len(each) for each in found)
    mean = np.mean([each[:shortest] for each in found], axis=0)
    return np.clip(mean, 0.0, 0.9995)


@cache
def _quantiles(degrees: float) -> Float[np.ndarray, "place"]:
    """Student's quantiles at the probabilities of `PLACES`, on a scale on which they are nearly straight."""
    return np.arcsinh(stdtrit(degrees, ndtr(PLACES)))


def _as_student(normal: np.ndarray, degrees: float) -> np.ndarray:
    """Normal scores as Student's; between places by interpolation, four times as fast as the inverse and off by less than 1e-6."""
    return np.sinh(np.interp(normal, PLACES, _quantiles(degrees)))


@dataclass(frozen=True)
class Student:
    """log r of the copula of a multivariate t: beside correlations, rows that are far out on both sides at once."""

    canonical: Canonical
    degrees: float

    @staticmethod
    def fit(x: Half, y: Half, seed: int) -> "Student | None":
        widest = max(x.numbers, y.numbers)
        if x.code is not None or y.code is not None or widest > len(x) // 10:
            return None
        canonical = Canonical.fit(x.normal, y.normal)
        some = np.arange(min(len(x), MOST_COMPARED))
        found = [Student(canonical, degrees) for degrees in DEGREES]
        return max(found, key=lambda one: float(one.pairs(x[some], y[some]).mean()))

    def _value(self, x: Half, y: Half, cross: bool) -> np.ndarray:
        nu, r = self.degrees, self.canonical.correlation
        sides = [_as_student(half.normal, nu) for half in (x, y)]
        a, b = sides[0] @ self.canonical.x_map, sides[1] @ self.canonical.y_map
        forms = _forms(a, b, r, cross)
        dx, dy = a.shape[1], b.shape[1]
        constant = (
            gammaln((nu + dx + dy) / 2) + gammaln(nu / 2) - gammaln((nu + dx) / 2) - gammaln((nu + dy) / 2)
        )
        return (
            constant
            - np.log1p(-(r**2)).sum() / 2
            - (nu + dx + dy) / 2 * np.log1p(forms.both / nu)
            + (nu + dx) / 2 * np.log1p(forms.x / nu)
            + (nu + dy) / 2 * np.log1p(forms.y / nu)
        )

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self._value(x, y, cross=False)

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self._value(x, y, cross=True)
