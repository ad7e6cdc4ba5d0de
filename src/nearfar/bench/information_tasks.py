"""The 40 tasks of Czyż et al. 2023 ("Beyond Normal"), with exact truth and exact log ratio per row.

Every task is a base distribution of (x, y) and a one-to-one map of each side, which leaves information and
log ratio as they are. Bases: a Gaussian, Student's t, and a uniform number with uniform noise. Written from
the paper's description with numpy alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, ndtr, psi

SideArray = Float[np.ndarray, "row column"]
SideTransform = Callable[[SideArray], SideArray]
CORRELATION = 0.75  # of the one-dimensional Gaussian tasks
DENSE, PAIR = 0.5, 0.8  # off the diagonal of the dense covariance; of each of two related pairs


@dataclass(frozen=True)
class InformationTask:
    """A base (dispersion of x and y together; `df` infinite: a Gaussian) and a map of each side."""

    name: str
    columns: tuple[int, int]
    dispersion: Float[np.ndarray, "all all"]
    df: float = math.inf
    noise: float = 0.0  # half-width of uniform noise on a uniform x; then the dispersion is not read
    maps: tuple[tuple[SideTransform, ...], tuple[SideTransform, ...]] = ((), ())

    def mapped(self, name: str, x: SideTransform, y: SideTransform | None = None) -> "InformationTask":
        maps = ((*self.maps[0], x), (*self.maps[1], y or x))
        return replace(self, name=f"{name} @ {self.name}", maps=maps)

    def sample(self, rows: int, seed: int) -> tuple[SideArray, SideArray, Float[np.ndarray, "row"]]:
        """x, y and the log ratio of each row."""
        x, y = self.draw(rows, np.random.default_rng([seed, rows]))
        log_ratio = self.log_ratio(x, y)
        for change in self.maps[0]:
            x = change(x)
        for change in self.maps[1]:
            y = change(y)
        return x, y, log_ratio

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[SideArray, SideArray]:
        """x and y of the base."""
        if self.noise:
            x = rng.random((rows, 1))
            return x, x + rng.uniform(-self.noise, self.noise, size=(rows, 1))
        z = rng.normal(size=(rows, sum(self.columns))) @ np.linalg.cholesky(self.dispersion).T
        if math.isfinite(self.df):
            z *= np.sqrt(self.df / rng.chisquare(self.df, size=(rows, 1)))
        return z[:, : self.columns[0]], z[:, self.columns[0] :]

    def log_ratio(self, x: SideArray, y: SideArray) -> Float[np.ndarray, "row"]:
        """log p(x, y) / (p(x) p(y)) of rows of the base."""
        if self.noise:
            reach = np.minimum(1, y + self.noise) - np.maximum(0, y - self.noise)  # of x, given y
            inside = np.abs(y - x)[:, 0] <= self.noise
            return np.where(inside, -np.log(np.maximum(reach[:, 0], 1e-300)), -np.inf)
        forms = [
            self._log_density(z, columns)
            for z, columns in zip((np.hstack([x, y]), x, y), self._parts, strict=True)
        ]
        return forms[0] - forms[1] - forms[2]

    @property
    def _parts(self) -> tuple[slice, slice, slice]:
        return slice(None), slice(0, self.columns[0]), slice(self.columns[0], None)

    def _log_density(self, z: SideArray, columns: slice) -> Float[np.ndarray, "row"]:
        """Up to constants that cancel in the ratio."""
        root = np.linalg.cholesky(self.dispersion[columns, columns])
        form = (np.linalg.solve(root, z.T) ** 2).sum(axis=0)
        log_root, d = float(np.log(np.diag(root)).sum()), len(root)
        if not math.isfinite(self.df):
            return -0.5 * form - log_root
        constant = gammaln((self.df + d) / 2) - gammaln(self.df / 2) - d / 2 * math.log(self.df)
        return constant - log_root - (self.df + d) / 2 * np.log1p(form / self.df)

    @cached_property
    def truth(self) -> float:
        """Nats."""
        if self.noise:
            e = self.noise
            return e - math.log(2 * e) if e <= 0.5 else 1 / (4 * e)
        log_det = [np.linalg.slogdet(self.dispersion[part, part])[1] for part in self._parts]
        gaussian = float(log_det[1] + log_det[2] - log_det[0]) / 2
        if not math.isfinite(self.df):
            return gaussian

        def entropy(d: int) -> float:
            half = (self.df + d) / 2
            size = gammaln(self.df / 2) - gammaln(half) + d / 2 * math.log(self.df)
            return float(size + half * (psi(half) - psi(self.df / 2)))

        dx, dy = self.columns
        return gaussian + entropy(dx) + entropy(dy) - entropy(dx + dy)


def dense(d: int) -> InformationTask:
    """All columns correlated with all."""
    matrix = np.full((2 * d, 2 * d), DENSE) + (1 - DENSE) * np.eye(2 * d)
    return InformationTask(f"Multinormal {d} × {d} (dense)", (d, d), matrix)


def two_pairs(d: int) -> InformationTask:
    """Two columns of x are each correlated with one of y; the others say nothing."""
    matrix = np.eye(2 * d)
    for k in range(2):
        matrix[k, d + k] = matrix[d + k, k] = PAIR
    return InformationTask(f"Multinormal {d} × {d} (2-pair)", (d, d), matrix)


def student(d: int, df: int) -> InformationTask:
    """No correlation: rows share their size alone."""
    return InformationTask(f"Student-t {d} × {d} (dof={df})", (d, d), np.eye(2 * d), df=df)


def additive(noise: float) -> InformationTask:
    return InformationTask(f"Uniform 1 × 1 (additive noise={noise:g})", (1, 1), np.eye(2), noise=noise)


def half_cube(z: SideArray) -> SideArray:
    return z * np.sqrt(np.abs(z))


def wiggly_x(x: SideArray) -> SideArray:
    return x + 0.4 * np.sin(x) + 0.2 * np.sin(1.7 * x + 1) + 0.03 * np.sin(3.3 * x - 2.5)


def wiggly_y(y: SideArray) -> SideArray:
    return y - 0.4 * np.sin(0.4 * y) + 0.17 * np.sin(1.3 * y + 3.5) + 0.02 * np.sin(4.3 * y - 2.5)


def swiss_roll(x: SideArray) -> SideArray:
    """One number in (0, 1) as a point on a spiral in the plane."""
    t = 1.5 * np.pi * (1 + 2 * x)
    return np.hstack([t * np.cos(t), t * np.sin(t)]) / 21


def spiral(z: SideArray, first: int) -> SideArray:
    """Turns columns `first` and the next by an angle of the squared length over the number of columns."""
    angle = (z**2).sum(axis=1) / z.shape[1]
    turned = z.copy()
    a, b = z[:, first], z[:, first + 1]
    turned[:, first] = np.cos(angle) * a - np.sin(angle) * b
    turned[:, first + 1] = np.sin(angle) * a + np.cos(angle) * b
    return turned


def two_modes(z: SideArray, weight: float, low: float, high: float) -> SideArray:
    """The quantile function of a mixture of two unit normals at the normal's own quantiles, by bisection."""
    share = ndtr(z)
    bottom, top = np.full_like(z, low - 40), np.full_like(z, high + 40)
    for _ in range(80):
        middle = (bottom + top) / 2
        is_below = weight * ndtr(middle - low) + (1 - weight) * ndtr(middle - high) < share
        bottom, top = np.where(is_below, middle, bottom), np.where(is_below, top, middle)
    return (bottom + top) / 2


def information_tasks() -> list[InformationTask]:
    """The tasks in the order of the paper's table of results."""
    matrix = np.array([[1, CORRELATION], [CORRELATION, 1]])
    normal = InformationTask("Normal 1 × 1", (1, 1), matrix)
    uniform = replace(normal.mapped("Uniform", ndtr), name="Uniform 1 × 1")
    modes = partial(two_modes, weight=0.3, low=0, high=5), partial(two_modes, weight=0.5, low=-1, high=3)
    turns = partial(spiral, first=0), partial(spiral, first=1)
    widths = (3, 5, 25)
    return [
        normal,
        uniform,
        additive(0.1),
        additive(0.75),
        replace(normal.mapped("Bimodal", *modes), name="Bimodal 1 × 1"),
        replace(normal.mapped("Wiggly", wiggly_x, wiggly_y), name="Wiggly @ Normal 1 × 1"),
        normal.mapped("Half-cube", half_cube),
        student(1, 1),
        student(1, 1).mapped("Asinh", np.arcsinh),
        replace(uniform.mapped("Swiss roll", swiss_roll, _same), name="Swiss roll 2 × 1"),
        *(dense(d) for d in (2, 3, 5, 25, 50)),
        *(two_pairs(d) for d in (2, *widths)),
        *(student(d, df) for d, df in ((2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))),
        *(two_pairs(d).mapped("Normal CDF", ndtr) for d in widths),
        *(two_pairs(d).mapped("Half-cube", half_cube) for d in widths),
        *(two_pairs(d).mapped("Spiral", *turns) for d in widths),
        *(two_pairs(d).mapped("Normal CDF", ndtr).mapped("Spiral", *turns) for d in widths),
        *(student(d, df).mapped("Asinh", np.arcsinh) for d, df in ((2, 1), (3, 2), (5, 2))),
    ]


def _same(z: SideArray) -> SideArray:
    return z
