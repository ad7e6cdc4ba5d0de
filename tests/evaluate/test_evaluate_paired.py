"""Answers kept per instance, and the paired comparison of two runs on them."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from nearfar.evaluate.paired import holm, paired
from nearfar.run.answers import packed, unpacked, without_answers


@given(st.lists(st.tuples(st.integers(-1, 2**31 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=50))
def test_answers_come_back(pairs: list[tuple[int, int]]) -> None:
    said, true = (torch.tensor(side) for side in zip(*pairs, strict=True))
    found = unpacked({"top1": 0.5, **packed(said, true)})
    assert found is not None
    np.testing.assert_array_equal(found.said, said)
    np.testing.assert_array_equal(found.true, true)


@pytest.mark.parametrize(
    "held",
    [None, 3, {}, {"said": "!", "true": "!"}, {"said": 5, "true": []}, {"said": "YWJj", "true": "YWJj"}],
)
def test_what_is_no_answer_is_none(held: object) -> None:
    assert unpacked({"answers": held}) is None
    tree = {
        "knn": {"top1": 0.5, "answers": held},
        "baselines": {"pixels": {"knn": {"answers": held, "top1": 0.1}}},
    }
    assert without_answers(tree) == {"knn": {"top1": 0.5}, "baselines": {"pixels": {"knn": {"top1": 0.1}}}}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_p_is_that_of_every_way_the_coins_could_fall(pairs: list[tuple[bool, bool]]) -> None:
    """McNemar's exact p by enumeration: all outcomes of the disagreements at least as unlikely as the one seen."""
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    found = paired(first, second)
    apart = found.only_first + found.only_second
    weights = [math.comb(apart, wins) for wins in range(apart + 1)]
    expected = sum(w for w in weights if w <= weights[found.only_first] * (1 + 1e-7)) / 2**apart
    assert found.p == pytest.approx(expected)
    assert found.difference == pytest.approx(first.mean() - second.mean())
    other = paired(second, first)
    assert other.difference == -found.difference
    assert other.p == pytest.approx(found.p)
    assert found.interval[0] <= found.interval[1]


def test_large_samples_agree_with_the_chi_square() -> None:
    """McNemar's statistic (|b - c| - 1)² / (b + c) is chi-square with one degree of freedom in the limit."""
    first = np.arange(10_000) < 6200
    second = np.concatenate([np.ones(5800, bool), np.zeros(4000, bool), np.ones(200, bool)])
    found = paired(first, second)
    b, c = found.only_first, found.only_second
    assert found.p == pytest.approx(float(chi2.sf((abs(b - c) - 1) ** 2 / (b + c), 1)), rel=0.15)


def test_the_interval_covers() -> None:
    """Drawn from known probabilities of the four outcomes, 95 % of intervals hold the true difference: within three standard errors."""
    rng = np.random.default_rng(0)
    chances, held, trials = np.array([0.6, 0.15, 0.05, 0.2]), 0, 2000
    for _ in range(trials):
        kinds = rng.choice(4, size=60, p=chances)
        low, high = paired((kinds == 0) | (kinds == 1), (kinds == 0) | (kinds == 2)).interval
        held += low <= 0.1 <= high
    assert (
        abs(held / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials) + 0.01
    )  # the method errs by up to a point


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test(p: list[float]) -> None:
    """Holm is the closure of Bonferroni: the largest Bonferroni p of all subsets that hold the test."""
    for place, found in enumerate(holm(p)):
        worst = 0.0
        for members in product([False, True], repeat=len(p)):
            if members[place]:
                inside = [value for value, member in zip(p, members, strict=True) if member]
                worst = max(worst, min(1.0, len(inside) * min(inside)))
        assert found == pytest.approx(worst)
