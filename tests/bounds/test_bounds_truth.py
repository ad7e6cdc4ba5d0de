"""Bounds against exact values: closed forms, quadrature, and enumeration of small discrete worlds."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad
from torch import Tensor

import nearfar as nf
from nearfar.core.abstract import AbstractBound
from nearfar.errors import UserError
from nearfar.parts.bounds import smallest_proven_alpha

RHO = 0.6
TRUTH = -0.5 * math.log(1 - RHO**2)


def log_ratio(u: Tensor, v: Tensor) -> Tensor:
    """log p(u, v) / (p(u) p(v)) of two standard Gaussians with correlation RHO."""
    first = 1 - RHO**2
    return -0.5 * math.log(first) - (RHO**2 * (u**2 + v**2) - 2 * RHO * u * v) / (2 * first)


def quadrature(points: int = 800) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, positives and negatives at the midpoints of equal shares of probability: a mean over them
    is an integral."""
    share = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    z = torch.special.ndtri(share)
    return z[:, None], RHO * z[:, None] + math.sqrt(1 - RHO**2) * z, z.expand(points, points)


@pytest.mark.parametrize(
    ("bound", "offset"),
    [
        (nf.NWJ(), 1.0),
        (nf.TUBA(), 0.0),
        (nf.TUBA(-2.0), -2.0),
        (nf.DonskerVaradhan(), 0.0),
        (nf.DonskerVaradhan(), 3.0),
        (nf.UBA(), 7.0),
        (nf.SMILE(30.0), 0.0),
    ],
)
def test_the_optimal_critic_gives_the_truth_on_gaussians(bound: AbstractBound, offset: float) -> None:
    """f* = log ratio, plus 1 for NWJ, plus log a for TUBA, plus anything for Donsker-Varadhan and UBA."""
    u, positive, negative = quadrature()
    scores = nf.Scores.of(offset + log_ratio(u, positive), offset + log_ratio(u, negative))
    assert float(bound(scores)) == pytest.approx(TRUTH, abs=2e-3)


def test_barber_agakov_with_the_true_conditional_gives_the_truth() -> None:
    u, positive, _ = quadrature()
    variance = 1 - RHO**2
    log_q = -0.5 * ((positive - RHO * u) ** 2 / variance + math.log(2 * math.pi * variance))
    bound = nf.BarberAgakov(entropy=0.5 * math.log(2 * math.pi * math.e))
    assert float(bound(nf.Scores.of(log_q, log_q[:, :0]))) == pytest.approx(TRUTH, abs=2e-3)


def test_jensen_shannon_with_the_optimal_critic_is_twice_the_divergence_less_2_log_2() -> None:
    def integrand(v: float, u: float) -> float:
        product = math.exp(-(u * u + v * v) / 2) / (2 * math.pi)
        ratio = math.exp(float(log_ratio(torch.tensor(u, dtype=torch.float64), torch.tensor(v))))
        middle = (1 + ratio) / 2
        return 0.5 * product * (ratio * math.log(ratio / middle) - math.log(middle))

    divergence, _ = dblquad(integrand, -6, 6, -6, 6, epsabs=1e-5, epsrel=1e-5)
    u, positive, negative = quadrature()
    value = nf.JensenShannon()(nf.Scores.of(log_ratio(u, positive), log_ratio(u, negative)))
    assert float(value) == pytest.approx(2 * divergence - 2 * math.log(2), abs=1e-3)


def test_binary_nce_is_highest_at_the_log_ratio() -> None:
    """Liu 2022, Eq. 12: any change of the critic lowers it."""
    u, positive, negative = quadrature(300)

    def value(shift: float, scale: float) -> float:
        scores = nf.Scores.of(shift + scale * log_ratio(u, positive), shift + scale * log_ratio(u, negative))
        return float(nf.BinaryNCE()(scores))

    best = value(0.0, 1.0)
    assert all(value(*second) < best - 1e-4 for second in ((0.3, 1.0), (-0.3, 1.0), (0.0, 1.3), (0.0, 0.7)))


def test_conditional_negatives_give_less_than_plain_ones_and_less_than_the_truth() -> None:
    """Wu et al. 2021, Thm 3.1-3.2: with the same number of negatives, CNCE <= NCE <= I, critic fixed."""
    generator = torch.Generator().manual_seed(0)
    u, noise = torch.randn(2, 4000, 1, generator=generator, dtype=torch.float64)
    v = RHO * u + math.sqrt(1 - RHO**2) * noise
    candidates = torch.randn(4000, 40, generator=generator, dtype=torch.float64)
    f, g = 0.8 * log_ratio(u, v), 0.8 * log_ratio(u, candidates)
    baseline = nf.InfoNCE()(nf.Scores.of(f, g[:, :20]))
    conditional = nf.InfoNCE()(nf.Ball(0.5)(nf.Scores.of(f, g)))
    assert float(conditional) < float(baseline) - 0.1
    assert float(baseline) < TRUTH


def coin_scores(n: int, m: int, shared: bool) -> tuple[Tensor, Tensor]:
    """Every outcome of n fair coins u = v, equally likely: the other coins as negatives, or m - 1 independent
    ones."""
    negatives = []
    for coins in itertools.product((0, 1), repeat=n):
        new_values = itertools.product((0, 1), repeat=n * (m - 1)) if not shared else [()]
        for candidates in new_values:
            rows = [
                [c for j, c in enumerate(coins) if j != i]
                if shared
                else candidates[i * (m - 1) : (i + 1) * (m - 1)]
                for i in range(n)
            ]
            negatives.append([[0.0 if c == coins[i] else -1e4 for c in row] for i, row in enumerate(rows)])
    values = torch.tensor(negatives, dtype=torch.float64)
    return torch.zeros(values.shape[:2], dtype=torch.float64), values


def expectation(bound: AbstractBound, positive: Tensor, negative: Tensor) -> Tensor:
    """The bound's value in every outcome."""
    return torch.func.vmap(lambda p, n: bound(nf.Scores.of(p, n)))(positive, negative)


@pytest.mark.parametrize(
    ("bound", "expected"), [(nf.AlphaCPC(0.5), 0.717438), (nf.MultiLabelCPC(3 / 7), 0.635473)]
)
def test_binary_example(bound: AbstractBound, expected: float) -> None:
    """Song & Ermon 2020, Example 1 with n = m = 3, the batch's others as negatives."""
    value = expectation(bound, *coin_scores(3, 3, shared=True)).mean()
    assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (2, 3), (3, 3)])
def test_half_the_smallest_proven_alpha_is_too_small(n: int, m: int) -> None:
    """Below the range of alpha, independent negatives exceed the coin's log 2; at its edge they do not."""
    minimum = smallest_proven_alpha(n, m - 1)
    outcomes = coin_scores(n, m, shared=False)
    assert float(expectation(nf.MultiLabelCPC(minimum), *outcomes).mean()) < math.log(2)
    assert float(expectation(nf.MultiLabelCPC(minimum / 2), *outcomes).mean()) > math.log(2)


@given(
    size=st.sampled_from(
        [(2, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 2), (2, 2, 2, 3), (2, 2, 3, 2), (2, 3, 1, 3)]
    ),
    seed=st.integers(0, 2**31),
    edge=st.floats(0, 1),
    sharpness=st.floats(0.1, 4),
    error=st.sampled_from([0.0, 0.3, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_ml_cpc_in_its_range_never_exceeds_the_truth(
    size: tuple[int, int, int, int], seed: int, edge: float, sharpness: float, error: float
) -> None:
    """docs/certificates.md: independent negatives, alpha from m/(n(m-1)+1) to 1, any joint, any critic."""
    states_u, states_v, n, m = size
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, states_u, states_v, generator=generator, dtype=torch.float64)
    joint = (sharpness * noise[0]).flatten().softmax(0).view(states_u, states_v)
    p_u, p_v = joint.sum(1), joint.sum(0)
    log_ratio = (joint / (p_u[:, None] * p_v)).log()
    critic = log_ratio + error * noise[1]
    pairs = torch.cartesian_prod(*[torch.arange(states_u * states_v)] * n).reshape(-1, n)
    candidates = torch.cartesian_prod(*[torch.arange(states_v)] * (n * (m - 1))).reshape(-1, n, m - 1)
    u, v = pairs // states_v, pairs % states_v
    weight = joint.flatten()[pairs].prod(1)[:, None] * p_v[candidates].flatten(1).prod(1)
    positive = critic[u, v][:, None].expand(-1, len(candidates), -1).flatten(0, 1)
    negative = critic[u[:, None, :, None], candidates[None]].flatten(0, 1)
    minimum = smallest_proven_alpha(n, m - 1)
    value = expectation(nf.MultiLabelCPC(minimum + edge * (1 - minimum)), positive, negative)
    truth = (joint * log_ratio).sum()
    assert float((weight.flatten() * value).sum()) <= float(truth) + 1e-9


def test_a_ring_can_exceed_the_truth() -> None:
    """Two independent coins, e^f = 3 where they match: contrast with the less similar of two negatives gives
    3/8 log 3/2 - 1/8 log 2 > 0 = I."""
    outcomes = list(itertools.product((math.log(3), 0.0), repeat=3))
    scores = torch.tensor(outcomes, dtype=torch.float64)
    ring, ball = nf.Ring(0.0, 0.5), nf.Ball(0.5)
    values = {}
    for select in (ring, ball):
        rows = [nf.InfoNCE()(select(nf.Scores.of(row[None, 0], row[None, 1:]))) for row in scores]
        values[select] = float(torch.stack(rows).mean())
    assert values[ring] == pytest.approx(3 / 8 * math.log(1.5) - math.log(2) / 8)
    assert values[ring] > 0.06
    assert values[ball] < 0
    assert ring.coverage(nf.Scores.of(scores[:, 0], scores[:, 1:])).share == 0.5


def test_donsker_varadhan_has_no_limit_on_the_sample_it_was_fitted_to() -> None:
    """A critic that remembers the pairs it saw gives any number at all, though I is what it is."""
    for height in (1.0, 100.0):
        assert (
            float(nf.DonskerVaradhan()(nf.Scores.of(torch.full((5,), height), torch.zeros(5, 4)))) == height
        )


def test_smile_exceeds_the_truth() -> None:
    """u and v independent, so I = 0; f = 9 with probability p: E f - log E[clip(e^f)] > 0 for clip 1."""
    chance = 0.5
    f = torch.tensor([9.0, 0.0], dtype=torch.float64)
    value = float(nf.SMILE(1.0)(nf.Scores.of(f, f.expand(2, 2))))
    assert value == pytest.approx(9 * chance - math.log((math.e + 1) / 2))
    assert value > 3
    assert float(nf.DonskerVaradhan()(nf.Scores.of(f, f.expand(2, 2)))) < 0


@given(
    n=st.integers(1, 5),
    k=st.integers(0, 5),
    alpha=st.floats(0.01, 1),
    seed=st.integers(0, 10**6),
    p=st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_ml_cpc_equals_its_kl_form(n: int, k: int, alpha: float, seed: int, p: int) -> None:
    """Song & Ermon 2020, Algorithm 1 by torch's kl_div over all weighted logits; it is the distance to the
    ceiling."""
    generator = torch.Generator().manual_seed(seed)
    positive = 3 * torch.randn(n, p, generator=generator, dtype=torch.float64)
    negative = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    ours = nf.MultiLabelCPC(alpha).divergence(nf.Scores.of(positive, negative))
    beta = (n * p + n * k - alpha * n * p) / max(1, n * k)
    logits = torch.cat(
        [positive.flatten() + math.log(alpha), (negative + math.log(max(beta, 1e-300))).flatten()]
    )
    target = torch.cat([torch.full((n * p,), 1 / (n * p)), torch.zeros(n * k)]).double()
    torch.testing.assert_close(ours, F.kl_div(logits.log_softmax(0), target, reduction="sum"))
    assert ours >= -1e-12
    value = nf.MultiLabelCPC(alpha)(nf.Scores.of(positive, negative))
    torch.testing.assert_close(value, math.log((p + k) / (alpha * p)) - ours)


@given(n=st.integers(2, 8), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_npair_is_infonce_without_log_m(n: int, seed: int) -> None:
    """Sáez Maldonado 2021, Eq. 22."""
    a, k = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = nf.dense_scores(a, k, 0.3)
    torch.testing.assert_close(nf.NPair()(scores), nf.InfoNCE()(scores) - math.log(n))


def test_one_anchor_makes_ml_cpc_of_alpha_cpc() -> None:
    """Song & Ermon 2020: with n = 1, Eq. 6 is Eq. 4; at alpha = 1, Eq. 4 is InfoNCE."""
    scores = nf.Scores.of(torch.tensor([0.7]), torch.tensor([[0.1, -1.0, 2.0]]))
    torch.testing.assert_close(nf.MultiLabelCPC(0.3)(scores), nf.AlphaCPC(0.3)(scores))
    torch.testing.assert_close(nf.AlphaCPC(1.0)(scores), nf.InfoNCE()(scores))


@pytest.mark.parametrize("bound", [nf.AlphaCPC(3.0), nf.MultiLabelCPC(nf.geometric(10, 1))])
def test_alpha_not_below_m_gets_a_sentence(bound: nf.AlphaCPC | nf.MultiLabelCPC) -> None:
    scores = nf.Scores.of(torch.zeros(4), torch.zeros(4, 2))
    with pytest.raises(UserError, match="with 2 negatives to a positive; it must be below 3"):
        bound(scores)
    with pytest.raises(UserError, match="it must be below 3"):
        bound.certificate(nf.InBatch("one").sampling(3, 2))


def test_alpha_between_1_and_m_is_computed() -> None:
    scores = nf.Scores.of(torch.zeros(4), torch.zeros(4, 2))
    torch.testing.assert_close(nf.AlphaCPC(2.0)(scores), torch.tensor(0.0))
    torch.testing.assert_close(nf.MultiLabelCPC(2.0)(scores), torch.tensor(0.0))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("make", [nf.AlphaCPC, nf.MultiLabelCPC])
def test_without_candidates_any_alpha_gives_a_finite_value_and_gradient(
    make: type[AbstractBound], alpha: float
) -> None:
    """First step, empty queue: m = 1, so Song & Ermon 2020, Eq. 4 is -log alpha; Eq. 6 separates
    positives."""
    positive = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    no_negatives = torch.zeros(3, 12, dtype=torch.float64, requires_grad=True)
    value = make(alpha)(nf.Scores.of(positive, no_negatives, torch.zeros(3, 12, dtype=torch.bool)))  # type: ignore[call-arg]
    gradients = torch.autograd.grad(
        value, (positive, no_negatives), allow_unused=True, materialize_grads=True
    )
    shared = 0.0 if make is nf.AlphaCPC else (positive - positive.logsumexp(0) + math.log(3)).mean().item()
    assert value.item() == pytest.approx(shared - math.log(alpha))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[1].any()


@pytest.mark.parametrize("bound", [nf.InfoNCE(), nf.AlphaCPC(0.5), nf.MultiLabelCPC(0.5), nf.NPair()])
def test_without_negatives_agreement_gains_nothing(bound: AbstractBound) -> None:
    """Why byol takes no bound of this family without negatives: raising every positive score leaves the value
    as it is, and for
    ML-CPC it is highest where all are equal, however low."""
    positive = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(3, 0, dtype=torch.float64)
    value = bound(nf.Scores.of(positive, empty))
    torch.testing.assert_close(bound(nf.Scores.of(positive + 5.0, empty)), value)
    (gradient,) = torch.autograd.grad(value, positive)
    assert float(gradient.sum()) == pytest.approx(0.0, abs=1e-12)
    low = bound(nf.Scores.of(torch.full((3,), -9.0, dtype=torch.float64), empty))
    assert float(low) >= float(value.detach()) - 1e-12


def test_an_anchor_with_too_few_negatives_for_alpha_gives_log_m_over_alpha() -> None:
    """b = (m - alpha) / (m - 1) of Song & Ermon 2020, Eq. 4 would not be above 0; other anchors are
    unchanged."""
    values = torch.randn(
        3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    positive = torch.randn(
        3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).requires_grad_()
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 4:] = False  # 4 negatives: m = 5 = alpha
    bound = nf.AlphaCPC(5.0)
    value = bound(nf.Scores.of(positive, values, mask))
    candidates = [bound(nf.Scores.of(positive[[i]], values[[i]])) for i in (0, 2)]
    torch.testing.assert_close(value, (candidates[0] + candidates[1] + math.log(5 / 5)) / 3)
    gradients = torch.autograd.grad(value, (positive, values))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][1]
    assert not gradients[1][1].any()
    with pytest.raises(UserError, match=r"bound\.alpha was 13 with 12 negatives"):
        nf.AlphaCPC(13.0)(nf.Scores.of(positive, values))


def test_momentum_contrast_with_a_curriculum_of_alpha_starts_against_an_empty_queue() -> None:
    """`moco_ring` as one writes it down: no queue need be filled by hand."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8))
    method = nf.Method(
        nf.Momentum(net, 0.999),
        nf.Cosine(0.07),
        nf.Queue(64, dim=8),
        nf.Ring(nf.linear(0, 0.9, epochs=100), 0.99),
        nf.MultiLabelCPC(nf.geometric(10, 0.1, epochs=200)),
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(4):  # after the first of them the queue holds 8 keys, fewer than alpha
        views = tuple(torch.randn(4, 12, generator=generator) for _ in range(2))
        outcome = method(nf.Batch(views, torch.arange(4 * step, 4 * step + 4)), nf.Progress(step, 4, 1))
        outcome.loss.backward()
        assert torch.isfinite(outcome.loss)
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in method.parameters())
        method.advance(outcome, nf.Progress(step, 4, 1))
