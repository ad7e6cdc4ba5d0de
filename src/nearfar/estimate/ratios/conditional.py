"""Ratios from a prediction: what y should be given x, and how it misses; or the probability of a category given the rest.

    Residual     y = m(x) + s(x) e, with any density of e: noise with hard edges or long tails, curves, many columns of x
    Densities    a category beside one number: a density for every level
    Classifier   p(category | the rest) by boosted trees

r = q(y | x) / mean over training rows of q(y | x_j): the conditional density of Barber and Agakov (2003) and its own marginal.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.halves import FAR, Half
from nearfar.estimate.ratios.regressions import (
    FLOOR,
    MOST_GROWN,
    Regression,
    categories,
    density,
    features,
    regression,
    trees,
    trees_may_help,
)

COARSE_GRID = 512  # of the marginal, which is smooth
MOST_AVERAGED = 400  # training rows whose conditional densities are averaged
MOST_CLASSES = 16
MOST_FEATURES, OF_MORE = 32, 16  # columns that trees see all of; of more, so many that say most by themselves
FEWEST_OF_LEVEL = 20


@dataclass(frozen=True)
class Noise:
    """q(target | given) = g((target - m) / s) / s."""

    predict: Regression
    spread: Regression
    grid: Float[np.ndarray, "grid"]
    log_density: Float[np.ndarray, "grid"]  # of the scaled residual

    def __call__(self, target: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        z = (target - centre) / scale
        step = self.grid[1] - self.grid[0]
        place = np.clip((z - self.grid[0]) / step + 0.5, 0, len(self.grid) - 1).astype(np.int32)
        return self.log_density[place] - np.log(scale)


@dataclass(frozen=True)
class Residual:
    """r of `Noise` and its marginal on a grid; `swapped` predicts x."""

    swapped: bool
    plain: bool
    noise: Noise
    grid: Float[np.ndarray, "grid"]
    log_marginal: Float[np.ndarray, "grid"]

    @staticmethod
    def fit(
        x: Half, y: Half, seed: int, swapped: bool, plain: bool, scaled: bool, boosted: bool = False
    ) -> "Residual | None":
        given, other = (y, x) if swapped else (x, y)
        if other.numbers != 1 or other.code is not None or given.numbers > 100:
            return None
        if given.numbers and given.levels > 64:
            return None
        if boosted and given.numbers + bool(given.levels) < 2:
            return None
        target = other.chosen(plain)[:, 0]
        if plain and max(np.abs(half.plain).max(initial=0) for half in (x, y)) > FAR:
            return None
        if boosted and not trees_may_help(given, target, plain, seed):
            return None
        predict, missed = given.about(
            other,
            ("predicted", plain, seed, boosted),
            lambda: _predicted(given, target, plain, seed, boosted),
        )
        spread = _spread(given, missed, plain, seed) if scaled else lambda rows: np.ones(len(rows))
        noise = Noise(predict, spread, *density(missed / spread(given)))
        return Residual(swapped, plain, noise, *_marginal(noise, given, target))

    def _sides(self, x: Half, y: Half) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        given, other = (y, x) if self.swapped else (x, y)
        return other.chosen(self.plain)[:, 0], self.noise.predict(given), self.noise.spread(given)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        target, centre, scale = self._sides(x, y)
        return self.noise(target, centre, scale) - np.interp(target, self.grid, self.log_marginal)

    def cross(self, x: Half, y: Half) -> np.ndarray:
        target, centre, scale = self._sides(x, y)
        found = self.noise(target[None, :], centre[:, None], scale[:, None])
        found -= np.interp(target, self.grid, self.log_marginal)[None, :]
        return found.T if self.swapped else found


def _predicted(
    given: Half, target: np.ndarray, plain: bool, seed: int, boosted: bool
) -> tuple[Regression, np.ndarray]:
    """A prediction, and how rows are missed by one that has not seen them."""
    fold = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    missed = np.empty(len(target))
    for part in (fold, ~fold):
        learned = regression(given[part], target[part], plain, seed, boosted)
        missed[~part] = target[~part] - learned(given[~part])
    return regression(given, target, plain, seed, boosted), missed


def _spread(given: Half, missed: np.ndarray, plain: bool, seed: int) -> Regression:
    floor = 1e-3 * missed.std() + FLOOR
    size = regression(given, np.log(np.abs(missed) + floor), plain, seed, boosted=False)
    return lambda rows: np.exp(np.clip(size(rows), -12, 12))


def _marginal(noise: Noise, given: Half, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of the mean of q(target | x_j) on a grid: over every k-th row in order of its prediction, nearly that over all."""
    order = np.argsort(noise.predict(given), kind="stable")
    some = given[order[np.linspace(0, len(order) - 1, min(len(order), MOST_AVERAGED)).astype(int)]]
    reach = target.max() - target.min() + 1e-9
    grid = np.linspace(target.min() - 0.2 * reach, target.max() + 0.2 * reach, COARSE_GRID)
    centre, scale = noise.predict(some), noise.spread(some)
    total = np.exp(noise(grid[None, :], centre[:, None], scale[:, None])).mean(axis=0)
    return grid, np.log(total + FLOOR)


@dataclass(frozen=True)
class Densities:
    """A category and one number: the number's density in every level, that of all rows where a level is rare."""

    swapped: bool
    plain: bool
    grid: Float[np.ndarray, "grid"]
    log_ratio: Float[np.ndarray, "level grid"]  # last row: not seen

    @staticmethod
    def fit(x: Half, y: Half, seed: int, plain: bool) -> "Densities | None":
        swapped = x.code is None
        level, other = (y, x) if swapped else (x, y)
        if level.code is None or level.numbers or other.code is not None or other.numbers != 1:
            return None
        z = other.chosen(plain)[:, 0]
        if level.levels > 64 or (plain and np.abs(other.plain).max() > FAR):
            return None
        count = np.bincount(level.code, minlength=level.levels)
        reach = z.max() - z.min() + 1e-9
        grid = np.linspace(z.min() - 0.05 * reach, z.max() + 0.05 * reach, 1024)
        log_q = np.zeros((level.levels, len(grid)))
        common = np.interp(grid, *density(z))
        for k in range(level.levels):
            enough = count[k] >= FEWEST_OF_LEVEL
            log_q[k] = np.interp(grid, *density(z[level.code == k])) if enough else common
        share = np.maximum(count, 1e-3) / count.sum()
        log_marginal = np.log(share @ np.exp(log_q))
        return Densities(swapped, plain, grid, np.vstack([log_q - log_marginal, np.zeros(len(grid))]))

    def _places(self, half: Half) -> np.ndarray:
        step = self.grid[1] - self.grid[0]
        z = half.chosen(self.plain)[:, 0]
        return np.clip(np.round((z - self.grid[0]) / step).astype(int), 0, len(self.grid) - 1)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        level, other = (y, x) if self.swapped else (x, y)
        return self.log_ratio[level.code, self._places(other)]

    def cross(self, x: Half, y: Half) -> np.ndarray:
        level, other = (y, x) if self.swapped else (x, y)
        found = self.log_ratio[level.code][:, self._places(other)]
        return found.T if self.swapped else found


@dataclass(frozen=True)
class Classifier:
    """r = p(category | the rest) / p(category), the probabilities by boosted trees; `swapped`: x is the category."""

    swapped: bool
    trees: Any
    columns: np.ndarray  # of the features, those the trees see
    log_share: Float[np.ndarray, "level"]
    place: np.ndarray  # the trees' class of each level, -1 for none

    @staticmethod
    def fit(x: Half, y: Half, seed: int, swapped: bool) -> "Classifier | None":
        given, other = (y, x) if swapped else (x, y)
        if other.code is None or other.numbers or other.levels > MOST_CLASSES:
            return None
        if given.numbers + (given.code is not None) < 2:
            return None  # one number has a density in every level, one category a table
        some = np.arange(min(len(x), MOST_GROWN))
        given, other = given[some], other[some]
        assert other.code is not None
        known = categories(given)
        seen = features(given)
        columns = np.arange(seen.shape[1]) if known else _telling(seen, other.code, other.levels)
        grown = trees("Classifier", len(some), seed, classes=other.levels, categorical_features=known)
        grown.fit(seen[:, columns], other.code)
        place = np.full(other.levels, -1)
        place[grown.classes_] = np.arange(len(grown.classes_))
        share = np.bincount(other.code, minlength=other.levels)[grown.classes_] / len(some)
        return Classifier(swapped, grown, columns, np.log(share), place)

    def _values(self, given: Half) -> np.ndarray:
        """(row, class or unseen)"""
        probability = self.trees.predict_proba(features(given)[:, self.columns])
        return np.column_stack([np.log(probability + FLOOR) - self.log_share, np.zeros(len(given))])

    def _class(self, other: Half) -> np.ndarray:
        assert other.code is not None
        return np.where(other.code < 0, -1, self.place[other.code])

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        given, other = (y, x) if self.swapped else (x, y)
        return self._values(given)[np.arange(len(x)), self._class(other)]

    def cross(self, x: Half, y: Half) -> np.ndarray:
        given, other = (y, x) if self.swapped else (x, y)
        found = self._values(given)[:, self._class(other)]
        return found.T if self.swapped else found


def _telling(seen: np.ndarray, code: np.ndarray, levels: int) -> np.ndarray:
    """The columns that say most about the category by themselves: information of a table of eight cells."""
    if seen.shape[1] <= MOST_FEATURES:
        return np.arange(seen.shape[1])
    value = []
    for column in seen.T:
        cell = np.searchsorted(np.quantile(column, np.arange(1, 8) / 8), column)
        table = np.bincount(cell * levels + code, minlength=8 * levels).reshape(8, levels) / len(code)
        value.append((table * np.log((table + FLOOR) / (np.outer(table.sum(1), table.sum(0)) + FLOOR))).sum())
    return np.sort(np.argsort(value)[-OF_MORE:])
