"""The parts of an estimate: the Gaussian beginning, the arrangements, the error bar, the baselines."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma
from scipy.stats import multivariate_normal, norm

import nearfar as nf
from nearfar.core.scores import paired_scores
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.fit import CRITICS, CriticTraining, InitialisedCritic, SymmetricObjective, fit_critic
from nearfar.estimate.measure import in_batch_arrangement, independent_arrangements, measure_bound
from nearfar.estimate.samples import CanonicalMap, ColumnEncoding

CPU = torch.device("cpu")


@pytest.mark.parametrize("critic", CRITICS)
def test_first_guess_is_the_gaussian_log_ratio(critic: str) -> None:
    rho = torch.tensor([0.8, 0.3, 0.0])
    initial = InitialisedCritic("gaussian", rho, CRITICS[critic]((3, 4)))
    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.randn(5, 4)
    expected = np.zeros((6, 5))
    for i in range(6):
        for j in range(5):
            for k in range(3):
                r = float(rho[k])
                pair = [float(x[i, k]), float(y[j, k])]
                joint = multivariate_normal([0, 0], [[1, r], [r, 1]]).logpdf(pair)
                expected[i, j] += joint - norm.logpdf(pair).sum()
    np.testing.assert_allclose(initial.cross(x, y).detach().numpy(), expected, atol=1e-5)


@given(seed=st.integers(0, 10**6), rows=st.integers(2, 5), columns=st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_first_guess_of_a_discrete_pair_is_its_table(seed: int, rows: int, columns: int) -> None:
    """Lancaster: p(x, y) / (p(x) p(y)) = 1 + sum_k r_k u_k(x) v_k(y), u and v the canonical variates of indicators."""
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.full(rows * columns, 5.0))
    x, y = np.divmod(rng.choice(rows * columns, size=600, p=joint), columns)
    table = np.histogram2d(x, y, bins=[np.arange(rows + 1), np.arange(columns + 1)])[0] / 600
    if (table.sum(1) == 0).any() or (table.sum(0) == 0).any():
        return
    ratio = table / np.outer(table.sum(1), table.sum(0))
    discrete = np.array([True])
    u, v = (
        ColumnEncoding.fit(side[:, None].astype(float), "rank", discrete)(side[:, None].astype(float))
        for side in (x, y)
    )
    canonical = CanonicalMap.fit(u, v)
    all_of_it = np.linalg.svd(
        canonical.x_map.T @ (u - u.mean(0)).T @ (v - v.mean(0)) @ canonical.y_map / 600
    )[1]
    initial = InitialisedCritic(
        "table",
        torch.from_numpy(all_of_it).float(),
        CRITICS["bilinear"]((len(canonical.x_map.T), len(canonical.y_map.T))),
    )
    f = initial.cross(*canonical(u, v)).detach().numpy()
    np.testing.assert_allclose(f, np.log(np.maximum(ratio, 0.02))[np.ix_(x, y)], atol=2e-2)


def test_a_critic_learns_what_is_not_gaussian_and_keeps_its_best() -> None:
    """y = x^2 + noise has no correlation: the beginning says nothing, the fitted critic something."""
    torch.manual_seed(0)
    x = torch.randn(1200, 1)
    y = x.square() + 0.5 * torch.randn(1200, 1)
    y = (y - y.mean()) / y.std()
    train, rest = (x[:800], y[:800]), (x[800:], y[800:])
    objective = SymmetricObjective(nf.InfoNCE())
    network = fit_critic(
        CRITICS["separable"], torch.zeros(1), train, rest, objective, CriticTraining(steps=100), 0
    )
    assert float(objective(network.cross(*rest))) > 0.4
    again = fit_critic(
        CRITICS["separable"], torch.zeros(1), train, rest, objective, CriticTraining(steps=100), 0
    )
    torch.testing.assert_close(again.cross(*rest), network.cross(*rest), rtol=0, atol=0)


@given(samples=st.integers(10, 80), negatives=st.integers(1, 9), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_independent_arrangements_use_no_sample_twice(samples: int, negatives: int, seed: int) -> None:
    if samples < 1 + negatives:
        return
    for trial in independent_arrangements(samples, negatives, 3, seed, CPU):
        assert trial.negatives is not None
        used = torch.cat([trial.anchors, trial.negatives.flatten()])
        assert len(used.unique()) == len(used)
        assert trial.sampling.independent
        assert (trial.sampling.anchors, trial.sampling.negatives) == tuple(trial.negatives.shape)


def exact_scores(n: int, rng: np.random.Generator, rho: float = 0.75) -> torch.Tensor:
    x = rng.normal(size=n)
    y = rho * x + math.sqrt(1 - rho**2) * rng.normal(size=n)
    quadratic = rho**2 * (x[:, None] ** 2 + y[None, :] ** 2) - 2 * rho * x[:, None] * y[None, :]
    return torch.from_numpy(-quadratic / (2 * (1 - rho**2)) - math.log(1 - rho**2) / 2)


@pytest.mark.parametrize("kind", ["batch", "independent"])
def test_the_jackknife_s_error_is_the_spread_over_samplings(kind: str) -> None:
    rng = np.random.default_rng(0)
    values, errors = [], []
    for sampling in range(100):
        f = exact_scores(160, rng)
        arranged = (
            [in_batch_arrangement(160, CPU)]
            if kind == "batch"
            else independent_arrangements(160, 7, 6, sampling, CPU)
        )
        bound = nf.InfoNCE() if kind == "batch" else nf.MultiLabelCPC(0.1)
        result = measure_bound(bound, f, arranged)
        values.append(result.nats)
        errors.append(result.error)
    assert 0.75 < np.sqrt(np.mean(np.square(errors))) / np.std(values) < 1.35


def test_measured_is_the_bound_itself() -> None:
    f = exact_scores(50, np.random.default_rng(1))
    full = measure_bound(nf.InfoNCE(), f, [in_batch_arrangement(50, CPU)])
    assert full.nats == pytest.approx(float(nf.InfoNCE()(paired_scores(f))))
    trials = independent_arrangements(50, 4, 5, 0, CPU)
    by_hand = []
    for trial in trials:
        assert trial.negatives is not None
        positive = f[trial.anchors, trial.anchors]
        negative = torch.stack([f[a, row] for a, row in zip(trial.anchors, trial.negatives, strict=True)])
        by_hand.append(float(nf.MultiLabelCPC(0.5)(nf.Scores.of(positive, negative))))
    assert measure_bound(nf.MultiLabelCPC(0.5), f, trials).nats == pytest.approx(np.mean(by_hand))


def test_ksg_is_its_formula_by_loops_and_by_both_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = x + rng.normal(size=(120, 2))
    u, v = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    terms = []
    for i in range(120):
        dx, dy = np.abs(u - u[i]).max(1), np.abs(v - v[i]).max(1)
        reach = np.sort(np.maximum(dx, dy))[3]
        # the point itself is nearer than any other: n_x + 1 counts it
        terms.append(digamma((dx < reach).sum()) + digamma((dy < reach).sum()))
    expected = digamma(3) + digamma(120) - np.mean(terms)
    assert ksg_information(x, y, neighbours=3) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr("nearfar.estimate.settings.MAX_TREE_COLUMNS", 0)
    assert ksg_information(x, y, neighbours=3) == pytest.approx(expected, abs=1e-9)


def test_gaussian_information_is_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    y = np.hstack([0.8 * x[:, :1] + 0.6 * rng.normal(size=(20_000, 1)), rng.normal(size=(20_000, 1))])
    assert gaussian_information(x @ rng.normal(size=(3, 3)), y) == pytest.approx(-math.log(0.6), abs=0.02)
    assert gaussian_information(*rng.normal(size=(2, 2000, 20))) == pytest.approx(0, abs=0.02)
