"""Ratios of elliptic distributions on canonical pairs: Gaussian, Student's t."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, ndtr, stdtrit

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.samples import Array, CanonicalMap

PLACES = np.linspace(*settings.STUDENT_PLACES)


@dataclass(frozen=True)
class QuadraticForms:
    """|x|^2, |y|^2 and the joint quadratic form, of pairs or of all combinations."""

    x: np.ndarray
    y: np.ndarray
    joint: np.ndarray


def _quadratic_forms(x: Array, y: Array, r: Float[np.ndarray, "pair"], cross: bool) -> QuadraticForms:
    """Canonical pair k has covariance ((1, r_k), (r_k, 1)); all other columns are white."""
    weight = r**2 / (1 - r**2)
    a, b = x[:, : len(r)], y[:, : len(r)]
    x_square, y_square = (x**2).sum(axis=1), (y**2).sum(axis=1)
    x_form, y_form = x_square + a**2 @ weight, y_square + b**2 @ weight
    mixed = a * (2 * r / (1 - r**2))
    if cross:
        joint = x_form[:, None] + y_form[None, :] - mixed @ b.T
        return QuadraticForms(x_square[:, None], y_square[None, :], joint)
    return QuadraticForms(x_square, y_square, x_form + y_form - (mixed * b).sum(axis=1))


@dataclass(frozen=True)
class GaussianRatio:
    """log r of a joint Gaussian of normal ranks or of scaled numbers.

    Correlations within chance count as zero.
    """

    canonical: CanonicalMap
    scaled: bool = False

    @staticmethod
    def fit(
        x: SideRows,
        y: SideRows,
        seed: int,
        crossed: bool = False,
        scaled: bool = False,
    ) -> "GaussianRatio | None":
        """`crossed`: correlations by cross-validation. `scaled`: on numbers instead of ranks, where they
        correlate more than ranks can resolve."""
        a, b = x.columns(scaled), y.columns(scaled)
        if x.numbers + y.numbers == 0 or not a.shape[1] or not b.shape[1]:
            return None  # two categories have a table
        if max(a.shape[1], b.shape[1]) > len(x) // 3:
            return None
        if crossed and max(a.shape[1], b.shape[1]) < 3:
            return None  # with few columns cross-validation changes nothing
        if scaled:
            canonical = CanonicalMap.fit(a, b, settings.MAX_SCALED_CORRELATION)
            return (
                GaussianRatio(canonical, scaled)
                if canonical.correlation.max() > settings.MAX_CORRELATION
                else None
            )
        canonical = CanonicalMap.fit(a, b)
        if crossed:
            canonical = replace(canonical, correlation=_cross_validated_correlation(a, b, seed))
        return GaussianRatio(canonical)

    def _log_ratio(self, x: SideRows, y: SideRows, cross: bool) -> np.ndarray:
        a, b = self.canonical.transform(x.columns(self.scaled), y.columns(self.scaled))
        r = self.canonical.correlation
        forms = _quadratic_forms(a, b, r, cross)
        return (forms.x + forms.y - forms.joint) / 2 - np.log1p(-(r**2)).sum() / 2

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._log_ratio(x, y, cross=False)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._log_ratio(x, y, cross=True)


def _cross_validated_correlation(x: Array, y: Array, seed: int) -> Float[np.ndarray, "pair"]:
    """Canonical correlations on rows that the directions were not fitted to: with many columns they are
    smaller."""
    order = np.random.default_rng(seed).permutation(len(x))
    correlations = []
    for unseen in np.array_split(order, 4):
        train = np.setdiff1d(order, unseen)
        canonical = CanonicalMap.fit(x[train], y[train])
        a, b = canonical.transform(x[unseen], y[unseen])
        k = len(canonical.correlation)
        scale = np.sqrt((a[:, :k] ** 2).mean(axis=0) * (b[:, :k] ** 2).mean(axis=0)) + 1e-12
        unseen_correlation = (a[:, :k] * b[:, :k]).mean(axis=0) / scale
        correlations.append(np.where(canonical.correlation > 0, unseen_correlation, 0.0))
    shortest = min(len(correlation) for correlation in correlations)
    mean = np.mean([correlation[:shortest] for correlation in correlations], axis=0)
    return np.clip(mean, 0.0, settings.MAX_CORRELATION)


@cache
def _student_quantiles(degrees: float) -> Float[np.ndarray, "place"]:
    """arcsinh of Student's quantiles at the probabilities of `PLACES`; nearly linear on that scale."""
    return np.arcsinh(stdtrit(degrees, ndtr(PLACES)))


def _normal_to_student(normal: np.ndarray, degrees: float) -> np.ndarray:
    """Student's scores by interpolation: four times as fast as the inverse, with an error below 1e-6."""
    return np.sinh(np.interp(normal, PLACES, _student_quantiles(degrees)))


@dataclass(frozen=True)
class StudentRatio:
    """log r of the copula of a multivariate t: beside correlations, joint outliers."""

    canonical: CanonicalMap
    degrees: float

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int) -> "StudentRatio | None":
        widest = max(x.numbers, y.numbers)
        if x.code is not None or y.code is not None or widest > len(x) // 10:
            return None
        canonical = CanonicalMap.fit(x.normal, y.normal)
        rows = np.arange(min(len(x), settings.MAX_DEGREES_ROWS))
        candidates = [StudentRatio(canonical, degrees) for degrees in settings.DEGREES]
        return max(candidates, key=lambda ratio: float(ratio.pairs(x[rows], y[rows]).mean()))

    def _log_ratio(self, x: SideRows, y: SideRows, cross: bool) -> np.ndarray:
        nu, r = self.degrees, self.canonical.correlation
        sides = [_normal_to_student(side.normal, nu) for side in (x, y)]
        a, b = sides[0] @ self.canonical.x_map, sides[1] @ self.canonical.y_map
        forms = _quadratic_forms(a, b, r, cross)
        dx, dy = a.shape[1], b.shape[1]
        constant = (
            gammaln((nu + dx + dy) / 2) + gammaln(nu / 2) - gammaln((nu + dx) / 2) - gammaln((nu + dy) / 2)
        )
        return (
            constant
            - np.log1p(-(r**2)).sum() / 2
            - (nu + dx + dy) / 2 * np.log1p(forms.joint / nu)
            + (nu + dx) / 2 * np.log1p(forms.x / nu)
            + (nu + dy) / 2 * np.log1p(forms.y / nu)
        )

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._log_ratio(x, y, cross=False)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._log_ratio(x, y, cross=True)
