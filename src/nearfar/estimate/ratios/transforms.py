"""Ratios between transformed sides: leading directions of many columns, atoms and numbers apart."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nearfar.estimate.ratios.sides import Fit, Ratio, SideMap, SideRows, normal_ranks
from nearfar.estimate.samples import Array, CanonicalMap

MIN_RIDGE_COLUMNS = 5  # with fewer, a Gaussian of all columns exists for the smallest sample
MAX_RIDGE_DIRECTIONS = 20  # as many as a Gaussian of every level takes
# with a ridge: rows per direction, and standard errors by which an unseen correlation must exceed zero
ROWS_PER_DIRECTION, MIN_STANDARD_ERRORS = 5, 3.0
MIN_ATOM_SHARE, MIN_ATOM_ROWS = 0.05, 8  # from which a recurring value is an atom
MIN_BETWEEN_ROWS = 40  # rows outside the atoms needed for a ratio between them


@dataclass(frozen=True)
class DirectionMap:
    """Projects a wide side on its leading directions."""

    mean: Float[np.ndarray, "column"]
    directions: Float[np.ndarray, "column direction"]
    sorted: Array

    @staticmethod
    def fit(side: SideRows, mean: np.ndarray, directions: np.ndarray) -> "DirectionMap":
        return DirectionMap(mean, directions, np.sort((side.columns() - mean) @ directions, axis=0))

    def __call__(self, side: SideRows) -> SideRows:
        projected = (side.columns() - self.mean) @ self.directions
        return SideRows.of_numbers(normal_ranks(projected, self.sorted), projected)


@dataclass(frozen=True)
class ProjectedRatio:
    """A ratio between the leading canonical directions of wide sides.

    A function of x has at most the information of x. Directions look better on the rows they were fitted to,
    so half of the rows gives the directions and the other half the ratio.
    """

    x: DirectionMap | None  # None: narrow, unchanged
    y: DirectionMap | None
    between: Ratio

    @staticmethod
    def fit_ridge(x: SideRows, y: SideRows, seed: int, ridge: float, inner: Fit) -> "ProjectedRatio | None":
        """For sides of any width, also wider than there are rows.

        Directions are canonical ones with a ridge of `ridge` mean variances, as many as the second half of
        the rows confirms.
        """
        is_wide = [side.numbers >= MIN_RIDGE_COLUMNS for side in (x, y)]
        a, b = (
            side.columns() if project else side.columns(max_levels=len(side) - 1)
            for side, project in zip((x, y), is_wide, strict=True)
        )
        if not any(is_wide) or not a.shape[1] or not b.shape[1]:
            return None
        order = np.random.default_rng(seed).permutation(len(x))
        for_directions, for_ratio = order[: len(x) // 2], order[len(x) // 2 :]
        canonical = x.fit_cached(
            y,
            ("ridge", seed, ridge),
            lambda: CanonicalMap.fit_ridge(a[for_directions], b[for_directions], ridge),
        )
        confirmed = _confirmed_directions(*canonical.transform(a[for_ratio], b[for_ratio]))
        return _fit_between(canonical, confirmed, (x[for_ratio], y[for_ratio]), is_wide, seed, inner)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.pairs(_project(self.x, x), _project(self.y, y))

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.between.cross(_project(self.x, x), _project(self.y, y))


def _fit_between(
    canonical: CanonicalMap,
    selected: Int[np.ndarray, "direction"],
    sides: tuple[SideRows, SideRows],
    is_wide: list[bool],
    seed: int,
    inner: Fit,
) -> ProjectedRatio | None:
    """The inner ratio between the selected directions of the wide sides."""
    maps = [
        DirectionMap.fit(side, mean, directions[:, selected]) if project else None
        for side, project, mean, directions in (
            (sides[0], is_wide[0], canonical.x_mean, canonical.x_map),
            (sides[1], is_wide[1], canonical.y_mean, canonical.y_map),
        )
    ]
    between = inner(_project(maps[0], sides[0]), _project(maps[1], sides[1]), seed)
    return None if between is None else ProjectedRatio(maps[0], maps[1], between)


def _confirmed_directions(x: Array, y: Array) -> Int[np.ndarray, "direction"]:
    """Leading pairs of directions that correlate beyond chance on rows they were not fitted to.

    At least one.
    """
    count = min(x.shape[1], y.shape[1], MAX_RIDGE_DIRECTIONS, max(1, len(x) // ROWS_PER_DIRECTION))
    x, y = x[:, :count] - x[:, :count].mean(axis=0), y[:, :count] - y[:, :count].mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0)) + 1e-12
    correlation = (x * y).sum(axis=0) / scale
    confirmed = np.flatnonzero(correlation > MIN_STANDARD_ERRORS / np.sqrt(len(x)))
    return confirmed if len(confirmed) else np.array([0])


def _project(directions: DirectionMap | None, side: SideRows) -> SideRows:
    return side if directions is None else directions(side)


@dataclass(frozen=True)
class AtomMap:
    """The atoms of a number (values that many rows share, such as zero), and the map of the other values."""

    atoms: Float[np.ndarray, "atom"]
    between: SideMap | None  # None: too few values outside the atoms

    @staticmethod
    def fit(side: SideRows) -> "AtomMap":
        value, count = np.unique(side.scaled[:, 0], return_counts=True)
        atoms = value[count >= max(MIN_ATOM_ROWS, MIN_ATOM_SHARE * len(side))]
        rest = side.scaled[~np.isin(side.scaled[:, 0], atoms)]
        return AtomMap(atoms, SideMap.fit(rest, np.array([False])) if len(rest) >= MIN_BETWEEN_ROWS else None)

    def state(self, side: SideRows) -> SideRows:
        """The category "which atom"; its last level is "none"."""
        return SideRows.of_category(self._code(side), len(self.atoms) + 1)

    def is_between(self, side: SideRows) -> np.ndarray:
        """Which rows are no atom."""
        return self._code(side) == len(self.atoms)

    def number(self, side: SideRows) -> SideRows:
        assert self.between is not None
        return self.between(side.scaled)

    def _code(self, side: SideRows) -> Int[np.ndarray, "row"]:
        z = side.scaled[:, 0]
        if not len(self.atoms):
            return np.zeros(len(z), int)
        place = np.minimum(np.searchsorted(self.atoms, z), len(self.atoms) - 1)
        return np.where(self.atoms[place] == z, place, len(self.atoms))


@dataclass(frozen=True)
class AtomRatio:
    """Two numbers with atoms, by the chain rule. With s, t for which atom x and y are (or none):

        p(x, y)         p(s, t)       p(x | s, t)   p(y | s, t)   p(x, y | s, t)
        ---------  =  -----------  x  ----------- x ----------- x -----------------------------
        p(x) p(y)      p(s) p(t)       p(x | s)      p(y | t)      p(x | s, t) p(y | s, t)

    Each factor is a stack of its own (`inner`): a table of states, a number and the other's state both ways,
    and two numbers.
    """

    x: AtomMap
    y: AtomMap
    states: Ratio
    x_of_state: Ratio | None  # x and the state of y, where x is no atom
    y_of_state: Ratio | None
    numbers: Ratio | None  # x and y, where neither is an atom

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, inner: Fit) -> "AtomRatio | None":
        if any(side.code is not None or side.numbers != 1 for side in (x, y)):
            return None
        a, b = AtomMap.fit(x), AtomMap.fit(y)
        if not len(a.atoms) and not len(b.atoms):
            return None
        s, t, free_x, free_y = a.state(x), b.state(y), a.is_between(x), b.is_between(y)
        neither_atom = free_x & free_y
        enough = a.between is not None and b.between is not None and neither_atom.sum() >= MIN_BETWEEN_ROWS
        states = inner(s, t, seed)
        assert states is not None
        return AtomRatio(
            a,
            b,
            states,
            inner(a.number(x[free_x]), t[free_x], seed) if a.between and len(b.atoms) else None,
            inner(s[free_y], b.number(y[free_y]), seed) if b.between and len(a.atoms) else None,
            inner(a.number(x[neither_atom]), b.number(y[neither_atom]), seed) if enough else None,
        )

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        s, t = self.x.state(x), self.y.state(y)
        free_x, free_y = self.x.is_between(x), self.y.is_between(y)
        neither_atom = free_x & free_y
        log_r = self.states.pairs(s, t)
        if self.x_of_state is not None and free_x.any():
            log_r[free_x] += self.x_of_state.pairs(self.x.number(x[free_x]), t[free_x])
        if self.y_of_state is not None and free_y.any():
            log_r[free_y] += self.y_of_state.pairs(s[free_y], self.y.number(y[free_y]))
        if self.numbers is not None and neither_atom.any():
            log_r[neither_atom] += self.numbers.pairs(
                self.x.number(x[neither_atom]), self.y.number(y[neither_atom])
            )
        return log_r

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        s, t = self.x.state(x), self.y.state(y)
        free_x, free_y = self.x.is_between(x), self.y.is_between(y)
        log_r = self.states.cross(s, t)
        if self.x_of_state is not None and free_x.any():
            log_r[free_x] += self.x_of_state.cross(self.x.number(x[free_x]), t)
        if self.y_of_state is not None and free_y.any():
            log_r[:, free_y] += self.y_of_state.cross(s, self.y.number(y[free_y]))
        if self.numbers is not None and free_x.any() and free_y.any():
            cells = np.ix_(free_x, free_y)
            log_r[cells] += self.numbers.cross(self.x.number(x[free_x]), self.y.number(y[free_y]))
        return log_r
