"""What each bound claims, for every case that docs/certificates.md argues."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.abstract import AbstractBound, AbstractCritic, AbstractSelection
from nearfar.core.schedules import START, Progress, Schedule
from nearfar.core.types import Coverage, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import PARTS, smallest_proven_alpha
from nearfar.parts.bounds.claims import CLAIM

N, M = 64, 16
SHARED = NegativeSampling(N, N - 1)
INDEPENDENT = NegativeSampling(N, M - 1, independent=True)
QUEUED = NegativeSampling(N, 1000, exchangeable=False, reason="queued keys are old")
SMALLEST_ALPHA = M / (N * (M - 1) + 1)

CASES: list[tuple[AbstractBound, NegativeSampling, str, float | None, str]] = [
    (nf.InfoNCE(), SHARED, "proven", math.log(N), r"the 63 negatives .* nor log 64"),
    (nf.InfoNCE(), INDEPENDENT, "proven", math.log(M), r"the 15 negatives .* nor log 16"),
    (nf.InfoNCE(), QUEUED, "not covered", math.log(1001), r"queued keys are old; .* 6.909 nats"),
    (nf.AlphaCPC(0.5), INDEPENDENT, "not covered", math.log(2 * M),
        r"alpha = 0.5 is below 1.*0.7174 .* 0.6931"),
    (nf.AlphaCPC(1.0), SHARED, "proven", math.log(N), r"nor log 64"),
    (nf.AlphaCPC(1.0), QUEUED, "not covered", math.log(1001), r"queued keys are old"),
    (nf.AlphaCPC(2.0), INDEPENDENT, "proven", math.log(M / 2), r"alpha = 2 lies in \[1, m\], m = 16"),
    (nf.AlphaCPC(2.0), QUEUED, "not covered", math.log(1001 / 2), r"queued keys are old"),
    (nf.AlphaCPC(nf.geometric(5.0, 1.0)), SHARED, "proven", math.log(N), r"alpha = 5 to 1 lies in"),
    (nf.AlphaCPC(nf.linear(1.0, 0.5)), INDEPENDENT, "not covered", math.log(2 * M),
        r"alpha = 0.5 is below 1"),
    (nf.MultiLabelCPC(1.0), INDEPENDENT, "proven", math.log(M), r"\[0.0166493, 16\] for n = 64 and m = 16"),
    (nf.MultiLabelCPC(SMALLEST_ALPHA), INDEPENDENT, "proven", math.log(M / SMALLEST_ALPHA),
        r"nor log\(m/alpha\) = 6.868"),
    (nf.MultiLabelCPC(0.99 * SMALLEST_ALPHA), INDEPENDENT, "not covered",
        math.log(M / SMALLEST_ALPHA / 0.99), r"alpha = 0.0164828 is outside"),
    (nf.MultiLabelCPC(15.9), INDEPENDENT, "proven", math.log(M / 15.9), r"alpha = 15.9 lies in"),
    (nf.MultiLabelCPC(0.5), SHARED, "not covered", math.log(2 * N),
        r"anchors share .* 64 times 63 negatives"),
    (nf.MultiLabelCPC(0.5), QUEUED, "not covered", math.log(2002),
        r"queued keys are old; the proof needs"),
    (nf.MultiLabelCPC(nf.geometric(1.0, 0.1)), INDEPENDENT, "proven", math.log(10 * M),
        r"alpha = 1 to 0.1 lies in"),
    (nf.MultiLabelCPC(nf.geometric(5.0, 0.2)), INDEPENDENT, "proven", math.log(5 * M),
        r"alpha = 5 to 0.2 lies in"),
    (nf.Vince(), INDEPENDENT, "objective only", math.log(M), r"K - 1 = 15 nats"),
    (nf.BarberAgakov(), INDEPENDENT, "objective only", None, r"entropy H\(v\), which is not given"),
    (nf.BarberAgakov(2.5), replace(QUEUED, positive_is_key=True), "proven", None,
        r"normalised q and H\(v\) is 2.5 nats"),
    (nf.BarberAgakov(2.5), QUEUED, "not covered", None, r"does not declare that the positive is"),
    (nf.UBA(), INDEPENDENT, "not covered", None, r"mean over 15 negatives .*\(Jensen\)"),
    (nf.TUBA(2.0), SHARED, "proven", None, r"were fitted to .*the 63 negatives .* linearly"),
    (nf.NWJ(), INDEPENDENT, "proven", None, r"were fitted to .*the 15 negatives"),
    (nf.NWJ(), QUEUED, "not covered", None, r"^queued keys are old$"),
    (nf.NWJ(), NegativeSampling(N, 0), "not covered", None, r"without negatives"),
    (nf.DonskerVaradhan(), INDEPENDENT, "not covered", None,
        r"fitted to, the value can exceed I without limit"),
    (nf.DonskerVaradhan(), replace(INDEPENDENT, held_out=True), "not covered", None,
        r"consistent, but biased upwards .* 64 times 15"),
    (nf.SMILE(), INDEPENDENT, "not covered", None, r"^not a bound: clipping e\^f at e\^5 "),
    (nf.JensenShannon(), INDEPENDENT, "objective only", None, r"Jensen-Shannon divergence"),
    (nf.BinaryNCE(), INDEPENDENT, "objective only", None, r"density ratio, not I"),
    (nf.ConstantNCE(), INDEPENDENT, "objective only", None, r"density ratio, not I"),
    (nf.Triplet(), INDEPENDENT, "objective only", None, r"margin"),
    (nf.Tuple(), INDEPENDENT, "objective only", None, r"add log 16"),
    (nf.NPair(), SHARED, "objective only", None, r"add log 64"),
    (nf.Agreement(), INDEPENDENT, "objective only", None, r"agreement"),
    (nf.SupCon(), INDEPENDENT, "objective only", None, r"positives compete with each other"),
    (nf.Debiased(0.1), INDEPENDENT, "objective only", math.log(1 + INDEPENDENT.negatives), r"can exceed I"),
    (nf.CrossEntropy(), INDEPENDENT, "objective only", None, r"make the codes that they predict"),
    (nf.NoBound(), INDEPENDENT, "objective only", None, r"nothing is contrasted"),
]  # fmt: skip


@pytest.mark.parametrize(("bound", "sampling", "status", "ceiling", "condition"), CASES)
def test_certificate_of_each_case(
    bound: AbstractBound, sampling: NegativeSampling, status: str, ceiling: float | None, condition: str
) -> None:
    certificate = bound.certificate(sampling)
    assert certificate.status == status
    assert certificate.ceiling == (None if ceiling is None else pytest.approx(ceiling))
    assert re.search(condition, certificate.condition)


MAX_SUMMARY = 31  # words


@pytest.mark.parametrize(("bound", "sampling"), [case[:2] for case in CASES])
def test_the_first_clause_is_short_and_stands_alone(bound: AbstractBound, sampling: NegativeSampling) -> None:
    certificate = bound.certificate(sampling)
    assert certificate.condition.startswith(certificate.summary)
    assert len(certificate.summary.split()) <= MAX_SUMMARY
    if certificate.status == "proven":
        assert certificate.summary.startswith(CLAIM)
        # what the program could not check is part of the short claim
        assert ("given that" in certificate.condition) == ("given that" in certificate.summary)


def test_every_bound_has_a_case() -> None:
    assert {type(case[0]) for case in CASES} == set(PARTS.values())


CLAIMING = [nf.InfoNCE(), nf.AlphaCPC(1.0), nf.MultiLabelCPC(0.5), nf.TUBA(), nf.NWJ()]


@pytest.mark.parametrize("bound", CLAIMING, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("lower", [0.0, 0.3, 0.9, 1.0, nf.linear(0.0, 0.9)])
def test_a_ball_keeps_the_claim_at_any_cut(bound: AbstractBound, lower: float | Schedule) -> None:
    sampling = replace(INDEPENDENT, negatives=100)
    certificate = bound.certificate(nf.Ball(lower).sampling(sampling))
    assert certificate.status == "proven"


@pytest.mark.parametrize("bound", CLAIMING, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize(
    ("coverage", "status", "condition"),
    [
        (None, "not covered", "which was not measured"),
        (
            Coverage(0.63, 100),
            "measured",
            "held for 63 % of the 100 anchors measured (of all anchors for at least 54 %",
        ),
        (Coverage(0.9999, 10_000), "measured", "held for 99 % of the 10000 anchors"),
        (
            Coverage(1.0, 1),
            "measured",
            "held for 100 % of the 1 anchors measured (of all anchors for at least 5 %",
        ),
        (
            Coverage(1.0, 512),
            "measured",
            "held for 100 % of the 512 anchors measured (of all anchors for at least 99 %",
        ),
        (
            Coverage(0.0, 512),
            "measured",
            "held for 0 % of the 512 anchors measured (of all anchors for at least 0 %",
        ),
    ],
)
def test_a_ring_is_measured_never_proven(
    bound: AbstractBound, coverage: Coverage | None, status: str, condition: str
) -> None:
    """Wu et al. 2021, Thm 3.1: every kept e^f must reach the mean over the anchor's candidates, for all
    anchors."""
    sampling = replace(INDEPENDENT, negatives=100, coverage=coverage)
    certificate = bound.certificate(nf.Ring(0.5, 0.9).sampling(sampling))
    assert certificate.status == status
    assert condition in certificate.condition


def test_one_measurement_does_not_cover_a_scheduled_ring() -> None:
    """Ring(0.75, 0.9) of 1 .. 8 keeps 7, above the mean of e^f; at the end Ring(0, 0.9) keeps 1 .. 7."""
    ring, scores = (
        nf.Ring(nf.linear(0.75, 0.0), 0.9),
        nf.Scores.of(torch.zeros(1), torch.arange(1.0, 9.0)[None]),
    )
    assert nf.Ring(0.75, 0.9).coverage(scores) == Coverage(1.0, 1)
    assert ring.coverage(scores) == nf.Ring(0.0, 0.9).coverage(scores) == Coverage(0.0, 1)


@pytest.mark.parametrize("select", [nf.Ball(0.5), nf.Ring(0.5, 0.9)], ids=["ball", "ring"])
def test_a_selection_adds_no_proof(select: nf.Ball | nf.Ring) -> None:
    """And does not take Barber-Agakov's, which reads no negatives."""
    for bound, initial, status, *_ in CASES:
        if status != "proven":
            final = select.sampling(replace(initial, coverage=Coverage(1.0, 10**6)))
            if final.negatives:
                assert bound.certificate(final).status == status
    key_positives = replace(INDEPENDENT, positive_is_key=True)
    assert nf.BarberAgakov(1.0).certificate(select.sampling(key_positives)).status == "proven"


def test_the_ceiling_is_that_of_the_negatives_kept() -> None:
    mask = nf.Ball(0.9).sampling(replace(INDEPENDENT, negatives=1000))
    assert nf.InfoNCE().certificate(mask).ceiling == pytest.approx(math.log(101))
    # with 64 anchors, alpha >= 11/641 = 0.017 for 10 negatives each, and >= 2/65 = 0.031 for the one that
    # remains
    bound = nf.MultiLabelCPC(0.02)
    assert bound.certificate(replace(INDEPENDENT, negatives=10)).status == "proven"
    assert (
        bound.certificate(nf.Ball(0.9).sampling(replace(INDEPENDENT, negatives=10))).status == "not covered"
    )


def test_with_progress_the_certificate_is_that_of_the_moment() -> None:
    bound = nf.MultiLabelCPC(nf.geometric(4.0, 0.25))
    current = [bound.certificate(INDEPENDENT, Progress(step, 4)) for step in range(5)]
    assert [c.status for c in current] == ["proven"] * 5
    assert [c.ceiling for c in current] == pytest.approx(
        [math.log(M) - math.log(a) for a in (4, 2, 1, 0.5, 0.25)]
    )


def test_an_alpha_above_the_fewest_negatives_is_outside() -> None:
    claim = nf.MultiLabelCPC(5.0).certificate(replace(INDEPENDENT, min_negatives=3))
    assert claim.status == "not covered"
    assert re.search(r"alpha = 5 is outside .* 4\] for n = 64 and m = 4", claim.condition)


def test_the_smallest_proven_alpha() -> None:
    """Song & Ermon 2020, Cor. 2; one anchor leaves InfoNCE alone."""
    assert smallest_proven_alpha(3, 2) == 3 / 7
    assert smallest_proven_alpha(1, 10) == 1.0
    assert smallest_proven_alpha(N, M - 1) == SMALLEST_ALPHA


def test_independent_negatives_are_exchangeable() -> None:
    with pytest.raises(ValueError, match="exchangeable"):
        NegativeSampling(4, 4, exchangeable=False, independent=True)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: nf.AlphaCPC(0), r"bound.alpha was 0; it must be a number or schedule above 0"),
    (lambda: nf.MultiLabelCPC(-1.0), r"bound.alpha was -1"),
    (lambda: nf.MultiLabelCPC(nf.linear(1, 0)), r"bound.alpha was linear\(1.0,0.0\)"),
    (lambda: nf.AlphaCPC(float("nan")), r"bound.alpha was nan"),
    (lambda: nf.AlphaCPC("much"), r"bound.alpha was 'much'"),  # type: ignore[arg-type]
    (lambda: nf.TUBA(math.inf), r"bound.log_baseline was inf"),
    (lambda: nf.DonskerVaradhan(1.0), r"bound.momentum was 1; it must be .* from 0 to below 1"),
    (lambda: nf.DonskerVaradhan(-0.1), r"bound.momentum was -0.1"),
    (lambda: nf.SMILE(0.0), r"bound.clip was 0; it must be above 0 and at most 40"),
    (lambda: nf.SMILE(41.0), r"bound.clip was 41"),
    (lambda: nf.Triplet(0.0), r"bound.margin was 0"),
    (lambda: nf.BarberAgakov(math.nan), r"bound.entropy was nan"),
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_bad_settings_of_bounds_get_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


def test_a_schedule_of_cuts_is_proven_only_if_alpha_is_in_range_when_fewest_are_kept() -> None:
    """m/(n(m-1)+1) rises as m falls: alpha = 0.28 is in range with 8 negatives (9/33), not with 1 (2/5)."""
    sampling = NegativeSampling(4, 8, independent=True)
    bound = nf.MultiLabelCPC(0.28)
    assert bound.certificate(nf.Ball(0.0).sampling(sampling)).status == "proven"
    shrinking = nf.Ball(nf.linear(0, 1))
    assert bound.certificate(shrinking.sampling(sampling)).status == "not covered"
    assert nf.MultiLabelCPC(0.4).certificate(shrinking.sampling(sampling)).status == "proven"


def test_warm_up_is_part_of_the_certificate_of_a_schedule() -> None:
    with pytest.raises(nf.UserError, match=r"bound\.alpha was cosine\(1\.0,0\.5,none,10\.0\)"):
        nf.MultiLabelCPC(nf.cosine(1, 0.5, warmup=10))
    with pytest.raises(nf.UserError, match="factor was -1"):
        nf.steps(1, -1, 1, 2)


def test_anchors_without_candidates_show_nothing() -> None:
    assert nf.Ring(0.5, 0.9).coverage(nf.Scores.of(torch.zeros(2), torch.zeros(2, 0))) == Coverage(0.0, 0)


def test_a_chain_keeps_earlier_cuts() -> None:
    """A ball after a ring brings no candidate back: the most similar are cut, so the proof is gone."""
    sampling = NegativeSampling(4, 10, independent=True, held_out=True, batch_statistics=False)
    for last in (nf.Ball(0.0), nf.Ball(0.5), nf.Ring(0.0, 1.0)):
        final = nf.Chain(nf.Ring(0.0, 0.5), last).sampling(sampling)
        assert final.cut == "above"
        assert nf.InfoNCE().certificate(final).status == "not covered"
    rising = nf.Ball(nf.linear(0.0, 0.9))
    assert nf.Chain(rising, nf.Ball(0.0)).sampling(sampling) == rising.sampling(sampling)
    assert (
        nf.MultiLabelCPC(0.3).certificate(nf.Chain(rising, nf.Ball(0.0)).sampling(sampling)).status
        == "not covered"
    )


class Density(nf.Dot):
    """A critic that declares its scores to be log q(v | u)."""

    normalised = True


@pytest.mark.parametrize(
    ("selection", "status"),
    [
        (nf.Everyone(), "proven"),
        (nf.Ring(0.0, 0.5), "proven"),
        (nf.Labelled(), "not covered"),
        (nf.Neighbours(instances=8), "not covered"),
        (nf.Cave(clusters=2, close=4, instances=8), "not covered"),
    ],
)
def test_barber_agakov_depends_on_positives_only(selection: AbstractSelection, status: str) -> None:
    """E[log q(v | u)] is over the anchor's positive: with more positives joined to it, it is another
    number."""
    method = nf.Method(nn.Identity(), Density(), nf.InBatch("one"), selection, nf.BarberAgakov(entropy=1.0))
    assert method.certificate(8, held_out=True).status == status


class NormalisingCritic(nn.Module, AbstractCritic):
    """A critic with a batch norm of its own, which reads its batch while in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def prepare(self, embedding: Tensor) -> Tensor:
        return self.norm(embedding)

    def pairs(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return (anchors * keys).sum(dim=1)

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return anchors @ keys.T


def test_batch_norm_in_the_critic_is_detected() -> None:
    method = nf.Method(nn.Identity(), NormalisingCritic(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE())
    assert method.certificate(8, held_out=True).status == "not covered"
    assert method.eval().certificate(8, held_out=True).status == "proven"
