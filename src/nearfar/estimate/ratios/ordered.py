"""Categories in an order: levels as numbers, where a table would have to learn each of them by itself.

Answers from 1 to 5, counts, readings that were rounded: what a level tells is near to what its neighbours tell. Levels become the normal quantiles of the
middle of their ranks, and a ratio of numbers is fitted. Words are in alphabetical order, which tells nothing and then wins no weight.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from nearfar.estimate.ratios.halves import Half, Ratio

FEWEST_LEVELS = 3  # of two levels the order says nothing
Place = Float[np.ndarray, "level"]


@dataclass(frozen=True)
class Ordered:
    x: Place | None  # None: read as it is
    y: Place | None
    between: Ratio

    @staticmethod
    def fit(
        x: Half, y: Half, seed: int, inner: Callable[[Half, Half, int], Ratio | None]
    ) -> "Ordered | None":
        places = [level_places(half) for half in (x, y)]
        if places[0] is None and places[1] is None:
            return None
        between = inner(_numbers(x, places[0]), _numbers(y, places[1]), seed)
        return None if between is None else Ordered(places[0], places[1], between)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.between.pairs(_numbers(x, self.x), _numbers(y, self.y))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.between.cross(_numbers(x, self.x), _numbers(y, self.y))


def level_places(half: Half) -> Place | None:
    """Where each level stands; last, one that was not seen: in the middle."""
    if half.code is None or half.numbers or half.levels < FEWEST_LEVELS:
        return None
    count = np.bincount(half.code, minlength=half.levels)
    middle = (np.cumsum(count) - count / 2) / count.sum()
    return np.append(ndtri(np.clip(middle, 1e-6, 1 - 1e-6)), 0.0)


def _numbers(half: Half, place: Place | None) -> Half:
    if place is None:
        return half
    column = place[half.code][:, None]
    return Half(column, column, None, 0)
