"""Ratios from classifiers of boosted trees: of a category given the other side, or of true against shuffled
pairs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.gaussian import GaussianRatio
from nearfar.estimate.ratios.regressions import (
    FLOOR,
    MAX_TREE_ROWS,
    boosted_trees,
    categorical_features,
    tree_features,
)
from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.samples import CanonicalMap

MAX_CLASSES = 16
MAX_FEATURES, SELECTED_FEATURES = 32, 16  # trees see all of 32 columns; of more, the most informative 16

MIN_ROWS, MAX_ROWS = 300, 2500  # with more rows a network is cheaper per pair
MAX_COLUMNS = 24  # of both sides
SHIFTS = 2  # shuffled pairs per row
TRIAL_ROUNDS = 15
CHUNK = 65_536  # pairs


@dataclass(frozen=True)
class ClassifierRatio:
    """r = p(category | other side) / p(category); `swapped`: x is the category."""

    swapped: bool
    trees: Any
    columns: np.ndarray  # features that the trees see
    log_share: Float[np.ndarray, "class"]
    classes: np.ndarray  # the trees' class of each level, -1 for none

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, swapped: bool) -> "ClassifierRatio | None":
        source, category = (y, x) if swapped else (x, y)
        if category.code is None or category.numbers or category.levels > MAX_CLASSES:
            return None
        if source.features < 2:
            return None  # one number has a density in every level, one category has a table
        rows = np.arange(min(len(x), MAX_TREE_ROWS))
        source, category = source[rows], category[rows]
        code, levels = category.level_codes, category.levels
        categorical = categorical_features(source)
        features = tree_features(source)
        columns = (
            np.arange(features.shape[1]) if categorical else _informative_features(features, code, levels)
        )
        trees = boosted_trees("classification", len(rows), seed, classes=levels, categorical=categorical)
        trees.fit(features[:, columns], code)
        classes = np.full(levels, -1)
        classes[trees.classes_] = np.arange(len(trees.classes_))
        share = np.bincount(code, minlength=levels)[trees.classes_] / len(rows)
        return ClassifierRatio(swapped, trees, columns, np.log(share), classes)

    def _class_log_ratios(self, source: SideRows) -> Float[np.ndarray, "row class"]:
        """log p(class | source) / p(class); the last class is an unseen one."""
        probability = self.trees.predict_proba(tree_features(source)[:, self.columns])
        return np.column_stack([np.log(probability + FLOOR) - self.log_share, np.zeros(len(source))])

    def _class_of(self, category: SideRows) -> np.ndarray:
        return np.where(category.level_codes < 0, -1, self.classes[category.level_codes])

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        source, category = (y, x) if self.swapped else (x, y)
        return self._class_log_ratios(source)[np.arange(len(x)), self._class_of(category)]

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        source, category = (y, x) if self.swapped else (x, y)
        log_r = self._class_log_ratios(source)[:, self._class_of(category)]
        return log_r.T if self.swapped else log_r


def _informative_features(features: np.ndarray, code: np.ndarray, levels: int) -> np.ndarray:
    """Of many columns, those with most information about the category in a table of eight bins."""
    if features.shape[1] <= MAX_FEATURES:
        return np.arange(features.shape[1])
    nats = []
    for column in features.T:
        cell = np.searchsorted(np.quantile(column, np.arange(1, 8) / 8), column)
        table = np.bincount(cell * levels + code, minlength=8 * levels).reshape(8, levels) / len(code)
        independent = np.outer(table.sum(1), table.sum(0))
        nats.append((table * np.log((table + FLOOR) / (independent + FLOOR))).sum())
    return np.sort(np.argsort(nats)[-SELECTED_FEATURES:])


@dataclass(frozen=True)
class DiscriminatorRatio:
    """The odds of a classifier of true against shuffled pairs, for several columns on both sides.

    Trees also see the products of canonical pairs, of which a Gaussian ratio is made. Few trees are tried
    first.
    """

    canonical: CanonicalMap
    trees: Any

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int) -> "DiscriminatorRatio | None":
        """None if it does not apply, or if a trial on unseen rows is no better than a Gaussian."""
        if min(x.features, y.features) < 2 or x.features + y.features > MAX_COLUMNS:
            return None
        if not MIN_ROWS <= len(x) < MAX_ROWS or not x.numbers or not y.numbers:
            return None
        train, unseen = np.split(np.arange(len(x)), [3 * len(x) // 4])
        trial = DiscriminatorRatio._grow(x[train], y[train], seed, TRIAL_ROUNDS)
        gaussian = GaussianRatio(trial.canonical)
        numeric = [SideRows.of_numbers(side.normal, side.scaled)[unseen] for side in (x, y)]
        if trial.pairs(x[unseen], y[unseen]).mean() <= max(0.0, float(gaussian.pairs(*numeric).mean())):
            return None
        return DiscriminatorRatio._grow(x, y, seed, None)

    @staticmethod
    def _grow(x: SideRows, y: SideRows, seed: int, rounds: int | None) -> "DiscriminatorRatio":
        canonical = CanonicalMap.fit(x.normal, y.normal)
        a, b = _side_features(x, canonical, 0), _side_features(y, canonical, 1)
        pairs = len(canonical.correlation)
        shifts = np.random.default_rng(seed).choice(np.arange(1, len(x)), SHIFTS, replace=False)
        features = np.vstack([_pair_features(a, np.roll(b, k, axis=0), pairs) for k in (0, *shifts)])
        is_true_pair = np.repeat([1, 0], [len(x), SHIFTS * len(x)])
        trees = boosted_trees("classification", len(features), seed, rounds)
        return DiscriminatorRatio(canonical, trees.fit(features, is_true_pair))

    def _log_odds(self, features: np.ndarray) -> np.ndarray:
        p = self.trees.predict_proba(features)[:, 1]
        return np.log((p + FLOOR) / (1 - p + FLOOR)) + np.log(SHIFTS)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        a, b = _side_features(x, self.canonical, 0), _side_features(y, self.canonical, 1)
        return self._log_odds(_pair_features(a, b, len(self.canonical.correlation)))

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        a, b = _side_features(x, self.canonical, 0), _side_features(y, self.canonical, 1)
        log_r = np.empty((len(a), len(b)))
        step = max(1, CHUNK // len(b))
        for start in range(0, len(a), step):
            part = a[start : start + step]
            repeated = np.repeat(part, len(b), axis=0), np.tile(b, (len(part), 1))
            features = _pair_features(*repeated, len(self.canonical.correlation))
            log_r[start : start + step] = self._log_odds(features).reshape(len(part), len(b))
        return log_r


def _side_features(side: SideRows, canonical: CanonicalMap, side_index: int) -> np.ndarray:
    """Canonical columns, as many as there are pairs, then the features of the side."""
    mean, rotation = ((canonical.x_mean, canonical.x_map), (canonical.y_mean, canonical.y_map))[side_index]
    rotated = (side.normal - mean) @ rotation[:, : len(canonical.correlation)]
    return np.hstack([rotated, tree_features(side)])


def _pair_features(a: np.ndarray, b: np.ndarray, pairs: int) -> np.ndarray:
    return np.hstack([a[:, pairs:], b[:, pairs:], a[:, :pairs] * b[:, :pairs]])
