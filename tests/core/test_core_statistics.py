"""Intervals, mean ± spread, and the one rule for "better"."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, ttest_rel

from nearfar.core.statistics import (
    Difference,
    adjust_for_all,
    compare_answers,
    compare_draws,
    holm,
    mean_and_spread,
    student_interval,
    wilson,
)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_p_of_answers_equals_the_enumeration(pairs: list[tuple[bool, bool]]) -> None:
    """McNemar's exact p sums the outcomes of the disagreements at most as likely as the observed one."""
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    comparison = compare_answers(first, second)
    disagreements = comparison.only_first + comparison.only_second
    weights = [math.comb(disagreements, wins) for wins in range(disagreements + 1)]
    expected = sum(w for w in weights if w <= weights[comparison.only_first] * (1 + 1e-7)) / 2**disagreements
    assert comparison.p == pytest.approx(expected)
    assert comparison.value == pytest.approx(first.mean() - second.mean())
    reverse = compare_answers(second, first)
    assert reverse.value == -comparison.value
    assert reverse.p == pytest.approx(comparison.p)
    assert comparison.interval is not None
    assert comparison.interval[0] <= comparison.interval[1]


def test_large_samples_agree_with_the_chi_square() -> None:
    """McNemar's statistic (|b - c| - 1)² / (b + c) is chi-square with one degree of freedom in the limit."""
    first = np.arange(10_000) < 6200
    second = np.concatenate([np.ones(5800, bool), np.zeros(4000, bool), np.ones(200, bool)])
    comparison = compare_answers(first, second)
    b, c = comparison.only_first, comparison.only_second
    assert comparison.p == pytest.approx(float(chi2.sf((abs(b - c) - 1) ** 2 / (b + c), 1)), rel=0.15)


def test_the_interval_of_answers_covers_the_true_difference() -> None:
    """95 % of intervals cover the true difference, within three standard errors."""
    rng = np.random.default_rng(0)
    chances, covered, trials = np.array([0.6, 0.15, 0.05, 0.2]), 0, 2000
    for _ in range(trials):
        kinds = rng.choice(4, size=60, p=chances)
        interval = compare_answers((kinds == 0) | (kinds == 1), (kinds == 0) | (kinds == 2)).interval
        assert interval is not None
        covered += interval[0] <= 0.1 <= interval[1]
    assert (
        abs(covered / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials) + 0.01
    )  # the method errs by up to a point


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test(p: list[float]) -> None:
    """Holm is the closure of Bonferroni: the largest Bonferroni p of all subsets that hold the test."""
    for place, adjusted in enumerate(holm(p)):
        worst = 0.0
        for members in product([False, True], repeat=len(p)):
            if members[place]:
                inside = [value for value, member in zip(p, members, strict=True) if member]
                worst = max(worst, min(1.0, len(inside) * min(inside)))
        assert adjusted == pytest.approx(worst)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=8))
def test_draws_are_compared_by_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    difference = compare_draws(first, second)
    gaps = np.subtract(first, second)
    assert difference.value == pytest.approx(gaps.mean(), abs=1e-12)
    if np.ptp(gaps) < 1e-6:
        return
    expected = ttest_rel(first, second)
    assert difference.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    low, high = expected.confidence_interval(0.95)
    assert difference.interval == pytest.approx((low, high), abs=1e-9)
    assert (difference.verdict != "not distinguishable") == (low > 0 or high < 0)


def test_three_equal_differences_are_not_distinguishable_and_four_are() -> None:
    """A test set counts whole rows: two or three seeds can agree exactly by chance."""
    for count in (1, 2, 3):
        difference = compare_draws([0.5] * count, [0.4] * count)
        assert (difference.interval, difference.p, difference.verdict) == (None, None, "not distinguishable")
    assert compare_draws([0.5] * 4, [0.4] * 4).verdict == "better"
    assert compare_draws([0.4] * 4, [0.5] * 4).verdict == "worse"


def test_more_compared_pairs_need_more_evidence() -> None:
    """p = 0.03 alone is a difference; among ten comparisons it is not (Holm)."""
    one = Difference(0.1, (0.01, 0.19), 0.03, 100)
    undetermined = Difference(0.1, None, None, 1)
    assert one.verdict == "better"
    adjusted = adjust_for_all([one, undetermined, *[Difference(0.0, (-0.1, 0.1), 0.9, 100)] * 9])
    assert adjusted[0].p == pytest.approx(0.3)
    assert adjusted[0].verdict == "not distinguishable"
    assert adjusted[1] == undetermined


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_mean_and_spread_are_those_of_numpy(values: list[float]) -> None:
    mean, spread = mean_and_spread(values)
    assert mean == pytest.approx(np.mean(values), abs=1e-9)
    if len(values) == 1:
        assert spread is None
        assert student_interval(values) is None
    else:
        assert spread == pytest.approx(np.std(values, ddof=1), abs=1e-9)


@pytest.mark.parametrize("samples", [1, 7, 300])
def test_intervals_are_where_the_score_test_does_not_reject(samples: int) -> None:
    """Wilson 1927: p is inside iff |share - p| <= z sqrt(p (1 - p) / n), here on a fine grid of p."""
    grid = np.linspace(0, 1, 200_001)
    for hits in {0, samples // 3, samples - 1, samples}:
        inside = np.abs(hits / samples - grid) <= 1.959963984540054 * np.sqrt(grid * (1 - grid) / samples)
        assert wilson(hits / samples, samples) == pytest.approx(
            [grid[inside].min(), grid[inside].max()], abs=1e-5
        )


def test_intervals_agree_with_the_bootstrap() -> None:
    """The ends of the percentile bootstrap are binomial quantiles. They are within z^2 + 1 rows of Wilson's,
    whose middle is moved by z^2 |1 - 2 share| / 2 rows."""
    from scipy.stats import binom

    for samples in (200, 10_000):
        for share in (0.1, 0.5, 0.85):
            ends = binom.ppf([0.025, 0.975], samples, share) / samples
            assert wilson(share, samples) == pytest.approx(ends.tolist(), abs=(1.96**2 + 1) / samples)
