"""The best estimate and its interval as functions of what folds measured: what each end allows for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2, norm

from nearfar.estimate.crossfit import _detectable_information
from nearfar.estimate.interval import MIN_SPREAD, MISFIT, FoldSummary, estimate_from
from nearfar.estimate.ratios import SideMap

SURE = FoldSummary(
    held_out=0.5,
    error=0.02,
    curve=0.05,
    fit=0.1,
    unseen_levels=0.0,
    detectable=0.01,
    rows=800,
    units=1000,
    model_based=False,
)
NOTHING = replace(SURE, held_out=0.0, error=0.02)
Z = 1.6448536269514722


def test_the_estimate_adds_what_is_measured_to_be_missing() -> None:
    result = estimate_from(SURE, 0.9)
    missing = min(1.2 * 0.05 + 0.2 * 0.1, 0.6 * 0.05 + 0.4 * 0.1) * 0.25 / (0.25 + 0.04**2)
    assert result.nats == pytest.approx(0.5 + missing)
    assert result.learning == pytest.approx({"learned": 0.6, "unseen": 0.5, "half": 0.45})


def test_spreads_give_the_interval_without_sampling_error() -> None:
    """What a difference or a sum of estimates is made of: ends at z times the doubts where no error is."""
    result = estimate_from(replace(SURE, error=0.0), 0.9)
    less, more = result.spread
    assert result.interval[0] == pytest.approx(result.nats - Z * math.hypot(less, MIN_SPREAD))
    assert result.interval[1] == pytest.approx(result.nats + Z * math.hypot(more, MIN_SPREAD))
    assert less == pytest.approx(0.5 * 0.07)
    assert more == pytest.approx(math.hypot(0.8 * 0.07, MISFIT * 800**-0.5 * 0.5))


def test_upper_end_counts_the_measured_loss_at_zero() -> None:
    """An estimate of nothing stays at nothing; its upper end has the error, all that is missing, and what could hide."""
    result = estimate_from(NOTHING, 0.9)
    assert result.nats == 0.0
    assert result.interval[0] == 0.0
    # nothing can be missed below zero: all of the 10 % are above
    assert result.interval[1] == pytest.approx(norm.isf(0.1) * math.hypot(0.02, 0.8 * 0.07, MIN_SPREAD))


def test_measured_loss_and_detectable_information_count_once() -> None:
    """The larger of the two: both are what rows so few could not teach."""
    ends = [
        estimate_from(replace(NOTHING, detectable=hidden), 0.9).interval[1] for hidden in (0.0, 0.05, 0.1)
    ]
    assert ends[0] == ends[1] < ends[2]
    assert ends[2] == pytest.approx(norm.isf(0.1) * math.hypot(0.02, 0.1, MIN_SPREAD))


def test_error_probability_below_zero_moves_to_the_upper_end() -> None:
    """Ends of an estimate far from zero have 5 % each; where half of the lower arm is below zero the upper end has 7.5 %."""
    unscaled = replace(SURE, curve=0.0, fit=0.0, detectable=0.0, held_out=0.5, rows=10**9, error=0.1)
    far = estimate_from(unscaled, 0.9)
    assert far.interval == pytest.approx((0.5 - Z * 0.1, 0.5 + Z * 0.1), abs=1e-3)
    half = estimate_from(replace(unscaled, held_out=Z * 0.05), 0.9)
    assert half.interval == pytest.approx((0.0, Z * 0.05 + norm.isf(0.075) * 0.1), abs=1e-3)


@pytest.mark.parametrize("name", ["error", "curve", "detectable", "unseen_levels"])
def test_every_uncertainty_raises_the_upper_end(name: str) -> None:
    more = replace(SURE, **{name: getattr(SURE, name) + 0.3})
    assert estimate_from(more, 0.9).interval[1] > estimate_from(SURE, 0.9).interval[1] + 0.01


def test_misfit_falls_with_the_rows() -> None:
    """Like the squared error of kernels at a jump, n^(-1/2) (Donoho and Johnstone 1998)."""
    unscaled = replace(SURE, error=0.0, curve=0.0, fit=0.0, detectable=0.0)
    for rows in (160, 800, 8000):
        result = estimate_from(replace(unscaled, rows=rows), 0.9)
        expected = Z * math.hypot(MISFIT * rows**-0.5 * 0.5, MIN_SPREAD)
        assert result.interval[1] - result.nats == pytest.approx(expected)
    assert pytest.approx(0.0285, abs=1e-4) == MISFIT * 1000**-0.5


def test_interval_allows_for_a_one_parameter_dependence() -> None:
    nothing = replace(NOTHING, error=0.0, curve=0.0, fit=0.0, detectable=0.0, units=100)
    assert estimate_from(nothing, 0.9).interval[1] == pytest.approx(chi2.ppf(0.9, 1) / 200)


def test_detectable_information_by_hand() -> None:
    """Two numbers and 960 rows: three functions of each, nine free numbers. Twenty levels and a number: 19 times three."""
    z = np.random.default_rng(0).normal(size=(960, 1))
    number = SideMap.fit(z, np.array([False]))(z)
    level = (np.arange(960) % 20)[:, None].astype(float)
    category = SideMap.fit(level, np.array([True]))(level)
    assert _detectable_information(number, number) == pytest.approx((9 + math.sqrt(18)) / 1920)
    assert _detectable_information(category, number) == pytest.approx((57 + math.sqrt(114)) / 1920)
    # of many free numbers a ratio pays for one in 32 rows, of many levels for one in eight
    assert _detectable_information(category, category) == pytest.approx((120 + math.sqrt(722)) / 1920)
    broad = SideMap.fit(np.tile(z, 30), np.zeros(30, bool))(np.tile(z, 30))
    assert _detectable_information(broad, broad) == pytest.approx((30 + math.sqrt(1920)) / 1920)


@pytest.mark.parametrize("confidence", [1e-300, 1e-17, 1e-3, 1 - 1e-12])
@pytest.mark.parametrize("held_out", [-0.1, 0.0, 0.3])
def test_every_confidence_has_an_interval(confidence: float, held_out: float) -> None:
    """An interval of no width has its normal quantile at 0, by which nothing can be divided."""
    low, high = estimate_from(replace(SURE, held_out=held_out), confidence).interval
    assert 0 <= low <= high < math.inf
