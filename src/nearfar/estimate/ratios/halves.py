"""One side of a sample, in the forms that ratios are fitted to, and what a fitted ratio is.

A ratio is a function r(x, y) that stands for p(x, y) / (p(x) p(y)). Any function may: the bounds read off unseen rows hold for
every one. So each kind here is free to suppose what it likes, is fitted on training rows alone, and competes.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from nearfar.estimate.samples import Array

LONG, MOST_BEYOND = 2.0, 1e6  # in the distance between the outer tenths: five spreads of a Gaussian
FAR = 20.0  # spreads from the middle: with such outliers numbers are read as ranks only
CROWDED = 1 / 3  # combinations of categories per row from which they hardly recur
MOST_INDICATORS = 64  # levels beyond which a category is not spread over columns

Learned = TypeVar("Learned")


@dataclass(frozen=True)
class Half:
    """Rows of one side. `normal`: its numbers, ranks to normals. `plain`: the same numbers, centred and scaled, long tails squeezed.
    `code`: its categories, all columns together, as one whole number (-1: not seen in training); None if it has none."""

    normal: Float[np.ndarray, "row number"]
    plain: Float[np.ndarray, "row number"]
    code: Int[np.ndarray, "row"] | None
    levels: int
    # what was learned from these rows about others and is asked for again: by what it is, and of whom
    learned: dict[Hashable, tuple["Half", Any]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.normal)

    def __getitem__(self, rows: np.ndarray) -> "Half":
        code = None if self.code is None else self.code[rows]
        return Half(self.normal[rows], self.plain[rows], code, self.levels)

    @property
    def numbers(self) -> int:
        return self.normal.shape[1]

    def width(self, functions: float) -> float:
        """Free directions: so many functions of each of its numbers, and its levels but one."""
        return max(1.0, functions * self.numbers + max(0, self.levels - 1))

    def about(self, other: "Half", what: Hashable, learn: Callable[[], Learned]) -> Learned:
        """What `learn` finds about the other side, found once: candidates that differ in one thing share the rest."""
        known = self.learned.get(what)
        if known is None or known[0] is not other:
            known = self.learned[what] = (other, learn())
        return cast(Learned, known[1])

    def chosen(self, plain: bool) -> Float[np.ndarray, "row number"]:
        return np.clip(self.plain, -FAR, FAR) if plain else self.normal

    def columns(
        self, plain: bool = False, most_levels: int = MOST_INDICATORS
    ) -> Float[np.ndarray, "row column"]:
        """Numbers as normals (or plain), and a column for each level of the category, unless there are more than `most_levels`."""
        if self.code is None or self.levels > most_levels:
            return self.chosen(plain)
        return np.hstack([self.chosen(plain), (self.code[:, None] == np.arange(self.levels)).astype(float)])


class Ratio(Protocol):
    """A fitted log r(x, y): of rows that belong together, and of all pairs."""

    def pairs(self, x: Half, y: Half) -> Float[np.ndarray, "row"]: ...

    def cross(self, x: Half, y: Half) -> Float[np.ndarray, "row key"]: ...


@dataclass(frozen=True)
class HalfMap:
    """The map from a side's raw columns to a `Half`, fitted on training rows.

    Several categories are one, each combination a level. Where combinations hardly recur that would say nothing: then each
    level of each column becomes a number, 0 or 1.
    """

    discrete: np.ndarray
    spread: tuple[Float[np.ndarray, "level"], ...]  # levels of each discrete column, if they are numbers
    sorted: Array  # the numbers of the training rows, each in rising order
    centre: np.ndarray
    scale: np.ndarray
    combinations: Array  # distinct rows of the discrete columns

    @staticmethod
    def fit(sample: Array, discrete: np.ndarray) -> "HalfMap":
        combinations = np.unique(sample[:, discrete], axis=0)
        crowded = discrete.sum() > 1 and len(combinations) > CROWDED * len(sample)
        spread = tuple(np.unique(column) for column in sample[:, discrete].T) if crowded else ()
        numbers = _numbers(sample, discrete, spread)
        centre = np.median(numbers, axis=0)
        low, high = np.quantile(numbers, 0.1, axis=0), np.quantile(numbers, 0.9, axis=0)
        scale = np.where(high > low, high - low, np.where(numbers.std(axis=0) > 0, numbers.std(axis=0), 1.0))
        return HalfMap(discrete, spread, np.sort(numbers, axis=0), centre, scale, combinations)

    def __call__(self, sample: Array) -> Half:
        numbers = _numbers(sample, self.discrete, self.spread)
        normal = np.column_stack(
            [
                np.empty((len(sample), 0)),
                *(ranks_to_normal(c, k) for c, k in zip(numbers.T, self.sorted.T, strict=True)),
            ]
        )
        plain = squeezed((numbers - self.centre) / self.scale)
        if self.spread or not self.discrete.any():
            return Half(normal, plain, None, 0)
        return Half(normal, plain, self._codes(sample[:, self.discrete]), len(self.combinations))

    def _codes(self, categories: Array) -> Int[np.ndarray, "row"]:
        known = len(self.combinations)
        number = np.unique(np.vstack([self.combinations, categories]), axis=0, return_inverse=True)[1].ravel()
        code = np.full(number.max() + 1, -1)
        code[number[:known]] = np.arange(known)
        return code[number[known:]]


def _numbers(sample: Array, discrete: np.ndarray, spread: tuple[np.ndarray, ...]) -> Array:
    """The continuous columns, and a column for each level but the first where categories are spread (one in order, if they are many)."""
    indicators = [
        (column[:, None] == levels[1:]).astype(float)
        if len(levels) <= MOST_INDICATORS
        else np.searchsorted(levels, column)[:, None].astype(float)
        for column, levels in zip(sample[:, discrete].T, spread, strict=False)
    ]
    return np.hstack([sample[:, ~discrete], *indicators])


def squeezed(z: np.ndarray) -> np.ndarray:
    """As it is in the middle, beyond `LONG` like the logarithm: one-to-one, so nothing is lost, and tails without a mean become tame."""
    beyond = np.minimum(np.maximum(np.abs(z) - LONG, 0.0), MOST_BEYOND)
    return np.clip(z, -LONG, LONG) + np.sign(z) * np.log1p(beyond)


def stretched(z: np.ndarray) -> np.ndarray:
    """What was squeezed, as it was."""
    return np.clip(z, -LONG, LONG) + np.sign(z) * np.expm1(np.maximum(np.abs(z) - LONG, 0.0))


def ranks_to_normal(column: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where a column's values stand among known ones in rising order, as normal quantiles."""
    # equal values share the mean of their ranks, so that the map stays a function of the value
    low, high = np.searchsorted(known, known, "left"), np.searchsorted(known, known, "right")
    return np.interp(column, known, ndtri((low + high) / (2 * len(known))))
