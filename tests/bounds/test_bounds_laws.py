"""One suite for every bound: its value and gradient are the reference's, it stays below its ceiling, it never
overflows, and dense and streamed scores are the same to it. A new bound joins by one line in REFERENCES."""

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial

import lightly.loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.abstract import AbstractBound
from nearfar.core.rotation import Rotated
from nearfar.core.schedules import START, Progress, linear
from nearfar.core.scores import Candidates
from nearfar.core.strategy import Rows
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import PARTS
from nearfar.parts.bounds.variational import soft_clip


def infonce(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Liu 2022, Eq. 25 by exponentials and sums, one anchor and one positive at a time."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        m = 1 + len(candidates)
        values += [p - torch.log((p.exp() + candidates.exp().sum()) / m) for p in row]
    return torch.stack(values).mean()


def agreement(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Minus BYOL's squared distance of unit vectors, 2 - 2 cos."""
    return -(2 - 2 * positive).sum() / positive.numel()


def alpha_cpc(positive: Tensor, negatives: list[Tensor], alpha: float = 0.5) -> Tensor:
    """Song & Ermon 2020, Eq. 4 by exponentials and sums."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        m = 1 + len(candidates)
        rest = (m - alpha) / (m - 1) * candidates.exp().sum() if m > 1 else 0.0
        values += [torch.log(m * p.exp() / (alpha * p.exp() + rest)) for p in row]
    return torch.stack(values).mean()


def multi_label(positive: Tensor, negatives: list[Tensor], alpha: float = 1.0) -> Tensor:
    """Song & Ermon 2020, Eq. 6 with sums over all anchors, as in its appendix; P positives and N
    negatives."""
    p, n = positive.numel(), sum(len(candidates) for candidates in negatives)
    rest = (p + n - alpha * p) / n * sum(candidates.exp().sum() for candidates in negatives) if n else 0.0
    return torch.log((p + n) * positive.exp() / (alpha * positive.exp().sum() + rest)).mean()


def barber_agakov(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    return positive.sum() / positive.numel()


def uba(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Wu et al. 2020, Lemma A.1: f - log Z(u), for the anchors whose Z(u) can be estimated."""
    pairs = [
        (row, candidates) for row, candidates in zip(positive, negatives, strict=True) if len(candidates)
    ]
    if not pairs:
        return positive.sum() * 0
    return torch.stack([row.mean() - torch.log(candidates.exp().mean()) for row, candidates in pairs]).mean()


def tuba(positive: Tensor, negatives: list[Tensor], baseline: float = 1.0) -> Tensor:
    """Wu et al. 2020, Lemma A.2 before a is chosen: E f - E[Z / a] - log a + 1."""
    partitions = [candidates.exp().mean() for candidates in negatives if len(candidates)]
    z = torch.stack(partitions).mean() if partitions else 0.0
    return positive.mean() - z / baseline - math.log(baseline) + 1


def nwj(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    return tuba(positive, negatives, math.e)


def donsker(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    all_rows = torch.cat(negatives)
    return positive.mean() - (torch.log(all_rows.exp().mean()) if len(all_rows) else 0.0)


def smile(positive: Tensor, negatives: list[Tensor], clip: float = 5.0) -> Tensor:
    all_rows = torch.cat(negatives)
    clipped = all_rows.exp().clamp(math.exp(-clip), math.exp(clip))
    return positive.mean() - (torch.log(clipped.mean()) if len(all_rows) else 0.0)


def jensen_shannon(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """DIM: -sp(-f) on positives, -sp(f) on negatives, sp(x) = log(1 + e^x)."""
    noise = [torch.log(1 + candidates.exp()).mean() for candidates in negatives if len(candidates)]
    return -torch.log(1 + (-positive).exp()).mean() - (torch.stack(noise).mean() if noise else 0.0)


def binary_nce(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Liu 2022, Eq. 10 for one anchor at a time: posteriors e^f / (e^f + nu) and nu / (e^f + nu)."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        nu = len(candidates)
        data = torch.log(row.exp() / (row.exp() + nu)).mean()
        values.append(data + torch.log(nu / (candidates.exp() + nu)).sum())
    return torch.stack(values).mean()


def constant_nce(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Tian et al. 2020b, Eq. 9-11, in the first step: e^f over its own mean, which has no gradient."""
    every = torch.cat([positive.flatten(), *negatives]).detach()
    log_z = every.logsumexp(dim=0) - math.log(len(every))
    return binary_nce(positive - log_z, [candidates - log_z for candidates in negatives])


def triplet(
    positive: Tensor, negatives: list[Tensor], margin: float = 1.0, semi_hard: bool = False
) -> Tensor:
    """Sáez Maldonado 2021, Eq. 17 with scores as minus squared distances, one triplet at a time."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        for p in row:
            losses = [
                (-p + o + margin).clamp_min(0) for o in candidates if not semi_hard or p - margin < o < p
            ]
            values.append(torch.stack(losses).mean() if losses else p * 0)
    return -torch.stack(values).mean()


def npair(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Sáez Maldonado 2021, Eq. 19-20: minus log(1 + sum of e^(negative - positive))."""
    values = [
        -torch.log(1 + (candidates - p).exp().sum())
        for row, candidates in zip(positive, negatives, strict=True)
        for p in row
    ]
    return torch.stack(values).mean()


def supcon(positive: Tensor, negatives: list[Tensor], form: str = "out") -> Tensor:
    """Khosla et al. 2020, Eq. 2 and 3 by exponentials and sums: A(i) holds positives and negatives."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        shares = row.exp() / (row.exp().sum() + candidates.exp().sum())
        values.append(shares.log().mean() if form == "out" else shares.mean().log())
    return torch.stack(values).mean()


def debiased(positive: Tensor, negatives: list[Tensor], tau: float = 0.1) -> Tensor:
    """Chuang et al. 2020, Eq. 7-8 for each positive; nothing is known of the least score."""
    values = []
    for row, candidates in zip(positive, negatives, strict=True):
        n = len(candidates)
        for p in row:
            g = (candidates.exp().sum() - tau * n * p.exp()) / (1 - tau)
            values.append(p - torch.log((p.exp() + g.clamp_min(0)) / (1 + n)))
    return torch.stack(values).mean()


def cross_entropy(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """Caron et al. 2020, Eq. 2 with the mean score of the code as the positive: sum_k q_k f_k - log sum e^f."""
    values = [
        row.mean() - torch.log(candidates.exp().sum())
        for row, candidates in zip(positive, negatives, strict=True)
        if len(candidates)
    ]
    return torch.stack(values).mean() if values else positive.sum() * 0


Reference = Callable[[Tensor, list[Tensor]], Tensor]
REFERENCES: dict[str, Reference] = {
    "infonce": infonce,
    "alpha-cpc": alpha_cpc,
    "ml-cpc": multi_label,
    "vince": infonce,
    "barber-agakov": barber_agakov,
    "uba": uba,
    "tuba": tuba,
    "nwj": nwj,
    "dv": donsker,
    "smile": smile,
    "js": jensen_shannon,
    "nce": binary_nce,
    "nce-constant": constant_nce,
    "triplet": triplet,
    "tuple": npair,
    "npair": npair,
    "agreement": agreement,
    "supcon": supcon,
    "debiased": debiased,
    "cross-entropy": cross_entropy,
    "none": lambda positive, negatives: positive.sum() * 0,
}
# further settings of bounds that have any
VARIANTS: dict[str, tuple[AbstractBound, Reference]] = {
    "alpha-cpc 0.01": (nf.AlphaCPC(0.01), partial(alpha_cpc, alpha=0.01)),
    "ml-cpc 0.05": (nf.MultiLabelCPC(0.05), partial(multi_label, alpha=0.05)),
    "barber-agakov entropy": (nf.BarberAgakov(1.5), lambda p, n: barber_agakov(p, n) + 1.5),
    "tuba 2": (nf.TUBA(math.log(2)), partial(tuba, baseline=2.0)),
    "smile 0.5": (nf.SMILE(0.5), partial(smile, clip=0.5)),
    "triplet 3": (nf.Triplet(3.0), partial(triplet, margin=3.0)),
    "triplet semi-hard": (nf.Triplet(2.0, semi_hard=True), partial(triplet, margin=2.0, semi_hard=True)),
    "supcon in": (nf.SupCon("in"), partial(supcon, form="in")),
    "debiased 0": (nf.Debiased(0.0), infonce),
    "debiased 0.6": (nf.Debiased(0.6), partial(debiased, tau=0.6)),
    "dv mine, nothing seen": (nf.DonskerVaradhan(0.99), donsker),
}
BOUNDS: dict[str, tuple[AbstractBound, Reference]] = {
    **{name: (part(), REFERENCES[name]) for name, part in PARTS.items()},
    **VARIANTS,
}


def test_every_bound_has_a_reference() -> None:
    assert set(REFERENCES) == set(PARTS)


@pytest.mark.parametrize("name", BOUNDS)
@given(
    n=st.integers(1, 6),
    p=st.integers(1, 3),
    k=st.integers(0, 6),
    seed=st.integers(0, 10**6),
    scale=st.floats(0.1, 5),
)
@settings(max_examples=50, deadline=None)
def test_value_and_gradient_equal_the_reference(
    name: str, n: int, p: int, k: int, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    positive = (scale * torch.randn(n, p, generator=generator, dtype=torch.float64)).requires_grad_()
    negative = (scale * torch.randn(n, k, generator=generator, dtype=torch.float64)).requires_grad_()
    mask_values = torch.rand(n, k, generator=generator) < 0.7
    value = BOUNDS[name][0](nf.Scores.of(positive, negative, mask_values))
    expected = BOUNDS[name][1](positive, [row[mask] for row, mask in zip(negative, mask_values, strict=True)])
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    got = torch.autograd.grad(value, (positive, negative), allow_unused=True, materialize_grads=True)
    expected_values = torch.autograd.grad(
        expected, (positive, negative), allow_unused=True, materialize_grads=True
    )
    for ours, theirs in zip(got, expected_values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", BOUNDS)
def test_gradcheck(name: str) -> None:
    torch.manual_seed(0)
    positive = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    negative = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    bound = copy.deepcopy(BOUNDS[name][0])
    if isinstance(bound, nf.ConstantNCE):
        bound.log_z.fill_(0.3)  # a constant is one: in the first step it is seen, and has no gradient
    assert torch.autograd.gradcheck(lambda p, n: bound(nf.Scores.of(p, n)), (positive, negative))


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("sizes", list(itertools.product([1e4, -1e4], repeat=2)))
@pytest.mark.parametrize("k", [0, 5])
def test_no_overflow(name: str, sizes: tuple[float, float], k: int) -> None:
    positive = torch.full((4,), sizes[0], requires_grad=True)
    negative = torch.full((4, k), sizes[1], requires_grad=True)
    value = BOUNDS[name][0](nf.Scores.of(positive, negative))
    gradients = torch.autograd.grad(value, (positive, negative), allow_unused=True, materialize_grads=True)
    assert torch.isfinite(value)
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", BOUNDS)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 100), n=st.integers(2, 12))
@settings(max_examples=30, deadline=None)
def test_value_stays_below_the_ceiling(name: str, seed: int, scale: float, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, k = scale * torch.randn(2, n, 4, generator=generator, dtype=torch.float64)
    bound = BOUNDS[name][0]
    ceiling = bound.certificate(NegativeSampling(n, n - 1)).ceiling
    value = bound(nf.dense_scores(a, k, temperature=1 / scale))
    assert ceiling is None or value <= ceiling + 1e-9


@pytest.mark.parametrize("held_out", [None, False, True])
@pytest.mark.parametrize("normalised", [None, False, True])
@pytest.mark.parametrize("progress", [None, Progress(3, 10)], ids=["run", "step"])
@pytest.mark.parametrize("name", BOUNDS)
def test_ceiling_and_kind_equal_those_of_the_certificate(
    name: str, progress: Progress | None, normalised: bool | None, held_out: bool | None
) -> None:
    """A step reads the ceiling and whether the value is an estimate without composing the certificate."""
    bounds = [
        BOUNDS[name][0],
        nf.Sum(BOUNDS[name][0]),
        nf.BarberAgakov(entropy=1.0),
        nf.Debiased(linear(0.0, 0.2)),
    ]
    for bound in bounds:
        for exchangeable in (False, True):
            sampling = NegativeSampling(
                32, 31, exchangeable=exchangeable, reason="a reason", normalised=normalised, held_out=held_out
            )
            certificate = bound.certificate(sampling, progress)
            assert bound.ceiling(sampling, progress) == certificate.ceiling
            assert bound.is_estimate(sampling, progress) == (certificate.status != "objective only")


@pytest.mark.parametrize("name", BOUNDS)
def test_streamed_and_dense_scores_give_the_same_value(name: str) -> None:
    results = []
    for scores in (nf.dense_scores, nf.streamed_scores):
        generator = torch.Generator().manual_seed(3)
        a = torch.randn(300, 8, generator=generator, dtype=torch.float64).requires_grad_()
        k = torch.randn(300, 8, generator=generator, dtype=torch.float64).requires_grad_()
        value = BOUNDS[name][0](scores(a, k, temperature=0.2))
        results.append((value, *torch.autograd.grad(value, (a, k))))
    for dense, streamed in zip(*results, strict=True):
        torch.testing.assert_close(streamed, dense, rtol=1e-10, atol=1e-12)


def test_soft_clipping_is_the_identity_below_30_and_has_a_continuous_slope() -> None:
    scores = torch.tensor([-1e4, 0.0, 30.0, 31.0, 1e4], dtype=torch.float64, requires_grad=True)
    clipped = soft_clip(scores)
    (slope,) = torch.autograd.grad(clipped.sum(), scores)
    torch.testing.assert_close(
        clipped.detach(), torch.tensor([-1e4, 0.0, 30.0, 30 + math.log(2), 30 + math.log(9971)]).double()
    )
    torch.testing.assert_close(slope, torch.tensor([1.0, 1.0, 1.0, 1 / 2, 1 / 9971]).double())


@pytest.mark.parametrize("bound", [nf.NWJ(), nf.TUBA(-5.0)], ids=["nwj", "tuba"])
def test_gradients_of_inner_products_in_the_thousands_can_be_squared(bound: AbstractBound) -> None:
    """Norms and optimisers square them in float32: e^60 fits there, its square does not."""
    generator = torch.Generator().manual_seed(0)
    anchors = (20 * torch.randn(64, 128, generator=generator)).requires_grad_()
    keys = 20 * torch.randn(64, 128, generator=generator)
    scores = nf.Scores.of((anchors * keys).sum(dim=1), anchors @ keys.T)
    assert float(scores.negative.hardest().detach().max()) > 1000
    (gradient,) = torch.autograd.grad(bound(scores), anchors)
    assert 0 < float(gradient.square().sum()) < torch.inf


def test_mine_divides_the_gradient_by_the_running_mean_and_reports_the_plain_value() -> None:
    """The log term's gradient is mean(e^f df) / running; running = momentum old + (1 - momentum)
    mean(e^f)."""
    torch.manual_seed(0)
    positive = torch.randn(3, dtype=torch.float64, requires_grad=True)
    negative = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    bound, scores = nf.DonskerVaradhan(0.9), nf.Scores.of(positive, negative)
    bound.advance(torch.tensor([math.log(2.0), math.log(6.0)]), START)  # two pairs of views: their mean is 4
    torch.testing.assert_close(bound.log_running, torch.tensor(math.log(4.0)))
    value = bound(scores)
    torch.testing.assert_close(value, nf.DonskerVaradhan()(scores))
    ours = torch.autograd.grad(value, (positive, negative))
    running = 0.9 * 4.0 + 0.1 * negative.detach().exp().mean()
    torch.testing.assert_close(ours[0], torch.full_like(positive, 1 / 3))
    torch.testing.assert_close(ours[1], -negative.detach().exp() / 12 / running, rtol=1e-6, atol=1e-9)
    bound.advance(bound.observe(scores)[None], START)
    torch.testing.assert_close(bound.log_running, running.log().float())


def test_infonce_is_zero_for_constant_scores_and_log_m_for_perfect_ones() -> None:
    silent = nf.InfoNCE()(nf.Scores.of(torch.zeros(5), torch.zeros(5, 7)))
    knowing = nf.InfoNCE()(nf.Scores.of(torch.full((5,), 100.0), torch.full((5, 7), -100.0)))
    torch.testing.assert_close(silent, torch.tensor(0.0))
    torch.testing.assert_close(knowing, torch.tensor(math.log(8)))


def test_infonce_certificate_follows_where_negatives_come_from() -> None:
    proven = nf.InfoNCE().certificate(nf.InBatch("one").sampling(256, 2))
    doubled = nf.InfoNCE().certificate(nf.InBatch("both").sampling(256, 2))
    queued = nf.InfoNCE().certificate(nf.Queue(1000).sampling(256, 1))
    assert (proven.status, proven.ceiling) == ("proven", math.log(256))
    assert (doubled.status, doubled.ceiling) == ("not covered", math.log(511))
    assert (queued.status, queued.ceiling) == ("not covered", math.log(1001))


def test_negatives_in_pairs_can_exceed_the_truth_and_single_ones_do_not() -> None:
    """Why 2N - 2 negatives are not covered. u = v is a fair coin, so I = log 2, and the critic knows which
    match. Of five other instances b match with probability C(5, b) / 32; each is seen once, or, in two views
    alike, twice."""
    weights = torch.tensor([math.comb(5, b) / 32 for b in range(6)], dtype=torch.float64)
    matching = torch.tensor([[j < b for j in range(5)] for b in range(6)])
    negative = torch.where(matching, 0.0, -1e4).double()
    positive = torch.zeros(6, dtype=torch.float64)

    def expected(negatives: Tensor) -> float:
        rows = [
            nf.InfoNCE()(nf.Scores.of(p[None], n[None])) for p, n in zip(positive, negatives, strict=True)
        ]
        return float(weights @ torch.stack(rows))

    assert expected(negative) < math.log(2) - 0.01
    assert expected(negative.repeat(1, 2)) > math.log(2) + 0.003


@given(
    n=st.integers(2, 10), dim=st.integers(2, 16), temperature=st.floats(0.05, 1.0), seed=st.integers(0, 10**6)
)
@settings(max_examples=30, deadline=None)
def test_ntxent_equals_lightly(n: int, dim: int, temperature: float, seed: int) -> None:
    """Sáez Maldonado 2021, Eq. 23-24: NT-Xent is log(2N - 1) minus InfoNCE with 2N - 2 negatives, both
    orders."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(2, n, dim, generator=generator, dtype=torch.float64), dim=2)
    index = torch.arange(n)
    keys = {0: z[0], 1: z[1]}
    candidates = nf.InBatch("both").candidates(keys, index, 1)
    values = []
    for anchor, key in ((0, 1), (1, 0)):
        negative = z[anchor] @ candidates.embedding.T / temperature
        scores = nf.Scores.of(
            (z[anchor] * z[key]).sum(1) / temperature, negative, candidates.negative_mask(index)
        )
        values.append(nf.InfoNCE()(scores))
    ours = math.log(2 * n - 1) - torch.stack(values).mean()
    theirs = lightly.loss.NTXentLoss(temperature=temperature)(z[0], z[1])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_declares_whether_it_reads_only_the_log_sum_exp(name: str) -> None:
    """Keys that pass from rank to rank give no more (`exchange=ring`): the value is then that of a matrix, and
    other bounds read something that is refused."""
    generator = torch.Generator().manual_seed(0)
    anchors, keys = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    positive, index = (anchors * keys).sum(dim=1, keepdim=True), torch.arange(5)
    rotated = nf.Scores(positive, Rotated(anchors, index, Candidates(keys, index), Rows((5,))))
    bound = BOUNDS[name][0]
    if bound.reads_only_logsumexp:
        others = ~torch.eye(5, dtype=torch.bool)
        expected = bound(nf.Scores.of(positive, anchors @ keys.T, others))
        torch.testing.assert_close(bound(rotated), expected, rtol=1e-12, atol=1e-12)
    else:
        with pytest.raises(UserError, match="exchange was ring"):
            bound(rotated)
