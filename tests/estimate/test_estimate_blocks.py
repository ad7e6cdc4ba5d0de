"""Columns of any kind and number: links, blocks, forests and scores, each against a brute-force reference or a closed form."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, multivariate_normal, norm

import nearfar as nf
from nearfar.estimate.ratios import CANDIDATES, SideMap, SideRows, fit_stack
from nearfar.estimate.ratios.blocks import Block, BlockRatio, column_functions, find_blocks, link_p_values
from nearfar.estimate.ratios.forest import ForestRatio, LeafWeights
from nearfar.estimate.ratios.gaussian import GaussianRatio
from nearfar.estimate.ratios.stack import BLOCKS
from nearfar.estimate.ratios.transforms import ScoreMap
from nearfar.estimate.settings import PRIOR_ROWS, TREES

RNG = np.random.default_rng


def side(values: np.ndarray, *discrete: int) -> SideRows:
    """Columns with these numbers are categories."""
    values = values.reshape(len(values), -1).astype(float)
    kinds = np.isin(np.arange(values.shape[1]), discrete)
    return SideMap.fit(values, kinds)(values)


def mixed_side(n: int = 300) -> tuple[np.ndarray, SideRows]:
    rng = RNG(0)
    table = np.column_stack(
        [rng.normal(size=n), rng.integers(0, 3, n), rng.normal(size=n), rng.integers(0, 4, n)]
    )
    return table, side(table, 1, 3)


def test_selected_columns_are_those_of_a_side_made_of_them() -> None:
    """Numbers count first, then categories; several categories are one whose levels are their combinations."""
    table, whole = mixed_side()
    assert whole.column_count == 4
    chosen = whole.select(np.array([1, 2, 3]))
    alone = side(table[:, [2, 1, 3]], 1, 2)
    np.testing.assert_array_equal(chosen.normal, alone.normal)
    np.testing.assert_array_equal(chosen.scaled, alone.scaled)
    assert chosen.code is not None
    assert chosen.levels == 12
    np.testing.assert_array_equal(chosen.code, 4 * table[:, 1] + table[:, 3])
    assert whole.select(np.array([0])).code is None


def test_an_unseen_level_of_one_column_is_an_unseen_combination() -> None:
    table, _ = mixed_side()
    new = table[:2].copy()
    new[0, 3] = 9.0
    rows = SideMap.fit(table, np.array([False, True, False, True]))(new)
    code = rows.select(np.array([2, 3])).code
    assert code is not None
    assert code[0] == -1
    assert code[1] >= 0


def test_links_are_chi_square_of_correlated_functions() -> None:
    """By loops: the largest n r^2 of one degree of freedom, Bonferroni, or the sum of all; twice, over all pairs of columns."""
    _, x = mixed_side()
    y = side(np.column_stack([x.normal[:, 0] + RNG(1).normal(size=300), RNG(2).normal(size=300)]))
    tables = column_functions(x), column_functions(y)
    result = link_p_values(*tables)
    for i in range(4):
        for j in range(2):
            a = [f for f, owner in zip(tables[0].values.T, tables[0].owner, strict=True) if owner == i]
            b = [g for g, owner in zip(tables[1].values.T, tables[1].owner, strict=True) if owner == j]
            squares = [300 * np.corrcoef(f, g)[0, 1] ** 2 for f in a for g in b]
            smaller = min(len(squares) * chi2.sf(max(squares), 1), chi2.sf(sum(squares), len(squares)))
            assert result[i, j] == pytest.approx(8 * 2 * smaller, rel=1e-6)


def test_independent_columns_are_rarely_linked() -> None:
    """FALSE_LINKS = 0.1 of each of three tests: 18 of 60 tables are expected at most, and 25 are two standard errors more."""
    linked = 0
    for seed in range(60):
        rng = RNG([3, seed])
        x = side(np.column_stack([rng.normal(size=(200, 3)), rng.poisson(2.0, size=(200, 2))]), 3, 4)
        y = side(np.column_stack([rng.standard_cauchy(size=(200, 2)), rng.integers(0, 5, 200)]), 2)
        linked += bool(find_blocks(x, y))
    assert linked <= 25


def test_blocks_are_the_columns_that_depend_on_each_other() -> None:
    """Two causes among noise, one of them without correlation, and a parity of two columns that no single one shows."""
    rng = RNG(4)
    x, e = rng.normal(size=(2, 500, 7))
    y = np.column_stack(
        [e[:, 0], x[:, 1] + e[:, 1], x[:, 3] ** 2 + e[:, 2], np.sign(x[:, 5] * x[:, 6]) + 0.5 * e[:, 3]]
    )
    blocks = find_blocks(side(x), side(y))
    assert len(blocks) == 3
    for block, of_x, of_y in zip(blocks, ({1}, {3}, {5, 6}), ({1}, {2}, {3}), strict=True):
        assert of_x <= set(block.x)  # a false link may add a column
        assert of_y <= set(block.y)
    assert sum(len(block.x) + len(block.y) for block in blocks) <= 9
    assert find_blocks(side(x[:, :1]), side(y[:, :1])) == ()


def test_a_product_of_blocks_is_the_ratio_of_independent_pairs() -> None:
    """log r = sum of the blocks' log ratios, of pairs and of all combinations."""
    rng = RNG(5)
    x, e = rng.normal(size=(2, 400, 2))
    a, b = side(x), side(x + e)
    parts = [Block(np.array([k]), np.array([k])) for k in (0, 1)]
    ratios = [GaussianRatio.fit(*part.select(a, b), 0) for part in parts]
    assert all(ratio is not None for ratio in ratios)
    product = BlockRatio(tuple(parts), tuple(ratio for ratio in ratios if ratio is not None))
    expected = sum(ratio.cross(*part.select(a, b)) for part, ratio in zip(parts, product.ratios, strict=True))
    np.testing.assert_allclose(product.cross(a, b), expected)
    np.testing.assert_allclose(product.pairs(a, b), np.diagonal(expected))


def test_the_stack_of_a_wide_table_has_the_log_ratio_of_its_two_pairs() -> None:
    """x_7 with y_3 and x_20 with y_11, correlation 0.8 each, among 40 and 30 columns: the exact log ratio of unseen rows."""
    rng = RNG(6)
    x, y = rng.normal(size=(900, 40)), rng.normal(size=(900, 30))
    pairs = ((7, 3), (20, 11))
    for i, j in pairs:
        y[:, j] = 0.8 * x[:, i] + 0.6 * y[:, j]
    maps = [SideMap.fit(z[:600], np.zeros(z.shape[1], bool)) for z in (x, y)]
    learned, unseen = ((maps[0](x[rows]), maps[1](y[rows])) for rows in (slice(600), slice(600, None)))
    stack = fit_stack(*learned, 0)
    assert stack.names[1] == BLOCKS
    joint = multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]])
    exact = sum(
        joint.logpdf(np.column_stack([x[600:, i], y[600:, j]]))
        - norm.logpdf(x[600:, i])
        - norm.logpdf(y[600:, j])
        for i, j in pairs
    )
    assert np.abs(stack.pairs(*unseen) - exact).mean() < 0.15


def test_weights_of_leaves_are_shares_of_rows() -> None:
    """Of a row they sum to one, less the trees whose leaf is empty; a tree without a split gives all rows one share."""
    x, y = RNG(7).normal(size=(2, 200, 2))
    weights = LeafWeights.fit(x.astype(np.float32), y, 0)(x[:20].astype(np.float32))
    trees_with_rows = weights.sum(axis=1) * TREES
    np.testing.assert_allclose(trees_with_rows, np.round(trees_with_rows))
    assert TREES - 2 <= trees_with_rows.min() <= trees_with_rows.max() <= TREES + 1e-9
    assert weights.min() >= 0
    few = x[:7].astype(np.float32)  # no leaf has four rows on both sides of a split
    alone = LeafWeights.fit(few, y[:7], 0)(few)
    np.testing.assert_allclose(alone, np.tile(alone[0], (7, 1)))


def test_a_forest_reads_columns_of_every_kind() -> None:
    """y = +-z by a category beside noise: I(x; y) is that of z and a sign, which no pair of columns shows."""
    rng = RNG(8)
    sign, z, noise = rng.integers(0, 2, 1500), rng.normal(size=1500), rng.normal(size=1500)
    y = np.where(sign == 1, z, -z) + 0.4 * rng.normal(size=1500)
    x = np.column_stack([z, noise, sign])
    maps = (
        SideMap.fit(x[:1000], np.array([False, False, True])),
        SideMap.fit(y[:1000, None], np.array([False])),
    )
    learned, unseen = (
        (maps[0](x[rows]), maps[1](y[rows, None])) for rows in (slice(1000), slice(1000, None))
    )
    ratio = ForestRatio.fit(*learned, 0)
    assert ratio is not None
    truth = 0.5 * math.log(1 + 1 / 0.16)
    assert 0.4 * truth < float(ratio.pairs(*unseen).mean()) < truth
    assert float(np.exp(ratio.cross(*unseen)).mean()) == pytest.approx(1, abs=0.1)


def test_scores_of_levels_are_shrunk_means() -> None:
    """sum of the leading function over a level's rows / (rows + PRIOR_ROWS), up to the function's sign; 0 for an unseen level."""
    rng = RNG(9)
    code = rng.integers(0, 5, 300)
    y = np.array([3.0, -2.0, 0.0, 1.0, -1.0])[code] + 0.1 * rng.normal(size=300)
    x_side, y_side = side(code[:, None], 0), side(y)
    scores, crossed = ScoreMap.fit(x_side, y_side, 0)
    functions = column_functions(y_side).values
    means = np.stack(
        [functions[code == k].sum(axis=0) / np.sqrt((code == k).sum() + PRIOR_ROWS) for k in range(5)]
    )
    leading = functions @ np.linalg.svd(means)[2][0]
    expected = [leading[code == k].sum() / ((code == k).sum() + PRIOR_ROWS) for k in range(5)]
    np.testing.assert_allclose(np.abs(scores.scores[0]), np.abs([*expected, 0.0]), atol=1e-9)
    order = np.argsort(scores.scores[0][:5])
    assert order.tolist() in ([1, 4, 2, 3, 0], [0, 3, 2, 4, 1])
    assert crossed.numbers == 1
    # scores of a row come from the other half: they are not those of all rows
    assert not np.allclose(crossed.scaled[:, 0], scores(x_side).scaled[:, 0])


@pytest.mark.parametrize("columns", [3, 60])
def test_columns_of_noise_beside_a_dependence_take_little_away(columns: int) -> None:
    """Five columns of noise once removed 1.2 nats. I = log(1 / 0.36) / 2 = 0.51."""
    rng = RNG(10)
    x, e = rng.normal(size=(2, 400))
    y = 0.8 * x + 0.6 * e
    beside = np.column_stack([x, rng.normal(size=(400, columns))])
    result = nf.estimate_mi(beside, y, baselines=False)
    assert result.nats == pytest.approx(0.51, abs=0.12)
    assert result.at_least < 0.51 < result.interval[1]


def test_combinations_of_many_categories_take_no_memory() -> None:
    """Four columns of 20 levels have 160,000 combinations, of which 300 rows show 300."""
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 20, size=(300, 4))
    full = SideMap.fit(codes.astype(float), np.full(4, True))(codes.astype(float))
    block, number = full.select(np.arange(4)), side(rng.normal(size=(300, 1)))
    assert block.levels == 20**4
    for name in (
        "levels, plain",
        "levels, own spread",
        "densities",
        "y of x, scaled",
        "y of x, plain",
        "counts",
    ):
        assert CANDIDATES[name](block, number, 0) is None
    assert CANDIDATES["counts"](block, block, 0) is None
