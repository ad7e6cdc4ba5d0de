"""Sides of many columns, also more than there are rows: information is found, noise is not, and what cannot be fitted is said."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

import nearfar as nf
from nearfar.estimate.interval import UNFITTED, calibration_table
from nearfar.estimate.samples import CanonicalMap
from nearfar.system.files import write_figure


def test_fifty_columns_that_are_copied_are_not_independent(tmp_path: Path) -> None:
    """I = 50/2 log 101 = 115 nats, of which 300 rows show no more than 2 log n."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 50))
    result = nf.estimate_mi(x, x + 0.1 * rng.normal(size=(300, 50)))
    assert result.nats == pytest.approx(2 * math.log(300))
    assert result.interval[0] > math.log(300)
    assert result.interval[1] == math.inf
    assert result.at_least > 3
    assert any("the interval has no upper end" in warning for warning in result.warnings)
    assert "and up" in str(result)
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["interval"][1] is None
    write_figure(result.plot(), tmp_path / "found.png")


@pytest.mark.parametrize("columns", [40, 256, 700])
def test_embeddings_that_share_four_factors(columns: int) -> None:
    """x = f A + noise, y = f B + noise: I = -1/2 log det(1 - Sx^-1 C Sy^-1 C')."""
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(1000, 4))
    first, second = rng.normal(size=(2, 4, columns)) * 0.32 * math.sqrt(256 / columns)
    x, y = (factors @ turn + rng.normal(size=(1000, columns)) for turn in (first, second))
    covariances = [turn.T @ turn + np.eye(columns) for turn in (first, second)]
    cross = first.T @ second
    explained = np.linalg.solve(covariances[0], cross) @ np.linalg.solve(covariances[1], cross.T)
    truth = -0.5 * np.linalg.slogdet(np.eye(columns) - explained)[1]
    result = nf.estimate_mi(x, y, baselines=False)
    assert result.nats == pytest.approx(truth, rel=0.15)
    assert result.interval[0] < truth < result.interval[1] or result.nats > 0.9 * truth
    assert result.at_least < truth


def test_wide_features_of_ten_classes() -> None:
    """Against the mean of the exact log p(x | class) / p(x)."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 10, 1000)
    means = rng.normal(size=(10, 512))
    means *= 4 / np.linalg.norm(means, axis=1, keepdims=True)
    x = means[labels] + rng.normal(size=(1000, 512))
    log_p = x @ means.T - 0.5 * (means**2).sum(axis=1)
    oracle = float((log_p[np.arange(1000), labels] - logsumexp(log_p - math.log(10), axis=1)).mean())
    result = nf.estimate_mi(x, labels.astype(str), baselines=False)
    assert result.nats == pytest.approx(oracle, rel=0.15)
    assert result.interval[0] < oracle < result.interval[1]


def test_many_levels_beside_many_columns() -> None:
    """A hundred codes, each with a vector of fifty numbers: I is nearly the entropy of the code."""
    rng = np.random.default_rng(3)
    code = rng.integers(0, 100, 1000)
    x = rng.normal(size=(100, 50))[code] + 0.5 * rng.normal(size=(1000, 50))
    result = nf.estimate_mi(np.array([f"code {k}" for k in code]), x, baselines=False)
    assert result.nats == pytest.approx(math.log(100), rel=0.15)


@pytest.mark.parametrize("widths", [(50, 50), (200, 3), (400, 400), (6, 60)])
def test_independent_wide_sides_have_no_information(widths: tuple[int, int]) -> None:
    table = calibration_table()
    for seed in range(3):
        rng = np.random.default_rng([seed, *widths])
        x, y = (rng.normal(size=(300, width)) for width in widths)
        result = nf.estimate_mi(x, y, seed=seed, baselines=False)
        assert result.nats < 0.02
        assert result.interval[0] < 0.01
        # what so many columns can hide, by the calibration, and little more
        hidden = table.factor(0.9) * table.above["width"] * math.log(math.prod(widths)) / math.sqrt(300)
        assert result.interval[1] < hidden + 0.2
        assert result.at_least.nats == 0
        assert result.p_value is not None
        assert result.p_value > 0.001


def test_what_no_model_fits_has_no_interval(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    names = np.array([f"row {k}" for k in range(300)])
    x = rng.normal(size=(300, 50))
    result = nf.estimate_mi(names, x)
    assert UNFITTED in result.warnings
    assert result.interval == (0.0, math.inf)
    assert result.p_value == 1
    assert result.at_least.nats == 0
    write_figure(result.plot(), tmp_path / "found.png")
    source = nf.estimate_cmi(x, names, rng.normal(size=300))
    assert UNFITTED in source.warnings
    assert source.interval == (0.0, math.inf)


def test_shrunk_canonical_correlations() -> None:
    """Without a ridge they are the canonical ones; with one they exist for more columns than rows."""
    rng = np.random.default_rng(5)
    x, noise = rng.normal(size=(2, 400, 4))
    y = x + noise
    unscaled, shrunk = CanonicalMap.fit(x, y), CanonicalMap.fit_ridge(x, y, 0.0)
    np.testing.assert_allclose(shrunk.correlation, unscaled.correlation, rtol=1e-6)
    np.testing.assert_allclose(
        np.abs(shrunk.transform(x, y)[0]), np.abs(unscaled.transform(x, y)[0]), atol=1e-6
    )
    broad = CanonicalMap.fit_ridge(rng.normal(size=(20, 50)), rng.normal(size=(20, 3)), 1.0)
    assert broad.x_map.shape == (50, 3)
    assert np.isfinite(broad.x_map).all()
    assert ((broad.correlation > 0) & (broad.correlation < 1)).all()
