"""At least so many nats about a label, with any number of rows: the wealth of a bet against fewer, and that it is one.

K(m) = min_p mean over stakes of prod_i (1 + lambda (log q(y_i | x_i) - log p(y_i) - m)); reject m where K(m) >= 1 / (1 - confidence).
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import binom

from nearfar import info
from nearfar.estimate.label_information import is_rejected, label_information, log_wealth, lower_limit
from nearfar.estimate.settings import UNIFORM_SHARES


@given(
    seed=st.integers(0, 10_000), rows=st.integers(2, 30), classes=st.integers(2, 4), nats=st.floats(0, 1.5)
)
@settings(max_examples=25, deadline=None)
def test_the_least_wealth_over_all_label_shares_is_a_numerical_minimum(
    seed: int, rows: int, classes: int, nats: float
) -> None:
    """min over p of sum_i log(1 + lambda (log q_i - log p(y_i) - m)), by a general optimiser over softmax(p)."""
    rng = np.random.default_rng(seed)
    labels = np.unique(rng.integers(0, classes, rows), return_inverse=True)[1]
    floor = math.log(0.01 / classes)
    log_q = rng.uniform(floor, 0, rows)
    stakes = torch.tensor([1.0, 0.25], dtype=torch.float64)
    result = log_wealth(torch.from_numpy(log_q), torch.from_numpy(labels), floor, nats, stakes)
    for stake, lowest in zip(stakes.tolist(), result.tolist(), strict=True):
        share = stake / (1 + nats - floor)

        def wealth(logits: np.ndarray, share: float = share) -> float:
            log_p = logits - np.logaddexp.reduce(logits)
            return float(np.log1p(share * (log_q - nats - log_p[labels])).sum())

        by_hand = min(minimize(wealth, start).fun for start in np.eye(labels.max() + 1))
        assert lowest <= by_hand + 1e-9  # never above the minimum: else it would be no bound
        assert lowest == pytest.approx(by_hand, abs=3e-4)


@pytest.mark.parametrize(
    ("joint", "rows"),
    [
        ([[0.45, 0.05], [0.05, 0.45]], 8),
        ([[0.499, 0.001], [0.001, 0.499]], 8),  # rare large losses, the case that a normal mean misjudges
        ([[0.25, 0.25], [0.25, 0.25]], 8),  # nothing to be known
        ([[0.9, 0.02], [0.01, 0.07]], 8),
        ([[0.3, 0.02], [0.02, 0.3], [0.18, 0.18]], 5),
    ],
)
@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_limit_exceeds_the_truth_no_more_often_than_stated(
    joint: list[list[float]], rows: int, confidence: float
) -> None:
    """P(K(I) >= 1 / (1 - confidence)), summed over every sample there is, for a critic that knows p(y | x)."""
    p = np.array(joint)
    truth = float(info.mutual_information(torch.from_numpy(p)))
    posterior = torch.from_numpy(np.log(p / p.sum(1, keepdims=True)))
    cells = list(product(range(p.shape[0]), range(p.shape[1])))
    higher = 0.0
    observed: dict[tuple[int, ...], bool] = {}
    for sample in product(range(len(cells)), repeat=rows):
        count = tuple(sorted(sample))  # the order of rows does not matter
        if count not in observed:
            x = torch.tensor([cells[one][0] for one in count])
            y = torch.tensor([cells[one][1] for one in count])
            observed[count] = is_rejected(truth, posterior[x], y, confidence)
        if observed[count]:
            higher += math.prod(p[cells[one]] for one in sample)
    assert higher <= 1 - confidence


@pytest.mark.parametrize(("right", "rows"), [(0.9, 50), (0.99, 50), (0.99, 1_000)])
def test_limit_of_a_nearly_perfect_probe_of_few_rows_is_valid(right: float, rows: int) -> None:
    """Two classes, flips of 1 - right, the true posterior as critic: 200 samples. With 95 % confidence at most as many may exceed the truth as a
    binomial of 5 % would give once in ten thousand tries."""
    rng = np.random.default_rng(3)
    truth = math.log(2) + right * math.log(right) + (1 - right) * math.log(1 - right)
    result = []
    for _ in range(200):
        y = rng.integers(0, 2, rows)
        x = np.where(rng.random(rows) < 1 - right, 1 - y, y)
        log_p = np.log(np.where(np.arange(2)[None] == x[:, None], right, 1 - right))
        result.append(is_rejected(truth, torch.from_numpy(log_p), torch.from_numpy(y), 0.95))
    assert sum(result) <= binom.ppf(0.9999, 200, 0.05)


def test_limit_is_the_last_rejected_value_and_near_the_truth() -> None:
    right, rows = 0.9, 4_000
    truth = math.log(2) + right * math.log(right) + (1 - right) * math.log(1 - right)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    x = np.where(rng.random(rows) < 1 - right, 1 - y, y)
    scores = torch.from_numpy(np.log(np.where(np.arange(2)[None] == x[:, None], right, 1 - right)))
    labels = torch.from_numpy(y)
    lowest = lower_limit(scores, labels, 0.95)
    assert 0.85 * truth < lowest < truth
    assert is_rejected(lowest, scores, labels, 0.95)
    assert not is_rejected(lowest + 1e-3, scores, labels, 0.95)


def test_a_constant_label_has_no_information() -> None:
    scores = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    assert lower_limit(scores, torch.zeros(30, dtype=torch.int64), 0.95) == 0.0
    assert lower_limit(scores[:1], torch.tensor([2]), 0.95) == 0.0


def test_no_stake_loses_everything() -> None:
    """1 + lambda (log q - log p - m) stays above lambda > 0 at the worst row there can be, q = share / classes and p = 1."""
    for mixed, classes, nats in product(UNIFORM_SHARES, (2, 1_000), (0.0, 5.0)):
        floor = math.log(mixed / classes)
        share = 1 / (1 + nats - floor)
        assert 1 + share * (floor - nats) >= share * (1 - 1e-12) > 0


def test_the_claim_names_no_normal_mean_and_depends_on_what_was_fitted() -> None:
    scores, labels = torch.randn(60, 3), torch.arange(60) % 3
    answer = label_information(scores, labels, held_out=None)["at_least"]["certificate"]
    assert answer["status"] == "proven"
    assert "normal" not in answer["condition"]
    assert "neither encoders nor critic were fitted" in answer["condition"]
    refused = label_information(scores, labels, held_out=False)["at_least"]["certificate"]
    assert refused["status"] == "not covered"
