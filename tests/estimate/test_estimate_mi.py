"""`estimate_mi`: near the truth, invariant where information is, honest about what it proves."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from threadpoolctl import threadpool_info, threadpool_limits

import nearfar as nf
from nearfar.core.abstract import AbstractCritic
from nearfar.core.types import NegativeSampling
from nearfar.estimate import CriticTraining
from nearfar.estimate.bound_choice import FoldScores, candidate_bounds, choose_bound
from nearfar.system.hardware import one_thread

FAST: dict[str, Any] = {"folds": 3, "baselines": False}
NETWORK: dict[str, Any] = {**FAST, "critic": "separable"}


def gaussian(n: int, rho: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, noise = np.random.default_rng(seed).normal(size=(2, n))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


X, Y = gaussian(900, 0.75)
SAMPLE_TRUTH = -math.log(1 - np.corrcoef(X, Y)[0, 1] ** 2) / 2


@pytest.mark.parametrize("critic", ["separable", "joint", "bilinear"])
def test_a_gaussian_pair(critic: str) -> None:
    """I = -log(1 - rho^2)/2; the sample's own correlation takes out most of the sampling noise."""
    how = CriticTraining(steps=20 if critic == "joint" else 60, batch_size=64)
    result = nf.estimate_mi(X, Y, critic=critic, training=how, **FAST)
    assert result.nats == pytest.approx(SAMPLE_TRUTH, abs=0.03)
    assert result.interval[0] < result.nats < result.interval[1]
    assert result.bits == pytest.approx(result.nats / math.log(2))
    assert (result.critic, result.samples) == (critic, 900)


def test_a_dependence_without_correlation() -> None:
    """y = x^2 + noise: no correlation at all. I = h(y) - h(noise), the density of y by quadrature over x."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=1200)
    y = x**2 + rng.normal(size=1200)
    points, grid = norm.ppf((np.arange(2000) + 0.5) / 2000), np.linspace(-6, 18, 2001)
    density = norm.pdf(grid[:, None] - points[None, :] ** 2).mean(axis=1)
    truth = -np.trapezoid(density * np.log(density), grid) - math.log(2 * math.pi * math.e) / 2
    result = nf.estimate_mi(x, y, folds=3, training=CriticTraining(steps=200))
    assert truth - 0.1 < result.nats < truth + 0.05
    assert result.baselines["gaussian"] < 0.05 < result.baselines["ksg"]


def test_independent_variables_have_no_information() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 10))
    result = nf.estimate_mi(x, y, **FAST)
    assert result.nats == pytest.approx(0, abs=0.02)
    assert result.interval[0] <= 0 <= result.interval[1]


def test_discrete_variables_against_their_table() -> None:
    rng = np.random.default_rng(0)
    x, second = rng.integers(0, 4, size=(2, 1200))
    y = np.where(rng.random(1200) < 0.7, x, second)
    table = np.histogram2d(x, y, bins=4)[0] / 1200
    result = nf.estimate_mi(x, np.array([70, 3, 11, 5])[y], training=CriticTraining(steps=400), **FAST)
    assert result.nats == pytest.approx(nf.info.mutual_information(table), abs=0.03)
    assert "2 discrete columns" in result.scaling


def test_mixed_columns() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1500)
    x = np.column_stack([rng.normal(size=1500) + 4 * y, rng.integers(0, 3, 1500)])
    result = nf.estimate_mi(x, y, training=CriticTraining(steps=60), **FAST)
    assert 0.5 < result.nats <= math.log(2) + 0.02


def test_monotone_maps_change_nothing_and_a_seed_reproduces() -> None:
    options = {**NETWORK, "training": CriticTraining(steps=30)}
    unscaled = nf.estimate_mi(X, Y, **options)
    bent = nf.estimate_mi(np.exp(2 * X), Y**3, **options)
    assert bent.nats == pytest.approx(unscaled.nats, abs=1e-4)
    assert nf.estimate_mi(X, Y, **options).folds == unscaled.folds
    assert nf.estimate_mi(X, Y, **options, seed=1).folds != unscaled.folds


CERTIFICATES = [
    ("infonce", "batch", "proven", math.log(300)),
    ("infonce", "independent", "proven", math.log(37)),
    ("ml-cpc", "batch", "not covered", math.log(300 * 299 + 1)),
    ("ml-cpc", "independent", "proven", math.log(37 * 7 + 1)),
    (nf.MultiLabelCPC(alpha=0.05), "batch", "not covered", math.log(300 / 0.05)),
    (nf.MultiLabelCPC(alpha=0.05), "independent", "proven", math.log(8 / 0.05)),
    (nf.MultiLabelCPC(alpha=0.001), "independent", "not covered", math.log(8 / 0.001)),
    (nf.AlphaCPC(alpha=0.5), "independent", "not covered", math.log(37 / 0.5)),
    ("nwj", "batch", "proven", None),
    ("dv", "batch", "not covered", None),
    ("mine", "batch", "not covered", None),
    ("smile", "batch", "not covered", None),
]


@pytest.mark.parametrize(("bound", "negatives", "status", "ceiling"), CERTIFICATES)
def test_every_bound_has_its_certificate(
    bound: Any, negatives: Any, status: str, ceiling: float | None
) -> None:
    result = nf.estimate_mi(X, Y, bound=bound, negatives=negatives, training=CriticTraining(steps=20), **FAST)
    assert result.certificate.status == status
    assert result.ceiling == (None if ceiling is None else pytest.approx(ceiling))
    assert result.nats == pytest.approx(SAMPLE_TRUTH, abs=0.12)


def test_auto_chooses_a_proven_bound_with_a_reason() -> None:
    for negatives in ("batch", "independent"):
        result = nf.estimate_mi(X, Y, negatives=negatives, training=CriticTraining(steps=20), **NETWORK)
        assert result.certificate.status == "proven"
        assert "on validation data infonce" in result.reason


def test_auto_prefers_a_bound_with_a_higher_ceiling() -> None:
    """Four independent copies of a strongly correlated pair, their exact log ratio as critic: 99 negatives are too few for
    InfoNCE's 3.3 nats, and pairs enough carry the mean that NWJ subtracts."""
    rho = 0.9
    x, noise = torch.randn(2, 800, 4, generator=torch.Generator().manual_seed(0)).double()
    y = rho * x + math.sqrt(1 - rho**2) * noise
    own_terms = rho**2 * (x.square().sum(1)[:, None] + y.square().sum(1)[None])
    f = (2 * rho * x @ y.T - own_terms) / (2 * (1 - rho**2)) - 2 * math.log(1 - rho**2)
    candidates = candidate_bounds("auto", "independent", 800)
    name, values = choose_bound(candidates, FoldScores([[f]], f, [f]), "independent", 0)
    assert name == "nwj"
    assert values["infonce"].nats < 3.1 < values["nwj"].nats


def test_an_estimate_near_its_ceiling_warns() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    result = nf.estimate_mi(x, 2 * x, training=CriticTraining(steps=10), bound="infonce", **FAST)
    assert result.ceiling == pytest.approx(math.log(100))
    assert result.nats <= math.log(100)
    assert len(result.warnings) == 1
    assert "is near its ceiling of 4.61 nats" in result.warnings[0]
    assert "warning: the estimate is near" in str(result)


def test_a_shared_number_is_dropped_and_a_shared_category_gives_its_entropy() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 200))
    for sides in ((np.column_stack([z, x]), x), (x, {"a": z, "b": x})):
        result, expected = nf.estimate_mi(*sides, baselines=False), nf.estimate_mi(z, x, baselines=False)
        assert "its information about it is infinite; it was left out of" in result.warnings[0]
        assert result.interval[1] == pytest.approx(expected.interval[1], rel=0.5)
    assert "y column b equals x column 0, so" in result.warnings[0]
    only = nf.estimate_mi(x, x, "infonce", training=CriticTraining(steps=10), baselines=False)
    assert "x column 0 and y column 0 are the same" in only.warnings[0]
    levels = rng.integers(0, 4, 200)
    share = np.bincount(levels) / 200
    answer = nf.estimate_mi(levels, levels)
    assert answer.interval[0] < -(share * np.log(share)).sum() < answer.interval[1]
    assert answer.warnings == ()


def test_a_critic_given_as_a_function() -> None:
    def tiny(dim: tuple[int, int]) -> AbstractCritic:
        return nf.Separable(hidden=8, out=4, dim=dim, starts_at_zero=True)

    result = nf.estimate_mi(X, Y, critic=tiny, training=CriticTraining(steps=10), **FAST)
    assert result.critic == "tiny"
    with pytest.raises(nf.UserError, match="a critic with weights is needed"):
        nf.estimate_mi(X, Y, critic=lambda dim: nf.Cosine(), **FAST)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bound": "yours"}, "bound was 'yours'; expected auto, infonce"),
        ({"bound": "triplet"}, "bound was triplet, which does not estimate information"),
        ({"bound": nf.JensenShannon()}, "bound was JensenShannon, which does not estimate"),
        ({"critic": "tree"}, "critic was 'tree'; expected auto, separable, joint, hybrid, bilinear"),
        ({"negatives": "many"}, "negatives was 'many'; expected batch, independent"),
        ({"bound": nf.InfoNCE}, r"bound was <class .*; expected .* or a bound such as nf.InfoNCE\(\)"),
        ({"bound": 3}, "bound was 3; expected auto"),
        ({"critic": 3}, "critic was 3; expected auto, separable, joint, hybrid, bilinear, a critic such as"),
        ({"critic": nf.Separable}, "critic was .*Separable.*; expected .* lambda dim"),
        ({"folds": 1}, "folds was 1; with 900 samples it must be a whole number from 2 to 90"),
        ({"folds": "5"}, "folds was '5'"),
        ({"folds": 2.5}, "folds was 2.5"),
        ({"confidence": 1.5}, "confidence was 1.5"),
        ({"confidence": "0.9"}, "confidence was '0.9'"),
        ({"seed": -1}, "seed was -1; it must be a whole number from 0"),
        ({"seed": 2**64}, "seed was 18446744073709551616"),
        ({"seed": 0.5}, "seed was 0.5"),
        ({"device": "abacus"}, "device was 'abacus', which torch cannot use here"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        nf.estimate_mi(X, Y, **options)


def test_a_barber_agakov_object_is_refused() -> None:
    """With H(v) given it is a proven bound, of log q(v | u) alone: on log ratios it would return H(v) too much."""
    assert (
        nf.BarberAgakov(entropy=9.0).certificate(NegativeSampling(9, 8, positive_is_key=True)).status
        == "proven"
    )
    with pytest.raises(nf.UserError, match="bound was a BarberAgakov object"):
        nf.estimate_mi(X, Y, bound=nf.BarberAgakov(entropy=9.0), **FAST)


@pytest.mark.parametrize("bound", ["ml-cpc", "nwj", "dv", "alpha-cpc", nf.AlphaCPC(1.5)])
def test_few_samples_still_have_an_interval(bound: Any) -> None:
    """Eleven unseen samples make two anchors with negatives of their own: leaving out two can leave none."""
    result = nf.estimate_mi(
        X[:51], Y[:51], bound, negatives="independent", baselines=False, training=CriticTraining(steps=1)
    )
    low, high = result.interval
    assert math.isfinite(low)
    assert low < result.nats < high


@pytest.mark.parametrize("scaling", ["rank", "standard", "none"])
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_extreme_sizes_change_nothing(size: float, scaling: Any) -> None:
    options: dict[str, Any] = {"folds": 2, "training": CriticTraining(steps=1), "scaling": scaling}
    unscaled = nf.estimate_mi(X[:100], Y[:100], **options)
    scaled = nf.estimate_mi(X[:100] * size, Y[:100], **options)
    assert scaled.nats == pytest.approx(unscaled.nats, abs=1e-4)
    assert scaled.baselines == pytest.approx(unscaled.baselines, abs=1e-4)


@pytest.mark.parametrize("discrete", ["auto", "none"])
def test_a_column_constant_in_training_rows_has_no_information(discrete: Any) -> None:
    single = (np.arange(100) == 3).astype(float)
    result = nf.estimate_mi(single, Y[:100], discrete=discrete, folds=2, training=CriticTraining(steps=1))
    assert result.nats == pytest.approx(0, abs=0.05)


def test_the_laws_of_information_hold_for_the_estimator() -> None:
    checks = nf.check_mi(X, Y, folds=3, training=CriticTraining(steps=20))
    assert [check.law for check in checks] == [
        "independence",
        "circular shift",
        "data processing",
        "additivity",
    ]
    assert all(check.holds for check in checks), checks


def test_json_has_the_names_of_the_contract() -> None:
    written = nf.estimate_mi(X, Y, training=CriticTraining(steps=10), folds=3).as_json()
    assert {
        "nats",
        "bits",
        "interval",
        "at_least",
        "ceiling",
        "certificate",
        "bound",
        "critic",
        "samples",
    } <= set(written)
    assert set(written["certificate"]) == {"status", "condition"}
    assert set(written["baselines"]) == {"ksg", "gaussian"}
    assert written["baselines"]["ksg"] == pytest.approx(SAMPLE_TRUTH, abs=0.08)


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"check_every": 0}, {"steps": 2.5}, {"average": 0.0}])
def test_invalid_training_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(nf.UserError, match="training's"):
        CriticTraining(**wrong)


def test_optimism_raises_the_upper_end_only() -> None:
    """20 columns, 400 samples: the fit is paid for in unseen value, and the interval says so upwards."""
    x, noise = np.random.default_rng(0).normal(size=(2, 400, 20))
    result = nf.estimate_mi(x, x + 2 * noise, **FAST)
    low, high = result.interval
    assert high - result.nats > 1.5 * (result.nats - low)


def test_one_thread_of_torch_and_of_numpys_matrices() -> None:
    """And both have theirs back afterwards, whatever the machine gave them."""

    def threads() -> list[int]:
        return [torch.get_num_threads(), *(item["num_threads"] for item in threadpool_info())]

    initial = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        previous = threads()
        assert set(previous) == {2}
        with one_thread():
            assert set(threads()) == {1}
        assert threads() == previous
    torch.set_num_threads(initial)


def test_critic_object_equals_its_constructor() -> None:
    x = np.random.default_rng(0).normal(size=(120, 1))
    y = x + np.random.default_rng(1).normal(size=(120, 1))
    training = CriticTraining(steps=20)
    critic = nf.Separable(8, dim=1)
    with torch.no_grad():
        for weight in critic.parameters():
            weight.fill_(7.0)  # weights of a critic object are drawn anew
    by_object = nf.estimate_mi(x, y, critic=critic, folds=2, training=training, baselines=False)
    by_function = nf.estimate_mi(
        x, y, critic=lambda dim: nf.Separable(8, dim=dim), folds=2, training=training, baselines=False
    )
    assert math.isclose(by_object.nats, by_function.nats, abs_tol=0.05)
    assert by_object.critic == "Separable"


def test_critic_object_of_another_width_is_refused() -> None:
    x = np.random.default_rng(0).normal(size=(120, 2))
    with pytest.raises(nf.UserError, match="x has 2 columns and y 2"):
        nf.estimate_mi(x, x[::-1], critic=nf.Separable(8, dim=3), baselines=False)
