"""The one algorithm: recipes equal independent references; forward and chunks change nothing."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import lightly.loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.config.building import build_method
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.core.abstract import AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import START, Progress, geometric, linear
from nearfar.core.scores import UNKNOWN, Streamed
from nearfar.core.strategy import SINGLE
from nearfar.core.types import Batch, Certificate, Coverage, view_pairs
from nearfar.modalities.image import IMAGE
from nearfar.modalities.image.views.colour import LAB_CHANNELS
from nearfar.modalities.image.views.settings import view_channels
from nearfar.parts import bounds, selections
from nearfar.parts.bounds import Agreement, DonskerVaradhan, InfoNCE, MultiLabelCPC
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Momentum, Network, Shared, linear_head
from nearfar.parts.negatives import Bank, InBatch, NoNegatives, Queue, Support
from nearfar.parts.selections import Ball, Everyone, Ring

N, DIM = 6, 5
NEEDS_NOBODY = ("agreement", "barber-agakov")


def network() -> Network:
    torch.manual_seed(0)
    return Network(nn.Flatten(), linear_head(12, DIM)).double()


def batch(views: int = 2, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pictures = tuple(torch.randn(N, 3, 2, 2, generator=generator, dtype=torch.float64) for _ in range(views))
    return Batch(pictures, torch.arange(N) + 10)


def built(recipe: str, *, chunk: int | None = None, **changes: object) -> Method:
    sizes = {"encoders.hidden": 16, "encoders.dim": 8, "backbone": "resnet8-w16", "chunk": chunk}
    settings = resolve(recipe, "data", sizes, changes)
    torch.manual_seed(0)
    method = build_method(settings, IMAGE.reader.example_description(40).resized(16))
    for part in method.selections:
        if part.group_by is not None:
            part.assign(torch.arange(40) % 4)
    return method


def pictures(channels: Sequence[int], seed: int = 0, first: int = 0) -> Batch:
    """Images of the given numbers of channels, one number per view."""
    generator = torch.Generator().manual_seed(seed)
    example = tuple(torch.randn(8, count, 16, 16, generator=generator) for count in channels)
    return Batch(example, torch.arange(first, first + 8))


def room_for(recipe: str, size: int) -> dict[str, int]:
    """A queue that a few pictures fill, where the recipe has one."""
    return (
        {"negatives.size": size}
        if RECIPES[recipe].choices["negatives"]["name"] in ("queue", "support")
        else {}
    )


def seen_by(recipe: str) -> tuple[int, ...]:
    return view_channels(resolve(recipe, "data").views, 3)


ROLES = ("shared", "momentum", "per-view", "infomax")  # those that see pictures
OF_OTHER_DATA = ("graphcl", "clip", "siglip", "cebra")
PICTURED = [
    name
    for name, recipe in RECIPES.items()
    if recipe.choices["encoders"]["name"] in ROLES and name not in OF_OTHER_DATA
]
BASES = [name for name in PICTURED if not name.endswith(("-ring", "-ball", "-cave", "-neighbours"))]
# every base, and every selection on a batch, a queue and a bank
SOME = [name for name in PICTURED if name in BASES or name.rpartition("-")[0] in ("simclr", "moco", "cmc")]


def test_simclr_loss_equals_lightly() -> None:
    net, example = network(), batch()
    ours = Method(Shared(net), Cosine(0.3), InBatch("both"), Everyone(), InfoNCE())(example).loss
    theirs = lightly.loss.NTXentLoss(temperature=0.3)(net(example.views[0]), net(example.views[1]))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_the_recipe_simclr_has_the_loss_of_lightly() -> None:
    """Sáez Maldonado 2021, Algorithm 1 from two given views on: f, then g, and Eq. 24 at the recipe's temperature."""
    method, example = built("simclr").eval(), pictures((3, 3))
    temperature = float(resolve("simclr", "data").critic["temperature"])
    assert isinstance(method.encoders, Shared)
    z = [method.encoders.network(view) for view in example.views]
    theirs = lightly.loss.NTXentLoss(temperature=temperature)(*z)
    torch.testing.assert_close(method(example).loss, theirs, rtol=0, atol=1e-5)


def test_moco_loss_equals_cross_entropy_over_positive_and_queue() -> None:
    """Liu 2022, Eq. 34: -log softmax of [q.k+, q.queue] / temperature at place 0."""
    net, example = network(), batch()
    queue = Queue(9, dim=DIM).double()
    stored = F.normalize(torch.randn(9, DIM, dtype=torch.float64), dim=1)
    queue.advance({0: stored}, torch.full((9,), UNKNOWN), progress=None)  # type: ignore[arg-type]
    method = Method(Momentum(net, 0.9), Cosine(0.07), queue, Everyone(), InfoNCE(), symmetric=False)
    q, k = (F.normalize(net(view), dim=1) for view in example.views)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ stored.T], dim=1) / 0.07
    expected = F.cross_entropy(logits, torch.zeros(N, dtype=torch.long))
    torch.testing.assert_close(method(example).loss, expected, rtol=1e-9, atol=1e-9)


def test_moco_excludes_the_earlier_key_of_the_anchor() -> None:
    net, example = network(), batch()
    queue = Queue(N, dim=DIM).double()
    queue.advance({0: F.normalize(net(example.views[1]).detach(), dim=1)}, example.index, START)
    method = Method(Momentum(net), Cosine(0.07), queue, Everyone(), InfoNCE(), symmetric=False)
    encoded = method.encoders.encode(example, [0], [1])
    scores, _ = method.score(encoded, example.index, 0, 1, START)
    assert (scores.negative.count() == N - 1).all()


def test_instance_discrimination_equals_the_non_parametric_softmax() -> None:
    """Wu et al. 2021, Eq. 3 with all rows as negatives: -log( e^(z.M[i]/t) / sum_j e^(z.M[j]/t) )."""
    net, example = network(), batch(views=1)
    rows = F.normalize(torch.randn(40, DIM, dtype=torch.float64), dim=1)
    bank = Bank(40, dim=DIM).double()
    bank.advance({0: rows}, torch.arange(40), progress=None)  # type: ignore[arg-type]
    loss = Method(Shared(net), Cosine(0.07), bank, Everyone(), InfoNCE())(example).loss
    z = F.normalize(net(example.views[0]), dim=1)
    torch.testing.assert_close(loss, F.cross_entropy(z @ rows.T / 0.07, example.index), rtol=1e-9, atol=1e-9)


def test_byol_loss_equals_the_squared_distance_of_unit_vectors() -> None:
    """Sáez Maldonado 2021, Eq. 25, both orders, averaged; the predictor on the online side alone."""
    net, example = network(), batch()
    predictor = linear_head(DIM, DIM).double()
    role = Momentum(net, 0.9, predictor=predictor)
    loss = Method(role, Cosine(1.0), NoNegatives(), Everyone(), Agreement())(example).loss
    one, two = example.views
    distances = [
        (F.normalize(predictor(net(a)), dim=1) - F.normalize(net(b), dim=1)).square().sum(1)
        for a, b in ((one, two), (two, one))
    ]
    torch.testing.assert_close(loss, torch.stack(distances).mean(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", SOME)
def test_only_advance_changes_the_method(recipe: str) -> None:
    method = built(recipe, **room_for(recipe, 16)).train()
    views = seen_by(recipe)
    method.prime(pictures(views, first=8))
    initial = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    outcome = method(pictures(views))
    outcome.loss.backward()
    unchanged = {name for name, tensor in method.state_dict().items() if torch.equal(initial[name], tensor)}
    assert unchanged == set(initial)
    method.advance(outcome)
    moved = {name for name, tensor in method.state_dict().items() if not torch.equal(initial[name], tensor)}
    assert any("running_mean" in name for name in moved)
    assert ("negatives.index" in moved) == isinstance(method.negatives, (Queue, Bank))
    assert ("negatives.queue.index" in moved) == isinstance(method.negatives, Support)
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)


class ShiftedCosine(Cosine):
    """A user's own critic on top of ours."""

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return super().cross(anchors, keys, progress) + 3.0


@pytest.mark.parametrize("chunk", [None, 2])
def test_scores_of_a_critic_with_a_scores_method_come_from_it(chunk: int | None) -> None:
    methods = [
        Method(Shared(network()), critic(0.5), InBatch("one"), Everyone(), bounds.NPair(), chunk=chunk)
        for critic in (Cosine, ShiftedCosine)
    ]
    baseline, shifted = (method(batch()).loss.item() for method in methods)
    assert shifted > baseline + 1.0


def test_many_scores_are_streamed_by_default_and_equal() -> None:
    """256 anchors against 16,384 keys: log(1 + sum e^(f_k - f+)) and its gradient, by one dense matrix."""
    torch.manual_seed(0)
    net, twin = nn.Linear(8, 8), nn.Linear(8, 8)
    twin.load_state_dict(net.state_dict())
    queue = Queue(16_384, dim=8)
    method = Method(Momentum(net, 0.99), Cosine(0.1), queue, Everyone(), InfoNCE(), symmetric=False)
    example = torch.randn(16_384, 8)
    method.prime(Batch((example, example), torch.arange(16_384)))
    a, b, index = torch.randn(256, 8), torch.randn(256, 8), torch.arange(100, 356)
    candidates = queue.candidates({}, index, 1)
    negatives = method._negatives(a, index, candidates, START, SINGLE.rows(len(a)))
    assert isinstance(negatives, Streamed)
    assert not negatives.all_tiled
    loss = method(Batch((a, b), index)).loss
    loss.backward()

    unit = [F.normalize(z.double(), dim=1) for z in (twin(a), twin(b).detach(), twin(example).detach())]
    f = unit[0] @ unit[2].T / 0.1
    own_ids = candidates.index[None] == index[:, None]
    assert own_ids.sum() == 256
    positive = (unit[0] * unit[1]).sum(dim=1) / 0.1
    by_hand = F.softplus(f.masked_fill(own_ids, -torch.inf).logsumexp(dim=1) - positive).mean()
    by_hand.backward()
    # the ceiling is that of all 16,384 places, the value that of the 16,383 other instances
    assert loss.item() == pytest.approx(by_hand.item() + math.log(16_385 / 16_384), abs=1e-5)
    for one, second in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, second.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("recipe", SOME)
def test_chunked_scores_give_the_same_loss_and_gradient(recipe: str) -> None:
    results: list[tuple[Tensor, ...]] = []
    for chunk in (None, 3):
        method = built(recipe, chunk=chunk, **room_for(recipe, 16)).train()
        views = seen_by(recipe)
        method.prime(pictures(views, first=8))
        torch.manual_seed(1)  # what is drawn in a step (dim's prior) is drawn again
        outcome = method(pictures(views))
        parameters = [p for p in method.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(outcome.loss, parameters, allow_unused=True, materialize_grads=True)
        results.append((outcome.loss, *gradients))
    for full, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, full, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("recipe", BASES)
def test_any_number_of_views_paired_either_way(recipe: str) -> None:
    """Two-view, multi-view and asymmetric pipelines with every method of pictures."""
    for count, symmetric in itertools.product((2, 3), (True, False)):
        changes = {"views.count": count, "views.symmetric": symmetric}
        method = built(recipe, **changes, **room_for(recipe, 32)).train()
        channels = LAB_CHANNELS[count] if recipe.startswith("cmc") else (3,) * count
        method.prime(pictures(channels, first=8))
        outcome = method(pictures(channels))
        outcome.loss.backward()
        method.advance(outcome)
        gradients = [p.grad for p in method.parameters() if p.grad is not None]
        assert any(g.abs().max() > 0 for g in gradients), (count, symmetric)
        assert all(g.isfinite().all() for g in gradients), (count, symmetric)


@pytest.mark.parametrize(
    ("count", "symmetric", "expected"),
    [
        (1, True, ((0, 0),)),
        (2, True, ((0, 1), (1, 0))),
        (2, False, ((0, 1),)),
        (3, False, ((0, 1), (0, 2))),
        (3, True, ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))),
    ],
)
def test_view_pairs(count: int, symmetric: bool, expected: tuple[tuple[int, int], ...]) -> None:
    assert view_pairs(count, symmetric) == expected


@pytest.mark.parametrize(("count", "symmetric"), [(2, True), (3, True), (2, False), (3, False)])
def test_the_ceiling_holds_for_any_number_of_views(count: int, symmetric: bool) -> None:
    net = network()
    method = Method(Shared(net), Cosine(0.01), InBatch("both"), Everyone(), InfoNCE(), symmetric=symmetric)
    same = batch(1).views[0]
    outcome = method(
        Batch((same,) * count, torch.arange(N))
    )  # views alike: the positive is as good as can be
    assert outcome.nats is not None
    assert outcome.ceiling is not None
    assert float(outcome.nats) <= outcome.ceiling + 1e-9
    assert float(outcome.loss.detach()) >= -1e-9


# bound=none learns by its prior alone: the suites of `barlow` and `vicreg` have it
@pytest.mark.parametrize("bound", [bound for bound in bounds.PARTS if bound != "none"])
def test_any_part_works_with_any_other(bound: str) -> None:
    """Every encoder role × source × selection × bound trains a step with finite gradients."""
    sources = (
        ("in-batch", "queue", "bank", "none") if bound in NEEDS_NOBODY else ("in-batch", "queue", "bank")
    )
    for number, (role, source) in enumerate(itertools.product(ROLES, sources)):
        if (role, source) == ("infomax", "bank"):  # a bank has one row for each instance
            continue
        # weights of anchors need a mean over anchors
        names = [
            name for name in selections.PARTS if name != "proposal" or bounds.PARTS[bound].averages_anchors
        ]
        selection = names[number % len(names)]
        method = built("simclr", encoders=role, negatives=source, bound=bound, selection=selection).train()
        method.prime(pictures((3, 3), seed=5))
        method.prime(pictures((3, 3), first=8))
        outcome = method(pictures((3, 3)))
        outcome.loss.backward()
        method.advance(outcome)
        gradients = [p.grad for p in method.parameters() if p.grad is not None]
        assert any(g.abs().max() > 0 for g in gradients), (role, source, bound)
        assert all(torch.isfinite(g).all() for g in gradients), (role, source, bound)


def test_the_loss_is_measured_from_the_ceiling_of_its_step() -> None:
    """A schedule of alpha moves the ceiling log(m / alpha); so does one of the ball's edge, which moves m."""
    bound, select = MultiLabelCPC(geometric(2.0, 0.5)), Ball(linear(0.0, 0.8))
    method = Method(Shared(network()), Cosine(0.3), InBatch("one"), select, bound)
    for step, (alpha, mask) in enumerate(((2.0, N - 1), (1.0, 3), (0.5, 1))):
        outcome = method(batch(), Progress(step, 2))
        assert outcome.ceiling == pytest.approx(math.log((1 + mask) / alpha))
        assert outcome.nats is not None
        torch.testing.assert_close(outcome.loss.detach(), outcome.ceiling - outcome.nats)
        assert outcome.loss >= 0


def test_only_estimates_of_information_are_called_nats() -> None:
    outcomes = {
        name: Method(Shared(network()), Cosine(0.3), InBatch("one"), Everyone(), bounds.PARTS[name]())(
            batch()
        )
        for name in ("nwj", "dv", "vince", "js")
    }
    assert outcomes["nwj"].nats == -outcomes["nwj"].loss
    assert outcomes["dv"].nats is not None
    assert outcomes["vince"].nats is None
    assert outcomes["vince"].loss > 0
    assert outcomes["js"].nats is None


def test_a_certificate_passes_through_the_selection() -> None:
    """In-batch with one view is proven, a ring of it only after measuring."""

    def certificate(selection: AbstractSelection, coverage: Coverage | None = None) -> Certificate:
        method = Method(Shared(network()), Cosine(0.3), InBatch("one"), selection, InfoNCE())
        return method.eval().certificate(101, held_out=True, coverage=coverage)

    ball, ring = certificate(Ball(0.9)), certificate(Ring(0.5, 0.9))
    assert (ball.status, ball.ceiling) == ("proven", math.log(11))
    assert (ring.status, ring.ceiling) == ("not covered", math.log(41))
    assert certificate(Ring(0.5, 0.9), Coverage(1.0, 512)).status == "measured"
    assert "63 % of the 100 anchors" in certificate(Ring(0.5, 0.9), Coverage(0.63, 100)).condition


def test_running_mean_of_mine_changes_only_in_advance_and_is_saved() -> None:
    def build_method() -> Method:
        return Method(Shared(network()), Cosine(0.3), InBatch("one"), Everyone(), DonskerVaradhan(0.9))

    method = build_method()
    expected = None
    for step in range(3):
        example = batch(seed=step)
        z = [F.normalize(network()(view), dim=1) for view in example.views]
        rest = ~torch.eye(N, dtype=torch.bool)
        mean = torch.stack([(z[a] @ z[1 - a].T / 0.3).exp()[rest].mean() for a in (0, 1)]).mean()
        expected = mean if expected is None else 0.9 * expected + 0.1 * mean
        initial = method.state_dict()["bound.log_running"].clone()
        outcome = method(example)
        assert torch.equal(method.state_dict()["bound.log_running"], initial)
        method.advance(outcome)
    stored = method.state_dict()["bound.log_running"]
    assert expected is not None
    torch.testing.assert_close(stored, expected.detach().log().float())
    resumed = build_method()
    resumed.load_state_dict(method.state_dict())
    example = batch(seed=9)
    gradients = [
        torch.autograd.grad(m(example).loss, list(m.parameters())) for m in (method, resumed, build_method())
    ]
    for ours, theirs, forgetful in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.allclose(ours, forgetful)


class Weighed(nn.Module):
    """Reads a view that is a tree: the mean of the rows of `x` where `there` is true, and `more`."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 4)

    def forward(self, view: dict[str, Any]) -> torch.Tensor:
        present, (more,) = view["there"][..., None], view["more"]
        return self.line((view["x"] * present).sum(1) / present.sum(1) + more)


def test_a_view_may_be_a_tree_of_tensors() -> None:
    """A tree gives the numbers of the equivalent tensor; rows of a batch are rows of every leaf."""
    torch.manual_seed(0)
    x, present, more = torch.randn(2, 6, 5, 3), torch.ones(2, 6, 5), torch.randn(2, 6, 3)
    present[:, :, 3:] = 0
    views = tuple({"x": x[v], "there": present[v], "more": (more[v],)} for v in range(2))
    index = torch.arange(6)
    tree_batch = Batch(views, index, labels=index % 2, groups={"day": index + 1})
    net = Weighed()
    flat = Batch(tuple(x[v, :, :3].mean(1) + more[v] for v in range(2)), index)
    trees, baseline = (
        Method(Shared(network), Cosine(0.5), InBatch(), Everyone(), InfoNCE()) for network in (net, net.line)
    )
    torch.testing.assert_close(trees(tree_batch.to("cpu")).loss, baseline(flat).loss)
    part = tree_batch.rows(slice(1, 4))
    torch.testing.assert_close(trees(part).loss, baseline(flat.rows(slice(1, 4))).loss)
    assert part.labels is not None
    assert part.labels.tolist() == [1, 0, 1]
    assert part.groups["day"].tolist() == [2, 3, 4]
