"""Each condition of a claim, and the exact example in which the number exceeds the information without it.

Small worlds are enumerated: every batch with its probability, so an expectation is a sum. The letters are
those of the conditions in docs/certificates.md."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.config.building import build_method
from nearfar.config.resolving import resolve
from nearfar.core.abstract import AbstractBound, AbstractCritic, AbstractNegatives
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import POSITIONS
from nearfar.core.types import Batch, Certificate, Encoded, NegativeSampling, Pair
from nearfar.estimate.fit import CriticTraining
from nearfar.evaluate.held_out import held_out_estimate

Weighted = Iterator[tuple[float, Tensor, Tensor]]  # probability, u and v of every row


def batches(joint: Sequence[Sequence[float]], rows: int) -> Weighted:
    """Every batch of `rows` independent rows (u, v)."""
    states = [(u, v, p) for u, line in enumerate(joint) for v, p in enumerate(line) if p > 0]
    for sample in itertools.product(states, repeat=rows):
        u, v, p = zip(*sample, strict=True)
        yield math.prod(p), torch.tensor(u), torch.tensor(v)


def information(joint: Sequence[Sequence[float]]) -> float:
    return float(nf.info.mutual_information(torch.tensor(joint, dtype=torch.float64)))


def expectation(method: nf.Method, joint: Sequence[Sequence[float]], rows: int) -> float:
    """E of the method's own number over all batches."""
    total = 0.0
    for probability, u, v in batches(joint, rows):
        views = (u.double()[:, None], v.double()[:, None])
        nats = method(Batch(views, torch.arange(rows))).nats
        assert nats is not None
        total += probability * float(nats)
    return total


class BySymbol(nn.Module):
    """Rows are identified by what their key is, as the symbols of a masked text are; anchors know nothing."""

    key_groups = 1

    def group_of(self, key: int) -> int:
        return 0

    def __init__(self, scores: Sequence[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores, dtype=torch.float64)

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        return (Pair(0, 1, identity_is_key=True),)

    def backbone(self) -> nn.Module:
        return self

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        symbol = batch.views[1].long()[:, 0]
        return Encoded({0: torch.ones_like(batch.views[0])}, {1: self.scores[symbol][:, None]}, {1: symbol})

    def advance(self, progress: nf.Progress) -> None: ...


def test_a_identity_that_is_the_key_exceeds_the_information() -> None:
    """Anchors know nothing (I = 0). One symbol in ten is rare, and a critic that dislikes it is contrasted
    with rare ones alone whenever its positive is common."""
    joint = [[0.9, 0.1]]
    method = nf.Method(BySymbol([0.0, -0.5]), nf.Dot(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE())
    # the same, written out: k of the other five rows are rare
    rare = [math.comb(5, k) * 0.1**k * 0.9 ** (5 - k) for k in range(6)]
    exact = sum(
        p * (0.9 * math.log((1 + k) / (1 + k * math.exp(-0.5))) + 0.1 * math.log((6 - k) / (1 + (5 - k) * math.exp(0.5))))
        for k, p in enumerate(rare)
    )  # fmt: skip
    assert expectation(method, joint, 6) == pytest.approx(exact, abs=1e-9)
    assert exact > 0.04
    certificate = method.eval().certificate(6, held_out=True)
    assert certificate.status == "not covered"
    assert "equal keys" in certificate.condition


@pytest.mark.parametrize("selection", ["everyone", "ball"])
def test_a_masked_text_with_in_batch_negatives_is_not_covered(selection: str) -> None:
    changes = {"negatives": {"name": "in-batch", "views": "one"}, "selection": {"name": selection}}
    settings = resolve("mlm", "text", changes)
    method = build_method(settings, settings.modality.reader.example_description(100))
    assert method.eval().certificate(64, 2, held_out=True).status == "not covered"


def normed(weight: float) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(1).double()
    with torch.no_grad():
        norm.weight.fill_(weight)
    return norm


def test_b_batch_norm_in_training_mode_exceeds_the_information() -> None:
    """Two rows: the anchor's norm reveals whether the other row's u differs, and so part of the other row's
    v."""
    joint = [[0.632, 0.184], [0.184, 0.0]]
    networks = [normed(2.5), normed(-2.5)]
    method = nf.Method(
        nf.PerView(networks), nf.Dot(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE(), symmetric=False
    )
    exceeded = expectation(method, joint, 2)
    assert exceeded == pytest.approx(0.04693, abs=1e-4)
    assert exceeded > information(joint) + 0.005
    certificate = method.certificate(2, held_out=True)
    assert certificate.status == "not covered"
    assert "batch norm in training mode" in certificate.condition
    method.eval()
    assert expectation(method, joint, 2) < information(joint)
    assert method.certificate(2, held_out=True).status == "proven"


def test_b_a_network_that_mixes_rows_in_evaluation_mode_is_detected() -> None:
    """Not a torch batch norm: the held-out estimate compares half of a batch with the whole."""

    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=0)

    def estimate(network: nn.Module) -> Certificate:
        method = nf.Method(nf.Shared(network), nf.Dot(), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
        result = held_out_estimate(method, [Batch((x, x + 0.1), torch.arange(16))])
        assert result is not None
        return result.certificate

    assert estimate(nn.Linear(3, 3)).status == "proven"
    assert estimate(nn.BatchNorm1d(3)).status == "proven"  # in evaluation mode it reads what it remembers
    assert estimate(Mixed()).status == "not covered"
    assert estimate(nn.BatchNorm1d(3, track_running_stats=False)).status == "not covered"


def test_c_barber_agakov_needs_a_density() -> None:
    """Cosines over a small temperature are not log q(v | u): H(v) + E[f] depends on the temperature."""

    def certificate(critic: AbstractCritic) -> Certificate:
        network = nf.Shared(nn.Linear(2, 2))
        method = nf.Method(network, critic, nf.NoNegatives(), nf.Everyone(), nf.BarberAgakov(0.69))
        return method.eval().certificate(64, held_out=True)

    class DensityCritic(nf.Dot):
        normalised = True

    assert certificate(nf.Cosine(0.1)).status == "objective only"
    assert certificate(nf.Separable(dim=2)).status == "objective only"
    assert certificate(DensityCritic()).status == "proven"


def test_d_a_training_objective_is_fitted_to_its_batch() -> None:
    """64 fixed pairs of independent noise, I = 0: after 200 steps the objective exceeds three nats, and
    nothing is proven. On held-out pairs the estimate is zero up to noise."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)

    def pairs(rows: int) -> Batch:
        x, y = torch.randn(2, rows, 8, generator=generator)
        return Batch((x, y), torch.arange(rows))

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 32))

    method = nf.Method(
        nf.PerView([network(), network()]), nf.Cosine(0.1), nf.InBatch("one"), nf.Everyone(),
        nf.InfoNCE(), symmetric=False,
    )  # fmt: skip
    optimiser, batch = torch.optim.Adam(method.parameters(), 1e-2), pairs(64)
    for _ in range(200):
        optimiser.zero_grad()
        method(batch).loss.backward()
        optimiser.step()
    nats = method(batch).nats
    assert nats is not None
    assert float(nats) > 3
    certificate = method.certificate(64)
    assert certificate.status == "not covered"
    assert "fitted to this very sample" in certificate.condition
    new_values = held_out_estimate(method, [pairs(256), replace(pairs(256), index=torch.arange(256, 512))])
    assert new_values is not None
    assert new_values.certificate.status == "proven"
    assert new_values.nats < 4 * new_values.error


@pytest.mark.parametrize(
    "bound",
    [nf.InfoNCE(), nf.AlphaCPC(1.0), nf.MultiLabelCPC(0.5), nf.NWJ(), nf.TUBA(), nf.BarberAgakov(1.0)],
)
@pytest.mark.parametrize("selection", [nf.Everyone(), nf.Ball(0.5)])
def test_d_nothing_fitted_to_its_sample_is_proven(bound: AbstractBound, selection: nf.Everyone) -> None:
    fair = NegativeSampling(
        8, 4, independent=True, held_out=True, batch_statistics=False, normalised=True, positive_is_key=True
    )
    assert bound.certificate(selection.sampling(fair)).status == "proven"
    for failing in ({"held_out": False}, {"batch_statistics": True}, {"dependent": "rows are times"}):
        assert bound.certificate(selection.sampling(replace(fair, **failing))).status != "proven"


def test_d_unknown_conditions_are_reported() -> None:
    message = nf.InfoNCE().certificate(NegativeSampling(8, 7)).condition
    assert "neither encoders nor critic were fitted to this sample" in message
    assert "no embedding depends on the rest of its batch" in message
    facts = NegativeSampling(8, 7, held_out=True, batch_statistics=False)
    assert "given that" not in nf.InfoNCE().certificate(facts).condition


class OneSymbol(AbstractCritic):
    """log q(v) of the density that gives symbol 0 a share of 0.97 and three others 0.01 each, whatever u
    is."""

    normalised = True

    def prepare(self, embedding: Tensor) -> Tensor:
        return embedding

    def pairs(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return torch.where(keys[:, 0] == 0, math.log(0.97), math.log(0.01))

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self.pairs(anchors, keys).expand(len(anchors), -1)


REPLACED: list[Callable[[], AbstractNegatives]] = [
    lambda: nf.Support(2, dim=1),
    lambda: nf.Bank(2, dim=1, views=2),
    lambda: nf.Queue(4, dim=1),
]


@pytest.mark.parametrize("make", REPLACED)
def test_j_barber_agakov_needs_the_key_itself_as_positive(make: Callable[[], AbstractNegatives]) -> None:
    """u and v independent, four symbols each (I = 0, H(v) = log 4), every batch of two: a source whose memory
    holds symbol 0 alone returns it for every key, and the value is log 4 + log 0.97."""
    method = nf.Method(nn.Identity(), OneSymbol(), make(), nf.Everyone(), nf.BarberAgakov(math.log(4)))
    symbol = torch.zeros(2, 1, dtype=torch.float64)
    method.negatives.advance({0: symbol, 1: symbol}, torch.arange(2), START)
    certificate = method.eval().certificate(2, held_out=True)
    assert certificate.status == "not covered"
    assert "the positive is the anchor's own key" in certificate.condition
    joint = [[1 / 16] * 4] * 4
    replaces = not isinstance(method.negatives, nf.Queue)
    if replaces:
        assert expectation(method, joint, 2) == pytest.approx(math.log(4 * 0.97))
    assert method.replace(negatives=nf.InBatch("one")).certificate(2, held_out=True).status == "proven"


class Positions(nn.Module, AbstractCritic):
    """20 on the diagonal of the batch: knows which rows belong together without reading them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))

    def prepare(self, embedding: Tensor) -> Tensor:
        return embedding

    def pairs(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self.scale.expand(len(anchors))

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self.scale * torch.eye(len(anchors), len(keys))


def test_i_a_critic_that_knows_positions_is_not_covered() -> None:
    """Views that share nothing: 4.159 = log 64 nats where I = 0."""
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 64, 3, generator=generator)
    batch = Batch((views[0], views[1]), torch.arange(64))
    method = nf.Method(nn.Identity(), Positions(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE())
    result = held_out_estimate(method, [batch])
    assert result is not None
    assert result.nats == pytest.approx(math.log(64), abs=1e-6)
    assert result.certificate.status == "not covered"
    assert POSITIONS in result.certificate.condition
    baseline = held_out_estimate(method.replace(critic=nf.Dot()), [batch])
    assert baseline is not None
    assert baseline.certificate.status == "proven"


@pytest.mark.parametrize("bound", ["infonce", "nwj"])
def test_i_estimates_by_a_critic_that_knows_positions_are_not_covered(bound: str) -> None:
    x, y = torch.randn(2, 60, 1, generator=torch.Generator().manual_seed(0)).numpy()
    training = CriticTraining(steps=1)
    result = nf.estimate_mi(x, y, bound, lambda dim: Positions(), folds=2, training=training, baselines=False)
    assert {result.certificate.status, result.at_least.certificate.status} == {"not covered"}
    assert any(POSITIONS in warning for warning in result.warnings)
    network = nf.estimate_mi(x, y, bound, "bilinear", folds=2, training=training, baselines=False)
    assert network.certificate.status == "proven"


def test_e_one_anchor_covers_a_ring_by_luck() -> None:
    """u and v independent fair coins, e^f = 3 where they match and 1 where not, two candidates, the less
    similar kept: the
    expectation is 3/8 log 3/2 - 1/8 log 2 > 0 = I, and yet half of all anchors show full coverage."""
    ring = nf.Ring(0.0, 0.5)
    lucky = 0
    for outcome in itertools.product((math.log(3), 0.0), repeat=3):
        scores = nf.Scores.of(torch.tensor(outcome[:1]), torch.tensor([outcome[1:]]))
        coverage = ring.coverage(scores)
        assert coverage.anchors == 1
        lucky += coverage.share == 1.0
        sampling = ring.sampling(
            replace(NegativeSampling(1, 2, independent=True, held_out=True), coverage=coverage)
        )
        certificate = nf.InfoNCE().certificate(sampling)
        assert certificate.status == "measured"
        assert "of the 1 anchors measured" in certificate.condition
    assert lucky == 4


def test_f_the_condition_is_not_independence_alone() -> None:
    """Both views of other instances are independent of the anchor and still not covered; ML-CPC names
    p(v)."""
    pair = nf.InfoNCE().certificate(nf.InBatch("both").sampling(6, 2))
    assert pair.status == "not covered"
    one = nf.InfoNCE().certificate(nf.InBatch("one").sampling(6, 2))
    assert "could change places with the positive" in one.condition
    positives = nf.MultiLabelCPC(0.5).certificate(NegativeSampling(8, 4, independent=True))
    assert "drawn from p(v) independently" in positives.condition


def test_g_the_data_set_as_population_is_exceeded_without_replacement() -> None:
    """Two instances; a view shows the right one with probability 1 - e. A batch holds both, so the negative
    is always of the other instance; under p(v) it would be half the time. So the expectation exceeds the I of
    the data set, and the certificate names the population."""
    e = 0.146
    q = (1 - e) ** 2 + e**2
    joint = [[q / 2, (1 - q) / 2], [(1 - q) / 2, q / 2]]
    right = (1 - e) ** 3 + e**3  # positive alike, negative not
    wrong = (1 - e) * e**2 + e * (1 - e) ** 2
    scale = math.log(right / wrong)
    method = nf.Method(
        nf.PerView([nn.Identity(), nn.Identity()]), nf.Dot(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE(),
        symmetric=False,
    )  # fmt: skip
    total = 0.0
    for flips in itertools.product((0, 1), repeat=4):
        u = torch.tensor([flips[0], 1 - flips[1]], dtype=torch.float64)
        v = torch.tensor([flips[2], 1 - flips[3]], dtype=torch.float64)
        probability = math.prod(e if flip else 1 - e for flip in flips)
        sign = lambda z: (2 * z - 1)[:, None] * math.sqrt(scale / 2)
        nats = method(Batch((sign(u), sign(v)), torch.arange(2))).nats
        assert nats is not None
        total += probability * float(nats)
    assert total == pytest.approx(
        right * math.log(2 / (1 + math.exp(-scale))) + wrong * math.log(2 / (1 + math.exp(scale)))
    )
    assert total > information(joint) + 0.04
    message = method.eval().certificate(2, held_out=True).condition
    assert (
        "I is that of the distribution from which the rows, each another instance, were drawn independently"
        in message
    )


def test_g_unlike_pairs_are_a_mean_of_informations() -> None:
    """Three views in turn against the first, the steps of a prediction: each pair has its own information."""

    def condition(views: int, symmetric: bool) -> str:
        network = [nn.Linear(2, 2) for _ in range(views)]
        method = nf.Method(
            nf.PerView(network), nf.Dot(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE(), symmetric=symmetric
        )
        certificate = method.eval().certificate(8, views, held_out=True)
        assert certificate.status == "proven"
        return certificate.condition

    assert "weighted mean" not in condition(2, symmetric=True)
    assert "weighted mean over pairs of different views" in condition(3, symmetric=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [nf.InfoNCE, lambda: nf.MultiLabelCPC(1.0), lambda: nf.MultiLabelCPC(0.1)])
@pytest.mark.parametrize("rows", [400, 700])
@pytest.mark.parametrize("streamed", [False, True])
def test_h_ceilings_hold_in_half_precision(
    dtype: torch.dtype, make: Callable[[], AbstractBound], rows: int, streamed: bool
) -> None:
    """bfloat16 counts 700 as 702 or 696, and float16 cannot count 400 x 399 at all."""
    z = torch.nn.functional.normalize(
        torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)), dim=1
    )
    score = nf.streamed_scores if streamed else nf.dense_scores
    scores = score(z.to(dtype), z.to(dtype), temperature=0.02)
    bound = make()
    value = float(bound(scores))
    ceiling = bound.certificate(NegativeSampling(rows, rows - 1)).ceiling
    assert ceiling is not None
    assert math.isfinite(value)
    # what rounding of float32 sums may add
    assert value <= ceiling * (1 + 1e-6)
    assert value > ceiling - 0.1
