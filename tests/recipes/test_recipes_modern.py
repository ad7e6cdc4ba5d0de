"""Barlow Twins, SwAV, DINO, LeJEPA and crops of several sizes: values and gradients equal the papers' equations
written out in float64, and lightly's losses."""

from collections.abc import Sequence
from typing import Any, Literal

import lightly.loss
import pytest
import torch
import torch.nn.functional as F
from lightly.loss.lejepa_loss import LeJEPALoss
from lightly.loss.lejepa_loss import SIGReg as PeersSIGReg
from lightly.loss.swav_loss import sinkhorn as lightly_sinkhorn
from torch import Tensor, nn

import nearfar as nf
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.core.encoding import Encoding
from nearfar.core.schedules import Progress
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.parts.negatives.codes import sinkhorn_codes

N, DIM, PROTOTYPES = 12, 5, 7
LARGE, SMALL = 2, 3  # crops of each size


class Pooled(nn.Module):
    """Features of a picture of any size."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(dim=(2, 3)), x.square().mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)


def network(prototypes: int = 0) -> nf.Network:
    torch.manual_seed(0)
    table = nn.Embedding(prototypes, DIM) if prototypes else None
    return nf.Network(Pooled(), nn.Linear(9, DIM), prototypes=table).double()


def batch(small: int = SMALL, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    sides = [4] * LARGE + [2] * small
    views = [torch.randn(N, 3, side, side, generator=generator, dtype=torch.float64) for side in sides]
    return Batch(tuple(views), torch.arange(N))


class Crops(nf.AbstractViews):
    """Views that batches already hold: the first are keys."""

    key_views = LARGE

    def __call__(self, *arguments: object) -> tuple[Tensor, ...]:
        raise NotImplementedError


def method(encoders: nf.AbstractEncoders, *parts: Any, **keywords: Any) -> nf.Method:
    return nf.Method(encoders, *parts, views=Crops(), **keywords)


def agree(ours: Tensor, theirs: Tensor, weights: Sequence[Tensor], rtol: float = 1e-9) -> None:
    for got, expected in zip(
        (ours, *torch.autograd.grad(ours, weights, retain_graph=True)),
        (theirs, *torch.autograd.grad(theirs, weights, retain_graph=True)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol)


def crop_pairs(views: int) -> list[tuple[int, int]]:
    """Every view with every large crop but itself."""
    return [(a, k) for k in range(LARGE) for a in range(views) if a != k]


# --------------------------------------------------------------------------------------------- crops


def test_large_crops_are_keys_and_small_ones_anchors_only() -> None:
    encoders = nf.Shared(network())
    pairs = encoders.pairs(5, True, 2)
    assert sorted((p.anchor, p.key) for p in pairs) == sorted(crop_pairs(5))
    assert {p.weight for p in pairs} == {1 / 8}
    # without symmetry the first large crop and the small ones are anchors, the other large ones keys
    assert [(p.anchor, p.key) for p in encoders.pairs(5, False, 2)] == [(0, 1), (2, 1), (3, 1), (4, 1)]
    assert [(p.anchor, p.key) for p in encoders.pairs(3, False)] == [(0, 1), (0, 2)]
    assert [(p.anchor, p.key) for p in encoders.pairs(3, True, 1)] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("negatives", ["one", "both"])
@pytest.mark.parametrize("chunk", [None, 5])
def test_simclr_with_crops_is_the_mean_cross_entropy_over_pairs(
    negatives: Literal["one", "both"], chunk: int | None
) -> None:
    """Each anchor among the large crops of the other pictures; `chunk`: encoded in parts (cached gradients)."""
    net, sample = network(), batch()
    contrast = method(
        nf.Shared(net),
        nf.Cosine(0.3),
        nf.InBatch(negatives),
        nf.Everyone(),
        nf.NPair(),
        encoding=Encoding(chunk=chunk),
    )
    z = [F.normalize(net(view), dim=1) for view in sample.views]
    losses = []
    for a, k in crop_pairs(len(z)):
        for i in range(N):
            views = [k] if negatives == "one" else range(LARGE)
            others = [z[a][i] @ z[v][j] / 0.3 for v in views for j in range(N) if j != i]
            positive = z[a][i] @ z[k][i] / 0.3
            losses.append(torch.logsumexp(torch.stack([positive, *others]), 0) - positive)
    agree(contrast(sample).loss, torch.stack(losses).mean(), list(net.parameters()))


def test_a_network_makes_one_pass_for_each_size() -> None:
    calls: list[tuple[int, ...]] = []

    class Counting(Pooled):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(tuple(x.shape))
            return super().forward(x)

    net = nf.Network(Counting(), nn.Linear(9, DIM)).double()
    sample = batch()
    encoded = nf.Shared(net).encode(sample, range(5), range(2))
    assert calls == [(LARGE * N, 3, 4, 4), (SMALL * N, 3, 2, 2)]
    for view, rows in encoded.anchors.items():
        torch.testing.assert_close(rows, net(sample.views[view]))


# ------------------------------------------------------------------------------------- Barlow Twins


def barlow_reference(first: Tensor, second: Tensor, redundancy: float) -> Tensor:
    """Zbontar et al. 2021, Eq. 1-2, one entry of the matrix at a time; 1e-5 is what a batch norm adds."""
    total = first.new_zeros(())
    for i in range(first.shape[1]):
        for j in range(first.shape[1]):
            x, y = first[:, i] - first[:, i].mean(), second[:, j] - second[:, j].mean()
            c = (x * y).mean() / ((x.square().mean() + 1e-5) * (y.square().mean() + 1e-5)).sqrt()
            total = total + ((1 - c) ** 2 if i == j else redundancy * c**2)
    return total


@pytest.mark.parametrize("small", [0, SMALL])
def test_barlow_equals_its_paper(small: int) -> None:
    net, sample = network(), batch(small)
    prior = nf.CrossCorrelation(0.5, 0.02)
    ours = method(nf.Shared(net), nf.Cosine(), nf.NoNegatives(), nf.Everyone(), nf.NoBound(), prior=prior)
    z = [net(view) for view in sample.views]
    # the matrix of (b, a) is that of (a, b) turned: each unordered pair counts once
    pairs = {tuple(sorted(pair)) for pair in crop_pairs(len(z))}
    theirs = 0.5 * torch.stack([barlow_reference(z[a], z[b], 0.02) for a, b in pairs]).mean()
    agree(ours(sample).loss, theirs, list(net.parameters()))


def test_barlow_equals_lightly() -> None:
    net, sample = network(), batch(0)
    prior = nf.CrossCorrelation(redundancy=5e-3)
    ours = method(nf.Shared(net), nf.Cosine(), nf.NoNegatives(), nf.Everyone(), nf.NoBound(), prior=prior)
    theirs = lightly.loss.BarlowTwinsLoss(5e-3)(*(net(view) for view in sample.views))
    agree(ours(sample).loss, theirs, list(net.parameters()))


# --------------------------------------------------------------------------------------------- codes


def test_sinkhorn_codes_are_the_plan_of_equal_shares() -> None:
    """Caron et al. 2020, Eq. 3-5: of all plans with these margins, the one nearest to e^(scores / epsilon): a
    diagonal matrix on either side of it."""
    torch.manual_seed(0)
    scores = torch.randn(N, PROTOTYPES, dtype=torch.float64)
    codes = sinkhorn_codes(scores, 0.5, 300)
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(N, dtype=torch.float64))
    torch.testing.assert_close(
        codes.sum(dim=0), torch.full((PROTOTYPES,), N / PROTOTYPES, dtype=torch.float64)
    )
    logs = codes.log() - scores / 0.5  # u_i + v_j: every second difference is 0
    second = logs[1:, 1:] - logs[1:, :-1] - logs[:-1, 1:] + logs[:-1, :-1]
    torch.testing.assert_close(second, torch.zeros_like(second), atol=1e-9, rtol=0)
    torch.testing.assert_close(sinkhorn_codes(scores, 0.5, 3), lightly_sinkhorn(scores, 3, 0.5))
    assert sinkhorn_codes(1e6 * scores, 0.05, 3).isfinite().all()


def swav(net: nf.Network, **settings: Any) -> nf.Method:
    source = nf.Sinkhorn(**settings, symbols=PROTOTYPES)
    return method(
        nf.Shared(net, stop_gradient=True), nf.Cosine(0.1), source, nf.Everyone(), nf.CrossEntropy()
    )


def similarities(net: nf.Network, sample: Batch) -> list[Tensor]:
    """Cosines of every view with every prototype."""
    assert net.prototypes is not None
    prototypes = F.normalize(net.prototypes.weight, dim=1)
    return [F.normalize(net(view), dim=1) @ prototypes.T for view in sample.views]


@pytest.mark.parametrize("small", [0, SMALL])
@pytest.mark.parametrize("chunk", [None, 5])
def test_swav_equals_its_paper_and_lightly(small: int, chunk: int | None) -> None:
    """Caron et al. 2020, Eq. 1-2: the mean over pairs of -sum_k q_k log p_k, prototypes of unit length."""
    net, sample = network(PROTOTYPES), batch(small)
    ours, weights = swav(net, epsilon=0.1), list(net.parameters())
    ours.encoding = Encoding(chunk=chunk)
    scores = similarities(net, sample)
    codes = [score.detach().div(0.1).exp() for score in scores[:LARGE]]
    for _ in range(3):
        codes = [code / code.sum(dim=0, keepdim=True) for code in codes]
        codes = [code / code.sum(dim=1, keepdim=True) for code in codes]
    losses = [-(codes[k] * (scores[a] / 0.1).log_softmax(1)).sum(1) for a, k in crop_pairs(len(scores))]
    agree(ours(sample).loss, torch.stack(losses).mean(), weights)
    peer = lightly.loss.SwaVLoss(sinkhorn_epsilon=0.1)(scores[:LARGE], scores[LARGE:])
    agree(ours(sample).loss, peer.squeeze(), weights)


def test_the_queue_of_swav_extends_the_batch_once_it_is_full() -> None:
    """Caron et al. 2020, sec. 4.2: codes of [batch; the last keys of the same view], of which those of the
    batch are used."""
    net, first, second, sample = network(PROTOTYPES), batch(0, 2), batch(0, 3), batch(SMALL, 4)
    ours = swav(net, size=2 * N, dim=DIM).double()
    weights = list(net.parameters())

    def theirs(queued: Sequence[Batch]) -> Tensor:
        scores = similarities(net, sample)
        queue = (
            [torch.cat([similarities(net, b)[k] for b in queued]) for k in range(LARGE)] if queued else None
        )
        return lightly.loss.SwaVLoss()(scores[:LARGE], scores[LARGE:], queue).squeeze()

    ours.advance(ours(first))
    agree(ours(sample).loss, theirs([]), weights)  # not full yet
    ours.advance(ours(second))
    agree(ours(sample).loss, theirs([first, second]), weights)


def test_the_queue_of_swav_waits_for_its_epoch() -> None:
    net, first, sample = network(PROTOTYPES), batch(0, 2), batch(SMALL, 4)
    ours = swav(net, size=N, after=2.0, dim=DIM).double()
    unqueued = ours(sample).loss.item()
    ours.advance(ours(first))
    assert ours(sample, Progress(3, 8, 2)).loss.item() == pytest.approx(unqueued, rel=1e-12)
    assert ours(sample, Progress(4, 8, 2)).loss.item() != pytest.approx(unqueued, rel=1e-6)


@pytest.mark.parametrize("small", [0, SMALL])
def test_dino_equals_its_paper_and_lightly_over_several_steps(small: int) -> None:
    """Caron et al. 2021, Eq. 1-4 and its listing: the teacher follows the student, its centre its outputs."""
    net = network(PROTOTYPES)
    encoders = nf.Momentum(net, 0.9)
    source = nf.Centred(nf.linear(0.04, 0.07), 0.8, symbols=PROTOTYPES).double()
    ours = method(encoders, nf.Cosine(0.1), source, nf.Everyone(), nf.CrossEntropy())
    peer = lightly.loss.DINOLoss(PROTOTYPES, student_temp=0.1, center_momentum=0.8).double()
    centre, weights = torch.zeros(PROTOTYPES, dtype=torch.float64), list(net.parameters())
    teacher = network(PROTOTYPES)
    optimiser = torch.optim.SGD(weights, lr=0.5)
    for step in range(3):
        sample, progress = batch(small, step), Progress(step, 3)
        sharpness = 0.04 + 0.03 * step / 3
        outcome = ours(sample, progress)
        student = similarities(net, sample)
        slow = [score.detach() for score in similarities(teacher, sample)[:LARGE]]
        codes = [((score - centre) / sharpness).softmax(1) for score in slow]
        losses = [-(codes[k] * (student[a] / 0.1).log_softmax(1)).sum(1) for a, k in crop_pairs(len(student))]
        agree(outcome.loss, torch.stack(losses).mean(), weights)
        # lightly's temperature is a float32
        agree(outcome.loss, peer(slow, student, teacher_temp=sharpness), weights, rtol=1e-6)
        centre = 0.8 * centre + 0.2 * torch.cat(slow).mean(dim=0)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
        ours.advance(outcome, progress)
        torch.testing.assert_close(source.centre, centre)
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), net.parameters(), strict=True):
                old.copy_(0.9 * old + 0.1 * new)


def test_other_bounds_and_selections_work_on_prototypes() -> None:
    """UBA is log K minus the cross-entropy; a ring keeps some prototypes."""
    net, sample = network(PROTOTYPES), batch()
    ours = swav(net)
    value = ours(sample).loss.item()
    uba = method(ours.encoders, ours.critic, ours.negatives, nf.Everyone(), nf.UBA())
    assert uba(sample).loss.item() == pytest.approx(value - torch.log(torch.tensor(float(PROTOTYPES))).item())
    ring = method(ours.encoders, ours.critic, ours.negatives, nf.Ring(0.3, 1.0), nf.CrossEntropy())
    assert ring(sample).loss.item() < value


# -------------------------------------------------------------------------------------------- LeJEPA


@pytest.mark.parametrize("small", [0, SMALL])
@pytest.mark.parametrize("chunk", [None, 5])
def test_lejepa_equals_its_paper_and_lightly(
    small: int, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balestriero & LeCun 2025: (1 - weight) mean |z_v - mean of large crops|^2 / d + weight SIGReg."""
    net, sample, weight = network(), batch(small), 0.3
    prior = nf.SIGReg(weight, directions=64)
    critic = nf.Distance(1 / (1 - weight), unit=False, mean=True)
    ours = method(
        nf.Shared(net, target="mean"),
        critic,
        nf.NoNegatives(),
        nf.Everyone(),
        nf.BarberAgakov(),
        prior=prior,
        encoding=Encoding(chunk=chunk),
    )
    z = torch.stack([net(view) for view in sample.views])
    prediction = (z - z[:LARGE].mean(dim=0)).square().mean()
    directions = prior.sketch(DIM, 0).to(z)
    t = torch.linspace(-3, 3, 33, dtype=torch.float64)
    normal = torch.exp(-t.square() / 2)
    statistics = []
    for cloud in z:
        along = (cloud @ directions)[:, :, None] * t
        distance = (torch.exp(1j * along).mean(dim=0) - normal).abs().square() * normal
        statistics.append(N * torch.trapezoid(distance, t, dim=-1).mean())
    theirs = (1 - weight) * prediction + weight * torch.stack(statistics).mean()
    agree(ours(sample).loss, theirs, list(net.parameters()), rtol=1e-8)
    if small:  # lightly needs local views; it has the knots of the integral in float32
        monkeypatch.setattr(
            PeersSIGReg, "_generate_unit_vectors", lambda self, device, dtype, num: directions
        )
        peer = LeJEPALoss(lambda_param=weight).double()(local_proj=z[LARGE:], global_proj=z[:LARGE])
        agree(ours(sample).loss, peer, list(net.parameters()), rtol=1e-5)


def test_two_views_of_lejepa_are_sigreg_with_another_weighting() -> None:
    """The mean square to the mean of two views is a quarter of that between them."""
    net, sample = network(), batch(0)
    losses = {}
    for name, encoders, scale in (
        ("view", nf.Shared(net), 4.0),
        ("mean", nf.Shared(net, target="mean"), 1.0),
    ):
        critic = nf.Distance(scale, unit=False, mean=True)
        losses[name] = method(encoders, critic, nf.NoNegatives(), nf.Everyone(), nf.BarberAgakov())(
            sample
        ).loss
    agree(losses["mean"], losses["view"], list(net.parameters()))


# ------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("name", ["barlow", "swav", "dino", "lejepa"])
def test_certificates_say_why_the_loss_is_an_objective_only(name: str) -> None:
    reasons = {
        "barlow": "nothing is contrasted",
        "swav": "make the codes that they predict",
        "dino": "make the codes that they predict",
        "lejepa": "only together with the entropy",
    }
    certificate = RECIPES[name].method().certificate(64)
    assert certificate.status == "objective only"
    assert reasons[name] in certificate.condition


@pytest.mark.parametrize(
    ("recipe", "changes", "sentence"),
    [
        ("swav", {"encoders.prototypes": 0}, "without prototypes; set encoders.prototypes"),
        ("swav", {"encoders.prototypes": 1}, "encoders.prototypes was 1; it must be from 2"),
        ("swav", {"negatives": "in-batch"}, "encoders.prototypes was 300 with .* negatives=in-batch"),
        ("swav", {"encoders": "per-view"}, "without prototypes"),
        ("swav", {"critic": "distance"}, "whose scores are not linear in the key; use critic=cosine"),
        ("swav", {"selection": "cave"}, "which goes by instances"),
        ("swav", {"negatives.epsilon": 0}, "negatives.epsilon was 0; it must be above 0"),
        ("swav", {"negatives.size": -1}, "negatives.size was -1"),
        ("dino", {"negatives.temperature": "linear(0,0.1)"}, "negatives.temperature was linear"),
        ("dino", {"negatives.momentum": 1.0}, r"negatives.momentum was 1; it must lie in \[0, 1\)"),
        ("barlow", {"prior": "none"}, "bound was none with prior=none: there is nothing to learn"),
        ("barlow", {"prior.redundancy": -1}, "prior.redundancy was -1; it must be at least 0"),
        ("simclr", {"views.crops": "2x32,4x32"}, "views.crops was '2x32,4x32'; expected crops such as"),
        ("simclr", {"views.crops": "2x16,4x32"}, "the largest first"),
        ("simclr", {"views.crops": "two"}, "expected crops such as 2x32,4x16"),
        ("simclr", {"views.crops": "2x32,15x16"}, "up to 16 of 2 to 4096 pixels"),
        ("simclr", {"views.crops": "2x32,4x16", "views.count": 3}, "views.count was 3 with views.crops"),
        ("simclr", {"views.small": {"blur": 1.0}}, "views.small was given without small crops"),
        (
            "simclr",
            {"views.crops": "2x32,2x16", "views.small": {"blurr": 1}},
            "views.small.blurr is not a setting",
        ),
        ("cmc", {"views.crops": "4x32,4x16"}, "and 4 views of full size"),
    ],
)
def test_what_does_not_fit_is_one_sentence(recipe: str, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve(recipe, "digits", {}, changes)
