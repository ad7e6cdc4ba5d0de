"""Numbers some of which are atoms: values that many rows share, zeros above all, beside numbers that no two rows share.

With s and t for which atom x and y are (or none), the chain rule takes the ratio apart:

    p(x, y)         p(s, t)       p(x | s, t)   p(y | s, t)   p(x, y | s, t)
    ---------  =  -----------  x  ----------- x ----------- x -----------------------------
    p(x) p(y)      p(s) p(t)       p(x | s)      p(y | t)      p(x | s, t) p(y | s, t)

A table of the states; what a number that is no atom tells about the other's state, both ways; and what two such numbers tell about each other. Each is
a small competition of its own (`inner`), with independence among the competitors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nearfar.estimate.ratios.halves import Half, HalfMap, Ratio

LEAST_SHARE, LEAST_ROWS = 0.05, 8  # of all rows, from which a value is an atom
FEWEST_ROWS = 40  # that are no atoms, for a ratio between them
Inner = Callable[[Half, Half, int], Ratio]


@dataclass(frozen=True)
class Side:
    """A number's atoms, and the map to normal quantiles of the numbers between them."""

    atoms: Float[np.ndarray, "atom"]
    between: HalfMap | None  # None: too few

    @staticmethod
    def fit(half: Half) -> "Side":
        value, count = np.unique(half.plain[:, 0], return_counts=True)
        atoms = value[count >= max(LEAST_ROWS, LEAST_SHARE * len(half))]
        rest = half.plain[~np.isin(half.plain[:, 0], atoms)]
        return Side(atoms, HalfMap.fit(rest, np.array([False])) if len(rest) >= FEWEST_ROWS else None)

    def state(self, half: Half) -> Half:
        """Which atom, or the last level: none."""
        code = self._code(half)
        return Half(np.empty((len(half), 0)), np.empty((len(half), 0)), code, len(self.atoms) + 1)

    def free(self, half: Half) -> np.ndarray:
        return self._code(half) == len(self.atoms)

    def number(self, half: Half) -> Half:
        assert self.between is not None
        return self.between(half.plain)

    def _code(self, half: Half) -> Int[np.ndarray, "row"]:
        z = half.plain[:, 0]
        if not len(self.atoms):
            return np.zeros(len(z), int)
        place = np.minimum(np.searchsorted(self.atoms, z), len(self.atoms) - 1)
        return np.where(self.atoms[place] == z, place, len(self.atoms))


@dataclass(frozen=True)
class Atoms:
    x: Side
    y: Side
    states: Ratio
    x_of_state: Ratio | None  # between x and y's state, where x is no atom
    y_of_state: Ratio | None
    numbers: Ratio | None  # between x and y, where neither is

    @staticmethod
    def fit(x: Half, y: Half, seed: int, inner: Inner) -> "Atoms | None":
        """None but for two numbers, one of which has atoms."""
        if any(half.code is not None or half.numbers != 1 for half in (x, y)):
            return None
        a, b = Side.fit(x), Side.fit(y)
        if not len(a.atoms) and not len(b.atoms):
            return None
        s, t, free_x, free_y = a.state(x), b.state(y), a.free(x), b.free(y)
        both = free_x & free_y
        enough = a.between is not None and b.between is not None and both.sum() >= FEWEST_ROWS
        return Atoms(
            a,
            b,
            inner(s, t, seed),
            inner(a.number(x[free_x]), t[free_x], seed) if a.between and len(b.atoms) else None,
            inner(s[free_y], b.number(y[free_y]), seed) if b.between and len(a.atoms) else None,
            inner(a.number(x[both]), b.number(y[both]), seed) if enough else None,
        )

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        s, t, free_x, free_y = self.x.state(x), self.y.state(y), self.x.free(x), self.y.free(y)
        found = self.states.pairs(s, t)
        both = free_x & free_y
        if self.x_of_state is not None and free_x.any():
            found[free_x] += self.x_of_state.pairs(self.x.number(x[free_x]), t[free_x])
        if self.y_of_state is not None and free_y.any():
            found[free_y] += self.y_of_state.pairs(s[free_y], self.y.number(y[free_y]))
        if self.numbers is not None and both.any():
            found[both] += self.numbers.pairs(self.x.number(x[both]), self.y.number(y[both]))
        return found

    def cross(self, x: Half, y: Half) -> np.ndarray:
        s, t, free_x, free_y = self.x.state(x), self.y.state(y), self.x.free(x), self.y.free(y)
        found = self.states.cross(s, t)
        if self.x_of_state is not None and free_x.any():
            found[free_x] += self.x_of_state.cross(self.x.number(x[free_x]), t)
        if self.y_of_state is not None and free_y.any():
            found[:, free_y] += self.y_of_state.cross(s, self.y.number(y[free_y]))
        if self.numbers is not None and free_x.any() and free_y.any():
            cell = np.ix_(free_x, free_y)
            found[cell] += self.numbers.cross(self.x.number(x[free_x]), self.y.number(y[free_y]))
        return found
