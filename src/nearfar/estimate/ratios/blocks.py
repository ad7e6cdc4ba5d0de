"""Which columns depend on which, and a ratio that is a product over such blocks.

    log r(x, y) = sum over blocks b of log r_b(x_b, y_b)

A column of x and a column of y are linked if their dependence stands out from chance among all pairs. Linked
columns form blocks; columns without a link are left out. So few ratios of few columns replace one of many
columns. The product is exact if blocks are independent of one another on either side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import chdtrc, ndtr

from nearfar.estimate import settings
from nearfar.estimate.ratios.sides import Ratio, SideRows

ColumnNumbers = Int[np.ndarray, "column"]


@dataclass(frozen=True)
class Block:
    """Columns of x and of y, as `SideRows.select` counts them."""

    x: ColumnNumbers
    y: ColumnNumbers

    def select(self, x: SideRows, y: SideRows) -> tuple[SideRows, SideRows]:
        return x.select(self.x), y.select(self.y)


@dataclass(frozen=True)
class BlockRatio:
    """The product of a ratio for every block."""

    blocks: tuple[Block, ...]
    ratios: tuple[Ratio, ...]

    def _total(self, x: SideRows, y: SideRows, log_r: Callable[[Ratio], Callable]) -> np.ndarray:
        parts = [
            log_r(ratio)(*block.select(x, y)) for block, ratio in zip(self.blocks, self.ratios, strict=True)
        ]
        return np.sum(parts, axis=0)

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._total(x, y, lambda ratio: ratio.pairs)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._total(x, y, lambda ratio: ratio.cross)


def find_blocks(x: SideRows, y: SideRows) -> tuple[Block, ...]:
    """Blocks of linked columns; none if there is no link, or if one block holds all columns."""
    width = x.column_count, y.column_count
    if width == (1, 1):
        return ()
    tables = column_functions(x), column_functions(y)
    p_values = np.minimum(
        link_p_values(*tables), np.minimum(_paired_p_values(*tables), _paired_p_values(*tables[::-1]).T)
    )
    links = p_values < settings.FALSE_LINKS
    graph = sparse.block_array([[None, sparse.csr_array(links)], [sparse.csr_array(links.T), None]])
    label = connected_components(graph, directed=False)[1]
    blocks = []
    for number in np.unique(label[: width[0]][links.any(axis=1)]):
        of_x, of_y = np.flatnonzero(label[: width[0]] == number), np.flatnonzero(label[width[0] :] == number)
        part = p_values[np.ix_(of_x, of_y)]
        blocks.append(Block(_most_linked(of_x, part.min(axis=1)), _most_linked(of_y, part.min(axis=0))))
    if len(blocks) == 1 and (len(blocks[0].x), len(blocks[0].y)) == width:
        return ()
    return tuple(blocks)


def _most_linked(columns: ColumnNumbers, p_values: np.ndarray) -> ColumnNumbers:
    return np.sort(columns[np.argsort(p_values, kind="stable")[: settings.MAX_BLOCK_COLUMNS]])


@dataclass(frozen=True)
class FunctionTable:
    """Standardised functions of the columns of a side, and the column of each."""

    values: Float[np.ndarray, "row function"]
    owner: Int[np.ndarray, "function"]

    @property
    def starts(self) -> Int[np.ndarray, "column"]:
        return np.searchsorted(self.owner, np.arange(self.owner[-1] + 1))


def link_p_values(x: FunctionTable, y: FunctionTable) -> Float[np.ndarray, "x_column y_column"]:
    """p-value of independence of every column of x and every column of y, times the number of such pairs.

    Functions of either column are correlated. n r^2 is nearly chi-square of one degree of freedom for a pair of
    functions, and their sum of as many as there are pairs: the smaller p-value counts, twice.
    """
    square = (x.values.T @ y.values) ** 2 / len(x.values)
    largest = np.maximum.reduceat(np.maximum.reduceat(square, x.starts, axis=0), y.starts, axis=1)
    total = np.add.reduceat(np.add.reduceat(square, x.starts, axis=0), y.starts, axis=1)
    pairs = np.outer(np.bincount(x.owner), np.bincount(y.owner)).astype(float)
    return 2 * total.size * np.minimum(pairs * chdtrc(1.0, largest), chdtrc(pairs, total))


def _paired_p_values(x: FunctionTable, y: FunctionTable) -> Float[np.ndarray, "x_column y_column"]:
    """The same for products of two columns of x: a parity shows in no single column.

    A column's p-value is the smallest of the products it is part of, times the number of all products.
    """
    columns, width = int(x.owner[-1]) + 1, int(y.owner[-1]) + 1
    p_values = np.ones((columns, width))
    if not 2 <= columns <= settings.MAX_PAIRED_COLUMNS or width > settings.MAX_PAIRED_COLUMNS:
        return p_values
    few = np.flatnonzero(np.arange(len(x.owner)) - x.starts[x.owner] < settings.PAIRED_FUNCTIONS)
    first, second = few[np.array(np.triu_indices(len(few), 1))]
    distinct = x.owner[first] != x.owner[second]
    first, second = first[distinct], second[distinct]
    products = _standardised(x.values[:, first] * x.values[:, second])
    # studentised, since products with a column that matters vary more where y does
    square = (products.T @ y.values) ** 2 / np.maximum((products**2).T @ y.values**2, 1e-9)
    p = 2 * square.size * chdtrc(1.0, np.maximum.reduceat(square, y.starts, axis=1))
    for owner in (x.owner[first], x.owner[second]):
        np.minimum.at(p_values, owner, p)
    return p_values


def _standardised(table: np.ndarray) -> np.ndarray:
    table = table - table.mean(axis=0)
    return table / np.maximum(np.sqrt((table**2).mean(axis=0)), 1e-9)


def column_functions(side: SideRows) -> FunctionTable:
    """Waves of the rank of a number; the same of an ordered level, and indicators of frequent levels."""
    rank = ndtr(side.normal[:, : side.numbers - side.indicators])
    waves = [np.cos(np.pi * k * rank) for k in range(1, settings.WAVES + 1)]
    functions = list(np.stack(waves, axis=2).transpose(1, 2, 0).reshape(-1, len(side)))
    owner = list(np.repeat(np.arange(rank.shape[1]), settings.WAVES))
    for k, (code, levels) in enumerate(zip(side.categories.T, side.category_levels, strict=True)):
        count = np.bincount(np.maximum(code, 0), minlength=levels)
        frequent = np.argsort(-count, kind="stable")[: settings.MAX_LINKED_LEVELS]
        frequent = frequent[
            (count[frequent] >= settings.MIN_LINKED_LEVEL_ROWS) | (np.arange(len(frequent)) == 0)
        ]
        place = np.cumsum(count) - count / 2
        own = [np.cos(np.pi * place[np.maximum(code, 0)] / len(side)), *(code == level for level in frequent)]
        functions += own
        owner += [rank.shape[1] + k] * len(own)
    return FunctionTable(_standardised(np.array(functions, dtype=float).T), np.array(owner))
