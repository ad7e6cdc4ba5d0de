"""Boosted trees that tell rows from pairs that do not belong together: the odds of their answer are a ratio.

Where a side is one number or a category of few levels, trees predict it (conditional.py), which asks less of them. Here both sides have several columns. Beside
those, trees see the products of canonical pairs, of which a Gaussian's ratio is made. A few trees first: where they tell no more than the Gaussian on rows
they were not grown on, the others are spared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfar.estimate.ratios.elliptic import Gaussian
from nearfar.estimate.ratios.halves import Half
from nearfar.estimate.ratios.regressions import FLOOR, features, trees
from nearfar.estimate.samples import Canonical

FEWEST_ROWS, MOST_ROWS = 300, 2500  # with more rows a network takes its place, at less cost for each pair
MOST_COLUMNS = 24  # of both sides
SHIFTS = 2  # pairs that do not belong together, for each row
ROUNDS = 15  # of the trial
CHUNK = 65_536  # pairs at a time


@dataclass(frozen=True)
class Discriminator:
    canonical: Canonical
    trees: Any

    @staticmethod
    def fit(x: Half, y: Half, seed: int) -> "Discriminator | None":
        """None where it would not be tried, or a few trees tell no more than a Gaussian."""
        columns = [half.numbers + (half.code is not None) for half in (x, y)]
        if min(columns) < 2 or sum(columns) > MOST_COLUMNS:
            return None
        if not FEWEST_ROWS <= len(x) < MOST_ROWS or not x.numbers or not y.numbers:
            return None
        learned, unseen = np.split(np.arange(len(x)), [3 * len(x) // 4])
        trial = Discriminator._grown(x[learned], y[learned], seed, ROUNDS)
        gaussian = Gaussian(trial.canonical)
        there = Half(x.normal, x.plain, None, 0)[unseen], Half(y.normal, y.plain, None, 0)[unseen]
        if trial.pairs(x[unseen], y[unseen]).mean() <= max(0.0, float(gaussian.pairs(*there).mean())):
            return None
        return Discriminator._grown(x, y, seed, None)

    @staticmethod
    def _grown(x: Half, y: Half, seed: int, rounds: int | None) -> "Discriminator":
        canonical = Canonical.fit(x.normal, y.normal)
        a, b = _side(x, canonical, 0), _side(y, canonical, 1)
        pairs = len(canonical.correlation)
        shifts = np.random.default_rng(seed).choice(np.arange(1, len(x)), SHIFTS, replace=False)
        seen = np.vstack([_together(a, np.roll(b, k, axis=0), pairs) for k in (0, *shifts)])
        belongs = np.repeat([1, 0], [len(x), SHIFTS * len(x)])
        return Discriminator(canonical, trees("Classifier", len(seen), seed, rounds).fit(seen, belongs))

    def _value(self, seen: np.ndarray) -> np.ndarray:
        p = self.trees.predict_proba(seen)[:, 1]
        return np.log((p + FLOOR) / (1 - p + FLOOR)) + np.log(SHIFTS)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        a, b = _side(x, self.canonical, 0), _side(y, self.canonical, 1)
        return self._value(_together(a, b, len(self.canonical.correlation)))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        a, b = _side(x, self.canonical, 0), _side(y, self.canonical, 1)
        found = np.empty((len(a), len(b)))
        step = max(1, CHUNK // len(b))
        for start in range(0, len(a), step):
            some = a[start : start + step]
            all_pairs = _together(
                np.repeat(some, len(b), axis=0), np.tile(b, (len(some), 1)), len(self.canonical.correlation)
            )
            found[start : start + step] = self._value(all_pairs).reshape(len(some), len(b))
        return found


def _side(half: Half, canonical: Canonical, which: int) -> np.ndarray:
    """Its canonical columns, as many as there are pairs, then its own columns."""
    mean, turn = (canonical.x_mean, canonical.x_map) if which == 0 else (canonical.y_mean, canonical.y_map)
    moved = (half.normal - mean) @ turn[:, : len(canonical.correlation)]
    return np.hstack([moved, features(half)])


def _together(a: np.ndarray, b: np.ndarray, pairs: int) -> np.ndarray:
    return np.hstack([a[:, pairs:], b[:, pairs:], a[:, :pairs] * b[:, :pairs]])
