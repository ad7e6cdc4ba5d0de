"""The best estimate and its interval as functions of what folds measured, and of the calibrated table."""

import json
import math
from dataclasses import fields, replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm

import nearfar as nf
from nearfar.estimate.baselines import References
from nearfar.estimate.crossfit import cross_fit, pointwise_values
from nearfar.estimate.interval import (
    Calibration,
    FoldSummary,
    Signs,
    calibration_table,
    estimate_from,
    summarise,
)
from nearfar.estimate.samples import check_pair
from nearfar.estimate.settings import MIN_SPREAD

SUMMARY = FoldSummary(
    held_out=0.5,
    error=0.02,
    curve=0.05,
    fit=0.1,
    unseen_levels=0.0,
    units=1000,
    model_based=False,
    references=References((2, 3), ksg=0.6),
)
NOTHING = replace(SUMMARY, held_out=-0.01, references=References((2, 3)))
SIMPLE = Calibration(
    below={"error": 2.0},
    above={"error": 2.0, "ksg": 0.5, "rows": 1.0},
    confidences=(0.5, 0.9),
    factors=(0.4, 1.0),
)


def test_what_is_missing_of_a_regular_model_is_its_parameters_by_twice_the_rows() -> None:
    """k parameters and n rows: halving loses k / 2n, training rows gain k / n, and k / 2n is missing (Akaike 1974)."""
    regular = replace(SUMMARY, error=1e-9, curve=10 / 400, fit=10 / 200)
    assert estimate_from(regular, 0.9).nats == pytest.approx(0.5 + 10 / 400)


def test_signs_by_hand() -> None:
    signs = Signs.of(replace(SUMMARY, unseen_levels=0.2))
    certainty = 0.25 / (0.25 + 0.04**2)
    assert signs.learning == pytest.approx(certainty * 0.5 * 0.2 / 0.8)
    assert Signs.of(SUMMARY).learning == pytest.approx(certainty * 0.05)
    assert Signs.of(replace(SUMMARY, fit=0.3)).learning == pytest.approx(certainty * 0.15)
    assert signs.share == pytest.approx(0.5 / math.sqrt(1000))
    assert signs.ksg == pytest.approx(0.1)
    assert signs.width == pytest.approx(math.log(6) / math.sqrt(1000))


def test_the_interval_is_the_weighted_signs() -> None:
    result = estimate_from(SUMMARY, 0.9, SIMPLE)
    assert result.nats == pytest.approx(0.5 + Signs.of(SUMMARY).learning)
    down = math.hypot(0.04, MIN_SPREAD)
    up = math.hypot(0.04 + 0.05 + 1000**-0.5, MIN_SPREAD)
    assert result.half_widths == pytest.approx((down, up))
    assert result.interval == pytest.approx((result.nats - down, result.nats + up))
    assert result.learning == pytest.approx({"learned": 0.6, "unseen": 0.5, "half": 0.45})


def test_spreads_are_the_interval_without_sampling_error() -> None:
    """half width^2 = (z error)^2 + spread^2: what a sum or difference of estimates is made of."""
    result = estimate_from(SUMMARY, 0.9, SIMPLE)
    sampling = norm.ppf(0.95) * SUMMARY.error
    for half_width, spread in zip(result.half_widths, result.spread, strict=True):
        assert half_width == pytest.approx(math.hypot(sampling, spread))


def test_factors_are_interpolated_between_confidences() -> None:
    """Linear in the normal quantile between the calibrated ones, proportional to it outside."""
    assert SIMPLE.factor(0.9) == pytest.approx(1.0)
    assert SIMPLE.factor(0.5) == pytest.approx(0.4)
    z, known = norm.ppf(0.85), norm.ppf([0.75, 0.95])
    assert SIMPLE.factor(0.7) == pytest.approx(0.4 + 0.6 * (z - known[0]) / (known[1] - known[0]))
    assert SIMPLE.factor(0.99) == pytest.approx(norm.ppf(0.995) / norm.ppf(0.95))
    assert SIMPLE.factor(0.25) == pytest.approx(0.4 * norm.ppf(0.625) / norm.ppf(0.75))


def test_interval_allows_for_a_one_parameter_dependence() -> None:
    nothing = replace(NOTHING, held_out=0.0, error=0.0, curve=0.0, fit=0.0, units=100)
    table = replace(SIMPLE, above={})
    assert estimate_from(nothing, 0.9, table).interval[1] == pytest.approx(chi2.ppf(0.9, 1) / 200)


@pytest.mark.parametrize("confidence", [1e-300, 1e-17, 1e-3, 1 - 1e-12])
@pytest.mark.parametrize("held_out", [-0.1, 0.0, 0.3])
def test_every_confidence_has_an_interval(confidence: float, held_out: float) -> None:
    low, high = estimate_from(replace(SUMMARY, held_out=held_out), confidence).interval
    assert 0 <= low <= high < math.inf


def test_the_stored_table_is_complete_and_monotone() -> None:
    """Signs exist, none is subtracted, factors rise with confidence; the file says what 90 % means and by which command."""
    stored = json.loads(files("nearfar.estimate").joinpath("calibration.json").read_text())
    assert "benchmarks/calibrate_interval.py" in stored["command"]
    assert "contains the truth" in stored["statement"]
    table = calibration_table()
    names = {field.name for field in fields(Signs)}
    for coefficients in (table.below, table.above):
        assert set(coefficients) <= names
        assert min(coefficients.values()) > 0
    assert len(table.factors) == len(table.confidences)
    assert (np.diff(table.factors) >= 0).all()
    assert 0.9 in table.confidences


@pytest.mark.parametrize("name", sorted(calibration_table().above))
def test_every_sign_raises_the_upper_end(name: str) -> None:
    base = replace(SUMMARY, unseen_levels=0.1)
    more = {
        "error": replace(base, error=0.3),
        "fit": replace(base, fit=2.0),
        "learning": replace(base, unseen_levels=0.5),
        "ksg": replace(base, references=replace(base.references, ksg=3.0)),
        "rows": replace(base, units=100),
        "width": replace(base, references=replace(base.references, columns=(9, 9))),
    }[name]
    assert estimate_from(more, 0.9).interval[1] > estimate_from(base, 0.9).interval[1]


def test_the_reference_is_ksg() -> None:
    """Near -log(1 - 0.64) / 2 for a Gaussian pair."""
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(2, 2000))
    result = References.of(check_pair(x, 0.8 * x + 0.6 * e), 0)
    assert result.columns == (1, 1)
    assert result.ksg == pytest.approx(0.51, abs=0.07)


def test_a_weak_relation_among_many_columns_is_not_a_narrow_interval_round_zero() -> None:
    """256 columns and 300 rows hide much: the same estimate of nothing has a wider interval than two columns have."""
    rng = np.random.default_rng(1)
    wide, narrow = (nf.estimate_mi(*rng.normal(size=(2, 300, d)), baselines=False) for d in (256, 1))
    assert wide.interval[1] > 2 * narrow.interval[1]


def test_splits_are_averaged_and_their_spread_is_an_error() -> None:
    rng = np.random.default_rng(5)
    x, e = rng.normal(size=(2, 90))
    pair = check_pair(x, x + 0.2 * e)
    both = cross_fit(pair, 2, 0, splits=2)
    single = [summarise(replace(both, splits=[folds])) for folds in both.splits]
    result = summarise(both)
    held_out = [part.held_out for part in single]
    assert held_out[0] != held_out[1]
    assert result.held_out == pytest.approx(np.mean(held_out))
    spread = np.var(held_out, ddof=1) / 2
    clear = all(part.held_out > 3 * part.error for part in (result, *single))
    assert clear
    assert result.error**2 == pytest.approx(np.mean([part.error**2 for part in single]) + spread)
    values = [pointwise_values(replace(both, splits=[folds])) for folds in both.splits]
    np.testing.assert_allclose(pointwise_values(both), np.mean(values, axis=0))
    first = cross_fit(pair, 2, 0)
    np.testing.assert_array_equal(first.folds[0].value, both.folds[0].value)


@pytest.mark.parametrize(("bound", "splits"), [("auto", 0), ("auto", 1.5), ("infonce", 2)])
def test_unusable_splits_are_refused(bound: str, splits: Any) -> None:
    x, y = np.random.default_rng(6).normal(size=(2, 60))
    with pytest.raises(nf.UserError, match="splits was"):
        nf.estimate_mi(x, y, bound, splits=splits)
