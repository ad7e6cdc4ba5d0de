"""One side of a sample in the forms that density ratios are fitted to, and the protocol of a fitted ratio.

A ratio is a function r(x, y) that models p(x, y) / (p(x) p(y)). The bounds on unseen rows hold for every
function, so a family may assume anything. Each is fitted on training rows alone, and families compete
(stack.py).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from nearfar.estimate.samples import Array, rank_to_normal

TAIL_START = 2.0  # distance from the median beyond which tails are squeezed, in interdecile ranges
MAX_TAIL = 1e6
FAR = 20.0  # interdecile ranges: with outliers beyond, only ranks are used
CROWDED = 1 / 3  # combinations of categories per row from which they rarely recur
MAX_INDICATORS = 64  # levels beyond which a category is not expanded into indicator columns
MIN_ORDERED_LEVELS = 3  # two levels have no informative order

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class SideRows:
    """Rows of one side.

    `normal`: numeric columns, ranks mapped to standard normals. `scaled`: the same columns, centred and
    scaled, with squeezed tails. `code`: all categorical columns together as one category (-1: level not in
    the training rows), or None. `levels`: number of levels of the category, 0 without one.
    """

    normal: Float[np.ndarray, "row number"]
    scaled: Float[np.ndarray, "row number"]
    code: Int[np.ndarray, "row"] | None
    levels: int
    # cache of fits, keyed by (what, other side)
    cache: dict[Hashable, tuple["SideRows", Any]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.normal)

    def __getitem__(self, rows: np.ndarray) -> "SideRows":
        code = None if self.code is None else self.code[rows]
        return SideRows(self.normal[rows], self.scaled[rows], code, self.levels)

    @staticmethod
    def of_numbers(normal: np.ndarray, scaled: np.ndarray) -> "SideRows":
        """A side without a category."""
        return SideRows(normal, scaled, None, 0)

    @property
    def numbers(self) -> int:
        """Number of numeric columns."""
        return self.normal.shape[1]

    @property
    def features(self) -> int:
        """Number of numeric columns, plus one for the category."""
        return self.numbers + (self.code is not None)

    @property
    def level_codes(self) -> Int[np.ndarray, "row"]:
        """`code` of a side that has a category."""
        assert self.code is not None
        return self.code

    def degrees_of_freedom(self, functions: float) -> float:
        """`functions` per numeric column, plus one per level but the first."""
        return max(1.0, functions * self.numbers + max(0, self.levels - 1))

    def fit_cached(self, other_side: "SideRows", key: Hashable, fit: Callable[[], Fitted]) -> Fitted:
        """The result of `fit`, cached, so that candidates that differ in one option share the rest."""
        cached = self.cache.get(key)
        if cached is None or cached[0] is not other_side:
            cached = self.cache[key] = (other_side, fit())
        return cast(Fitted, cached[1])

    def values(self, scaled: bool) -> Float[np.ndarray, "row number"]:
        """The numeric columns, scaled or as normal ranks."""
        return np.clip(self.scaled, -FAR, FAR) if scaled else self.normal

    def columns(
        self, scaled: bool = False, max_levels: int = MAX_INDICATORS
    ) -> Float[np.ndarray, "row column"]:
        """The numeric columns, and an indicator column for each level unless there are more than
        `max_levels`."""
        if self.code is None or self.levels > max_levels:
            return self.values(scaled)
        indicators = (self.code[:, None] == np.arange(self.levels)).astype(float)
        return np.hstack([self.values(scaled), indicators])

    def level_places(self) -> Float[np.ndarray, "level"] | None:
        """Levels as numbers: normal quantiles of their mid-ranks; the last entry, 0, is for unseen levels.

        None unless the side is one category of at least three levels.
        """
        if self.code is None or self.numbers or self.levels < MIN_ORDERED_LEVELS:
            return None
        count = np.bincount(self.code, minlength=self.levels)
        middle = (np.cumsum(count) - count / 2) / count.sum()
        return np.append(ndtri(np.clip(middle, 1e-6, 1 - 1e-6)), 0.0)


class Ratio(Protocol):
    """A fitted log r(x, y)."""

    def pairs(self, x: SideRows, y: SideRows) -> Float[np.ndarray, "row"]:
        """log r(x_i, y_i) of every row."""
        ...

    def cross(self, x: SideRows, y: SideRows) -> Float[np.ndarray, "x_row y_row"]:
        """log r(x_i, y_j) of all pairs of rows."""
        ...


Fit = Callable[[SideRows, SideRows, int], Ratio | None]  # (x, y, seed); None: the family does not apply


@dataclass(frozen=True)
class SideMap:
    """Maps raw columns to `SideRows`; fitted on training rows.

    Several categorical columns become one category whose levels are their combinations. If combinations
    rarely recur, the levels of each column become 0/1 numeric columns instead.
    """

    discrete: np.ndarray
    expanded: tuple[Float[np.ndarray, "level"], ...]  # levels of each discrete column, if they become numbers
    sorted: Array  # numeric columns of the training rows, each in rising order
    centre: np.ndarray
    scale: np.ndarray
    combinations: Array  # distinct rows of the discrete columns

    @staticmethod
    def fit(sample: Array, discrete: np.ndarray) -> "SideMap":
        combinations = np.unique(sample[:, discrete], axis=0)
        crowded = discrete.sum() > 1 and len(combinations) > CROWDED * len(sample)
        expanded = tuple(np.unique(column) for column in sample[:, discrete].T) if crowded else ()
        numbers = _number_columns(sample, discrete, expanded)
        centre = np.median(numbers, axis=0)
        low, high = np.quantile(numbers, 0.1, axis=0), np.quantile(numbers, 0.9, axis=0)
        scale = np.where(high > low, high - low, np.where(numbers.std(axis=0) > 0, numbers.std(axis=0), 1.0))
        return SideMap(discrete, expanded, np.sort(numbers, axis=0), centre, scale, combinations)

    def __call__(self, sample: Array) -> SideRows:
        numbers = _number_columns(sample, self.discrete, self.expanded)
        normal = normal_ranks(numbers, self.sorted)
        scaled = squeeze((numbers - self.centre) / self.scale)
        if self.expanded or not self.discrete.any():
            return SideRows.of_numbers(normal, scaled)
        return SideRows(normal, scaled, self._codes(sample[:, self.discrete]), len(self.combinations))

    def _codes(self, categories: Array) -> Int[np.ndarray, "row"]:
        fitted = len(self.combinations)
        number = np.unique(np.vstack([self.combinations, categories]), axis=0, return_inverse=True)[1].ravel()
        code = np.full(number.max() + 1, -1)
        code[number[:fitted]] = np.arange(fitted)
        return code[number[fitted:]]


def _number_columns(sample: Array, discrete: np.ndarray, expanded: tuple[np.ndarray, ...]) -> Array:
    """Continuous columns, then one column per level but the first of each expanded category.

    A category of more than `MAX_INDICATORS` levels becomes one column, the position of the level.
    """
    indicators = [
        (column[:, None] == levels[1:]).astype(float)
        if len(levels) <= MAX_INDICATORS
        else np.searchsorted(levels, column)[:, None].astype(float)
        for column, levels in zip(sample[:, discrete].T, expanded, strict=False)
    ]
    return np.hstack([sample[:, ~discrete], *indicators])


def normal_ranks(numbers: Array, fitted: Array) -> Array:
    """Normal quantiles of the ranks of every column among the sorted columns of `fitted`."""
    ranked = [
        rank_to_normal(column, fitted_column)
        for column, fitted_column in zip(numbers.T, fitted.T, strict=True)
    ]
    return np.column_stack([np.empty((len(numbers), 0)), *ranked])


def squeeze(z: np.ndarray) -> np.ndarray:
    """The identity up to `TAIL_START`, logarithmic beyond: one-to-one, and makes heavy tails light."""
    excess = np.minimum(np.maximum(np.abs(z) - TAIL_START, 0.0), MAX_TAIL)
    return np.clip(z, -TAIL_START, TAIL_START) + np.sign(z) * np.log1p(excess)


def unsqueeze(z: np.ndarray) -> np.ndarray:
    """The inverse of `squeeze`."""
    excess = np.maximum(np.abs(z) - TAIL_START, 0.0)
    return np.clip(z, -TAIL_START, TAIL_START) + np.sign(z) * np.expm1(excess)
