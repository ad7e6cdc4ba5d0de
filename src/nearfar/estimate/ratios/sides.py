"""One side of a sample in the forms that density ratios are fitted to, and the protocol of a fitted ratio.

A ratio is a function r(x, y) that models p(x, y) / (p(x) p(y)). The bounds on unseen rows hold for every
function, so a family may assume anything. Each is fitted on training rows alone, and families compete
(stack.py).
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from jaxtyping import Float, Int

from nearfar.estimate import settings
from nearfar.estimate.samples import Array, rank_to_normal

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class SideRows:
    """Rows of one side.

    `normal`: numeric columns, ranks mapped to standard normals. `scaled`: the same columns, centred and
    scaled, with squeezed tails. `code`: all categorical columns together as one category (-1: level not in
    the training rows), or None. `levels`: number of levels of the category, 0 without one. `categories`: the
    categorical columns one by one, with their `category_levels`. `indicators`: how many of the last numeric
    columns stand for levels of crowded categories.
    """

    normal: Float[np.ndarray, "row number"]
    scaled: Float[np.ndarray, "row number"]
    code: Int[np.ndarray, "row"] | None
    levels: int
    categories: Int[np.ndarray, "row category"]
    category_levels: tuple[int, ...]
    indicators: int = 0
    # cache of fits, keyed by (what, other side)
    cache: dict[Hashable, tuple["SideRows", Any]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.normal)

    def __getitem__(self, rows: np.ndarray) -> "SideRows":
        code = None if self.code is None else self.code[rows]
        return SideRows(
            self.normal[rows],
            self.scaled[rows],
            code,
            self.levels,
            self.categories[rows],
            self.category_levels,
            self.indicators,
        )

    @staticmethod
    def of_numbers(normal: np.ndarray, scaled: np.ndarray) -> "SideRows":
        """A side without a category."""
        return SideRows(normal, scaled, None, 0, np.empty((len(normal), 0), int), ())

    def select(self, columns: np.ndarray) -> "SideRows":
        """Some columns of the side: numbers are counted first, then categories."""
        plain = self.numbers - self.indicators
        numeric, chosen = columns[columns < plain], columns[columns >= plain] - plain
        normal, scaled = self.normal[:, numeric], self.scaled[:, numeric]
        categories = self.categories[:, chosen]
        levels = tuple(self.category_levels[k] for k in chosen)
        if not len(chosen):
            return SideRows.of_numbers(normal, scaled)
        code = np.zeros(len(self), int)
        for column, count in zip(categories.T, levels, strict=True):
            code = code * count + np.maximum(column, 0)
        code[(categories < 0).any(axis=1)] = -1
        return SideRows(normal, scaled, code, math.prod(levels), categories, levels)

    @property
    def numbers(self) -> int:
        """Number of numeric columns."""
        return self.normal.shape[1]

    @property
    def column_count(self) -> int:
        """Number of numeric and categorical columns."""
        return self.numbers - self.indicators + len(self.category_levels)

    @property
    def features(self) -> int:
        """Number of numeric columns, plus one for the category."""
        return self.numbers + (self.code is not None)

    @property
    def level_codes(self) -> Int[np.ndarray, "row"]:
        """`code` of a side that has a category."""
        assert self.code is not None
        return self.code

    def fit_cached(self, other_side: "SideRows", key: Hashable, fit: Callable[[], Fitted]) -> Fitted:
        """The result of `fit`, cached, so that candidates that differ in one option share the rest."""
        cached = self.cache.get(key)
        if cached is None or cached[0] is not other_side:
            cached = self.cache[key] = (other_side, fit())
        return cast(Fitted, cached[1])

    def values(self, scaled: bool) -> Float[np.ndarray, "row number"]:
        """The numeric columns, scaled or as normal ranks."""
        return np.clip(self.scaled, -settings.FAR, settings.FAR) if scaled else self.normal

    def columns(
        self, scaled: bool = False, max_levels: int = settings.MAX_INDICATORS
    ) -> Float[np.ndarray, "row column"]:
        """The numeric columns, and an indicator column for each level unless there are more than
        `max_levels`."""
        if self.code is None or self.levels > max_levels:
            return self.values(scaled)
        indicators = (self.code[:, None] == np.arange(self.levels)).astype(float)
        return np.hstack([self.values(scaled), indicators])


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
class SwappedRatio:
    """A ratio that was fitted with the sides exchanged."""

    ratio: Ratio

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.ratio.pairs(y, x)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.ratio.cross(y, x).T


def swapped(fit: Fit) -> Fit:
    """The family with the sides exchanged: x is predicted by y instead of y by x."""

    def fit_swapped(x: SideRows, y: SideRows, seed: int) -> Ratio | None:
        ratio = fit(y, x, seed)
        return None if ratio is None else SwappedRatio(ratio)

    return fit_swapped


def either_way(fit: Fit) -> Fit:
    """The family, with the sides exchanged where it applies only then: the category may be x or y."""

    def fit_either(x: SideRows, y: SideRows, seed: int) -> Ratio | None:
        ratio = fit(x, y, seed)
        return swapped(fit)(x, y, seed) if ratio is None else ratio

    return fit_either


@dataclass(frozen=True)
class SideMap:
    """Maps raw columns to `SideRows`; fitted on training rows.

    Several categorical columns become one category whose levels are their combinations. If combinations
    rarely recur, the levels of each column become 0/1 numeric columns instead.
    """

    discrete: np.ndarray
    level_values: tuple[Float[np.ndarray, "level"], ...]  # of each discrete column
    crowded: bool  # combinations rarely recur
    sorted: Array  # numeric columns of the training rows, each in rising order
    centre: np.ndarray
    scale: np.ndarray
    combinations: Array  # distinct rows of the discrete columns

    @staticmethod
    def fit(sample: Array, discrete: np.ndarray) -> "SideMap":
        combinations = np.unique(sample[:, discrete], axis=0)
        crowded = bool(discrete.sum() > 1 and len(combinations) > settings.CROWDED * len(sample))
        level_values = tuple(np.unique(column) for column in sample[:, discrete].T)
        numbers = _number_columns(sample, discrete, level_values if crowded else ())
        centre = np.median(numbers, axis=0)
        low, high = np.quantile(numbers, 0.1, axis=0), np.quantile(numbers, 0.9, axis=0)
        scale = np.where(high > low, high - low, np.where(numbers.std(axis=0) > 0, numbers.std(axis=0), 1.0))
        return SideMap(discrete, level_values, crowded, np.sort(numbers, axis=0), centre, scale, combinations)

    def __call__(self, sample: Array) -> SideRows:
        numbers = _number_columns(sample, self.discrete, self.level_values if self.crowded else ())
        normal = normal_ranks(numbers, self.sorted)
        scaled = squeeze((numbers - self.centre) / self.scale)
        if not self.discrete.any():
            return SideRows.of_numbers(normal, scaled)
        discrete = sample[:, self.discrete]
        code = None if self.crowded else self._codes(discrete)
        return SideRows(
            normal,
            scaled,
            code,
            0 if self.crowded else len(self.combinations),
            _level_codes(discrete, self.level_values),
            tuple(len(levels) for levels in self.level_values),
            numbers.shape[1] - int((~self.discrete).sum()),
        )

    def _codes(self, categories: Array) -> Int[np.ndarray, "row"]:
        fitted = len(self.combinations)
        number = np.unique(np.vstack([self.combinations, categories]), axis=0, return_inverse=True)[1].ravel()
        code = np.full(number.max() + 1, -1)
        code[number[:fitted]] = np.arange(fitted)
        return code[number[fitted:]]


def _level_codes(discrete: Array, level_values: tuple[np.ndarray, ...]) -> Int[np.ndarray, "row category"]:
    """The position of every value among the levels of its column; -1 for a value that is no level."""
    codes = np.empty(discrete.shape, int)
    for k, levels in enumerate(level_values):
        place = np.minimum(np.searchsorted(levels, discrete[:, k]), len(levels) - 1)
        codes[:, k] = np.where(levels[place] == discrete[:, k], place, -1)
    return codes


def _number_columns(sample: Array, discrete: np.ndarray, expanded: tuple[np.ndarray, ...]) -> Array:
    """Continuous columns, then one column per level but the first of each expanded category.

    A category of more than `MAX_INDICATORS` levels becomes one column, the position of the level.
    """
    indicators = [
        (column[:, None] == levels[1:]).astype(float)
        if len(levels) <= settings.MAX_INDICATORS
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
    excess = np.minimum(np.maximum(np.abs(z) - settings.TAIL_START, 0.0), settings.MAX_TAIL)
    return np.clip(z, -settings.TAIL_START, settings.TAIL_START) + np.sign(z) * np.log1p(excess)
