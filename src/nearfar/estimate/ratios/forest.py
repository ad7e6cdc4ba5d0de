"""A ratio from random forests of either side, for columns of any kind: numbers, categories and both.

    r(x, y) = n sum_i a_i(x) b_i(y)

a_i(x) is the share of training row i in the leaves of x, over trees that predict y from x; b_i(y) is the same for
trees that predict x from y. Both sum to one over i but for empty leaves, so r has mean about one under independence. It is the kernel
ratio of Kraskov et al. (2004) with neighbourhoods that were learned (Lin & Jeon 2006; Ćevid et al. 2022). A tree
is grown on half of the rows, and its leaves hold the other half, so that no row is its own neighbour.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import sparse

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.rows import blocks


@dataclass(frozen=True)
class LeafWeights:
    """The forest of one side, and which training rows its leaves hold."""

    trees: list[Any]
    offsets: np.ndarray
    leaves: sparse.csr_array  # (leaf of any tree, training row): share of the row in the leaf, over the trees

    @staticmethod
    def fit(source: np.ndarray, target: np.ndarray, seed: int) -> "LeafWeights":
        from sklearn import config_context, tree  # takes a second to import

        rng = np.random.default_rng(seed)
        n = len(source)
        leaf = max(settings.MIN_LEAF, int(settings.LEAF_SHARE * n))
        trees, offsets, rows, columns, shares, offset = [], [], [], [], [], 0
        with config_context(skip_parameter_validation=True):
            for _ in range(settings.TREES):
                order = rng.permutation(n)
                inside, outside = order[: n // 2], order[n // 2 :]
                grown = tree.DecisionTreeRegressor(
                    min_samples_leaf=leaf,
                    max_features=max(1, (2 * source.shape[1] + 2) // 3),
                    random_state=int(rng.integers(2**31)),
                ).fit(source[inside], target[inside], check_input=False)
                nodes = grown.tree_.node_count
                place = grown.tree_.apply(source[outside])
                trees.append(grown.tree_)
                offsets.append(offset)
                rows.append(place + offset)
                columns.append(outside)
                shares.append(1 / (settings.TREES * np.bincount(place, minlength=nodes)[place]))
                offset += nodes
        leaves = sparse.csr_array(
            (np.concatenate(shares), (np.concatenate(rows), np.concatenate(columns))), shape=(offset, n)
        )
        return LeafWeights(trees, np.array(offsets), leaves)

    def __call__(self, source: np.ndarray) -> Float[np.ndarray, "row training_row"]:
        place = np.column_stack([tree.apply(source) for tree in self.trees]) + self.offsets
        rows = np.repeat(np.arange(len(source)), settings.TREES)
        shape = len(source), self.leaves.shape[0]
        member = sparse.csr_array((np.ones(place.size), (rows, place.ravel())), shape=shape)
        return (member @ self.leaves).toarray()


@dataclass(frozen=True)
class ForestRatio:
    x: LeafWeights
    y: LeafWeights

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int) -> "ForestRatio | None":
        if max(x.features, y.features) > settings.MAX_FOREST_COLUMNS:
            return None
        if x.features == y.features == 1 or max(x.levels, y.levels) > settings.MAX_FOREST_COLUMNS:
            return None
        rows = np.arange(min(len(x), settings.MAX_FOREST_ROWS))
        x, y = x[rows], y[rows]
        sources, targets = (_sources(x), _sources(y)), (_targets(x), _targets(y))
        return ForestRatio(
            LeafWeights.fit(sources[0], targets[1], seed), LeafWeights.fit(sources[1], targets[0], seed)
        )

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        first, second = _sources(x), _sources(y)
        shared = [
            (self.x(first[part]) * self.y(second[part])).sum(axis=1)
            for part in blocks(np.arange(len(x)), settings.FOREST_CHUNK)
        ]
        return np.log(np.maximum(np.concatenate(shared) * self.x.leaves.shape[1], settings.MIN_FOREST_RATIO))

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        a, b = self.x(_sources(x)), self.y(_sources(y))
        return np.log(np.maximum(a @ b.T * a.shape[1], settings.MIN_FOREST_RATIO))


def _sources(side: SideRows) -> Float[np.ndarray, "row column"]:
    """What trees split on: normal ranks, and an indicator for each level of the category."""
    return np.ascontiguousarray(side.columns(), dtype=np.float32)


def _targets(side: SideRows) -> Float[np.ndarray, "row column"]:
    """What trees predict: ranks, their squares, and indicators of levels, each of variance about one."""
    z = side.normal
    level = side.columns()[:, z.shape[1] :]
    share = level.mean(axis=0)
    level = level / np.sqrt(np.maximum(share, 0.02))
    return np.ascontiguousarray(np.hstack([z, (z**2 - 1) / np.sqrt(2), level]), dtype=np.float64)
