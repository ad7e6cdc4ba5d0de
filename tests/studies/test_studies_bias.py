"""`bias-variance`: the critic is the true log-ratio; mean and variance of the estimator follow the theory."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

import nearfar as nf
from nearfar.studies.bias_variance import (
    CUTS,
    DIM,
    SIZES,
    cell_label,
    conditions,
    estimates,
    log_ratio,
    moments,
)
from nearfar.studies.gaussians import correlation_of
from nearfar.studies.run import find_study, run_study


def test_critic_is_the_log_ratio_of_densities() -> None:
    rng = np.random.default_rng(0)
    rho = 0.6
    u, v = rng.normal(size=(3, DIM)), rng.normal(size=(3, 5, DIM))
    joint = scipy.stats.multivariate_normal(cov=[[1, rho], [rho, 1]])
    stacked = np.stack([np.broadcast_to(u[:, None, :], v.shape), v], axis=-1)
    expected = (
        joint.logpdf(stacked) - scipy.stats.norm.logpdf(stacked[..., 0]) - scipy.stats.norm.logpdf(v)
    ).sum(axis=-1)
    ours = log_ratio(torch.from_numpy(u), torch.from_numpy(v), rho).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("nats", [0.1, 1.5, 8.0])
def test_correlation_carries_the_nats(nats: float) -> None:
    assert -0.5 * DIM * math.log(1 - correlation_of(nats, DIM) ** 2) == pytest.approx(nats)


def test_nce_nears_the_truth_from_below_and_never_passes_log_k() -> None:
    estimate = moments(1024, 0.0, nats=1.0, anchors=1500, draws=2, seed=3)
    assert estimate["error"] < 0.01
    assert 0.95 < estimate["mean"] < 1.0 + 2 * estimate["error"]
    capped = moments(4, 0.0, nats=6.0, anchors=300, draws=4, seed=3)
    assert 1.3 < capped["mean"] < math.log(4)


def test_the_control_has_mean_zero_and_shrinks_the_error() -> None:
    z, control = estimates(64, 0.0, nats=1.0, anchors=4000, draws=2, seed=1)
    assert abs(control.mean()) < 4 * control.std() / math.sqrt(len(control))
    plain_error = z.mean(axis=1).std() / math.sqrt(len(z))
    estimate = moments(64, 0.0, nats=1.0, anchors=4000, draws=2, seed=1)
    assert estimate["error"] < 0.5 * plain_error
    assert estimate["mean"] == pytest.approx(z.mean(), abs=4 * plain_error)


def test_mean_of_the_smallest_estimate_agrees_with_plain_sampling() -> None:
    """k = 2 needs one negative: E[Z] by a million fresh draws and scipy's densities."""
    rng, rho = np.random.default_rng(1), correlation_of(1.5, DIM)
    u, v, w = rng.normal(size=(3, 1_000_000, DIM))
    v = rho * u + math.sqrt(1 - rho**2) * v

    def f(y: np.ndarray) -> np.ndarray:
        density = scipy.stats.norm.logpdf
        return (density(y, rho * u, math.sqrt(1 - rho**2)) - density(y)).sum(axis=1)

    expected = (math.log(2) - np.logaddexp(0, f(w) - f(v))).mean()
    estimate = moments(2, 0.0, nats=1.5, anchors=4000, draws=4, seed=0)
    assert estimate["mean"] == pytest.approx(expected, abs=4 * estimate["error"])
    assert estimate["error"] < 0.03


def test_a_small_run_shows_the_trade(tmp_path: Path) -> None:
    """Wu et al. 2021, Thm 3.2: bias rises and variance falls with the cut, for every k; NCE's bias falls with
    k."""
    tables = run_study(
        find_study("bias-variance"), tmp_path, ["anchors=60", "draws=6", "nats=1"]
    ).result.tables
    means, variances, met = tables
    ours = {
        table.name: {row.label: float(row.ours or 0.0) for row in table.rows if row.x}
        for table in (means, variances)
    }
    for table in ours.values():
        for weaker, stronger in itertools.pairwise(CUTS):
            assert all(table[cell_label(weaker, k)] > table[cell_label(stronger, k)] for k in SIZES)
    assert ours[means.name][cell_label(0.0, SIZES[-1])] > ours[means.name][cell_label(0.0, SIZES[0])]
    half, half_varies, tenth, tenth_varies = (float(row.ours or 0.0) for row in met.rows)
    assert half < 5 < 50 < tenth
    assert half_varies < tenth_varies


def test_the_condition_on_c_is_the_quantile_of_the_ratio() -> None:
    """Wu et al. 2021, Thm 3.1: of the true ratio c(u) = E[e^f] = 1, so S_B must begin at f = 0. At nats so few that f is
    nearly Gaussian round 0, the upper half begins there for about half of the anchors, the upper tenth for all."""
    shares = {
        cut: conditions(cut, nats=0.002, anchors=64, draws=2, seed=0)["reaches c(u)"] for cut in (0.5, 0.9)
    }
    assert shares[0.9] == 1.0
    assert 0.1 < shares[0.5] < 0.9


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    for word in ("anchors=1", "draws=1", "nats=0", "nats=20"):
        with pytest.raises(nf.UserError, match="expected anchors and draws from 2, and 0 < nats < 20"):
            run_study(find_study("bias-variance"), tmp_path, [word])
