"""Recipes one part away from another: each equals its paper written out in float64, and a peer's loss."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import lightly.loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearfar as nf
from nearfar.config.recipes import RECIPES
from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import START
from nearfar.core.types import Batch
from nearfar.losses import SupConLoss
from nearfar.parts import bounds
from nearfar.parts.encoders import Network, linear_head

N, DIM, T = 10, 5, 0.4
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, -1, 2, 3, -1])  # 3 occurs once, -1 is not known


def network() -> Network:
    torch.manual_seed(0)
    return Network(nn.Flatten(), linear_head(12, DIM)).double()


def batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, N, 3, 2, 2, generator=generator, dtype=torch.float64)
    return Batch(tuple(views), torch.arange(N))


def labelled() -> nf.Labelled:
    part = nf.Labelled(instances=N)
    part.assign(LABELS)
    return part


def agree(ours: Tensor, theirs: Tensor, weights: Sequence[Tensor], rtol: float = 1e-9) -> None:
    for got, expected in zip(
        (ours, *torch.autograd.grad(ours, weights, retain_graph=True)),
        (theirs, *torch.autograd.grad(theirs, weights)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("chunk", [None, 3])
def test_dcl_equals_lightly_up_to_a_constant(chunk: int | None) -> None:
    """Yeh et al. 2022, Eq. 6: minus UBA plus log of the number of negatives."""
    net, sample = network(), batch()
    method = nf.Method(nf.Shared(net), nf.Cosine(T), nf.InBatch("both"), nf.Everyone(), nf.UBA(), chunk=chunk)
    theirs = lightly.loss.DCLLoss(temperature=T)(*(net(view) for view in sample.views))
    agree(method(sample).loss + math.log(2 * N - 2), theirs, list(net.parameters()))


def test_moco_v3_equals_cross_entropy_both_ways() -> None:
    """Chen et al. 2021, Alg. 1, without its factor 2 tau: ctr(q1, k2) + ctr(q2, k1), halved."""
    net, sample, predictor = network(), batch(), linear_head(DIM, DIM).double()
    method = nf.Method(
        nf.Momentum(net, 0.99, predictor=predictor),
        nf.Cosine(0.2),
        nf.InBatch("one"),
        nf.Everyone(),
        nf.InfoNCE(),
    )
    q = [F.normalize(predictor(net(view)), dim=1) for view in sample.views]
    k = [F.normalize(net(view).detach(), dim=1) for view in sample.views]
    theirs = torch.stack([F.cross_entropy(q[a] @ k[1 - a].T / 0.2, torch.arange(N)) for a in (0, 1)]).mean()
    agree(method(sample).loss, theirs, [*net.parameters(), *predictor.parameters()])


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("form", ["out", "in"])
def test_supcon_equals_both_of_its_forms(form: Literal["out", "in"], chunk: int | None) -> None:
    """Khosla et al. 2020, Eq. 2 and 3 over 2N views, one anchor at a time. An unknown label is its own
    class."""
    net, sample = network(), batch()
    method = nf.Method(
        nf.Shared(net),
        nf.Cosine(T),
        nf.InBatch("both"),
        labelled(),
        nf.SupCon(form),
        chunk=chunk,
    )
    z = F.normalize(torch.cat([net(view) for view in sample.views]), dim=1)
    classes = torch.where(LABELS < 0, 100 + torch.arange(N), LABELS).repeat(2)
    losses = []
    for i in range(2 * N):
        rest = [a for a in range(2 * N) if a != i]
        positives = [a for a in rest if classes[a] == classes[i]]
        total = sum(torch.exp(z[i] @ z[a] / T) for a in rest)
        shares = torch.stack([torch.exp(z[i] @ z[p] / T) / total for p in positives])
        losses.append(-(shares.log().mean() if form == "out" else shares.mean().log()))
    weights = list(net.parameters())
    agree(method(sample).loss, torch.stack(losses).mean(), weights)
    drop_in = SupConLoss(T, form=form)(torch.cat([net(view) for view in sample.views]), classes)
    agree(method(sample).loss, drop_in, weights)


def hard_negatives(views: tuple[Tensor, ...], net: nn.Module, beta: float, tau: float) -> Tensor:
    """Robinson et al. 2021, App. A: their estimator with exponentials, sums and a loop, as in its listing."""
    z = F.normalize(torch.cat([net(view) for view in views]), dim=1)
    losses = []
    for i in range(2 * N):
        positive_row = (i + N) % (2 * N)
        negatives = torch.stack(
            [torch.exp(z[i] @ z[a] / T) for a in range(2 * N) if a not in (i, positive_row)]
        )
        positive = torch.exp(z[i] @ z[positive_row] / T)
        importance = negatives**beta
        weighted = (importance * negatives).sum() / importance.mean()
        count = 2 * N - 2
        g = (weighted - tau * count * positive) / (1 - tau)
        losses.append(-torch.log(positive / (positive + g.clamp_min(count * math.exp(-1 / T)))))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize(("beta", "tau"), [(0.0, 0.1), (0.0, 0.7), (1.0, 0.0), (0.5, 0.1), (2.0, 0.3)])
def test_debiased_and_hcl_equal_their_papers(beta: float, tau: float, chunk: int | None) -> None:
    net, sample = network(), batch()
    select = nf.Everyone() if beta == 0 else nf.Hard(beta)
    method = nf.Method(
        nf.Shared(net), nf.Cosine(T), nf.InBatch("both"), select, nf.Debiased(tau), chunk=chunk
    )
    theirs = hard_negatives(sample.views, net, beta, tau)
    agree(method(sample).loss, theirs, list(net.parameters()), rtol=1e-8)


@pytest.mark.parametrize("chunk", [None, 3])
def test_nnclr_equals_cross_entropy_over_neighbours(chunk: int | None) -> None:
    """Dwibedi et al. 2021, the term over neighbours: -log e^(nn(z_i).p_i) / sum_k e^(nn(z_k).p_i), by
    loops."""
    net, sample, predictor = network(), batch(), linear_head(DIM, DIM).double()
    support = nf.Support(12, dim=DIM).double()
    stored = F.normalize(torch.randn(9, DIM, dtype=torch.float64), dim=1)  # three places stay empty
    support.queue.advance({0: stored}, torch.arange(50, 59), START)
    method = nf.Method(
        nf.Shared(net, stop_gradient=True, predictor=predictor),
        nf.Cosine(T),
        support,
        nf.Everyone(),
        nf.InfoNCE(),
        chunk=chunk,
    )
    z = [F.normalize(net(view).detach(), dim=1) for view in sample.views]
    p = [F.normalize(predictor(net(view)), dim=1) for view in sample.views]
    nearest = [
        torch.stack([stored[torch.stack([(row - q).norm() for q in stored]).argmin()] for row in side])
        for side in z
    ]
    theirs = torch.stack(
        [F.cross_entropy(p[a] @ nearest[1 - a].T / T, torch.arange(N)) for a in (0, 1)]
    ).mean()
    agree(method(sample).loss, theirs, [*net.parameters(), *predictor.parameters()])


def test_a_support_without_a_width_takes_that_of_its_keys() -> None:
    net, sample = network(), batch()
    support = nf.Support(N).double()
    method = nf.Method(nf.Shared(net), nf.Cosine(T), support, nf.Everyone(), nf.InfoNCE())
    outcome = method(sample)  # the support is empty: every key is its own neighbour
    baseline = nf.Method(
        nf.Shared(net, stop_gradient=True), nf.Cosine(T), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE()
    )
    torch.testing.assert_close(outcome.loss, baseline(sample).loss)
    method.advance(outcome)
    assert support.queue.embedding.shape == (N, DIM)


def test_a_support_holds_one_view_and_forgets_the_oldest() -> None:
    net, sample = network(), batch()
    support = nf.Support(N + 4, dim=DIM).double()
    method = nf.Method(nf.Shared(net), nf.Cosine(T), support, nf.Everyone(), nf.InfoNCE())
    for _ in range(2):
        method.advance(method(sample))
    assert sorted(support.queue.index.tolist()) == sorted([*range(N), *range(N - 4, N)])
    rows = F.normalize(net(sample.views[0]), dim=1).detach()
    torch.testing.assert_close(support.nearest(rows, 0), rows)  # each is there itself by now
    with pytest.raises(nf.UserError, match=r"Queue\(size=4\) is smaller than the batch of 10"):
        nf.Method(
            nf.Shared(net), nf.Cosine(T), nf.Support(4, dim=DIM), nf.Everyone(), nf.InfoNCE()
        ).certificate(N)


BOUNDS = bounds.PARTS
SELECTIONS: dict[str, Callable[[], AbstractSelection]] = {
    "labelled": labelled,
    "hard": lambda: nf.Hard(0.7),
    "labelled, ring, hard": lambda: nf.Chain(labelled(), nf.Ring(0.2, 0.9), nf.Hard(1.5)),
    "ball, hard": lambda: nf.Chain(nf.Ball(0.5), nf.Hard(nf.linear(1.0, 2.0))),
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_chunk_changes_nothing(selection: str, bound: str) -> None:
    """Value and gradient of every bound with label positives and weighted negatives, whole and in chunks of
    three."""
    net, sample = network(), batch()
    results = []
    for chunk in (None, 3):
        method = nf.Method(
            nf.Shared(net),
            nf.Cosine(T),
            nf.InBatch("both"),
            SELECTIONS[selection](),
            BOUNDS[bound](),
            chunk=chunk,
        )
        loss = method(sample).loss
        results.append((loss, *torch.autograd.grad(loss, list(net.parameters()))))
    for full, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, full, rtol=1e-9, atol=1e-11)


def test_a_chain_is_its_parts_in_turn() -> None:
    anchors, keys = torch.randn(2, N, DIM, generator=torch.Generator().manual_seed(3))
    scores = nf.dense_scores(anchors, keys, T)
    chain, ring, hard = nf.Chain(nf.Ring(0.2, 0.9), nf.Hard(1.5)), nf.Ring(0.2, 0.9), nf.Hard(1.5)
    torch.testing.assert_close(nf.InfoNCE()(chain(scores)), nf.InfoNCE()(hard(ring(scores))))
    with pytest.raises(nf.UserError, match="must be the last of a chain"):
        nf.Chain(hard, ring)


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
def test_weights_of_counted_candidates_have_mean_one(beta: float) -> None:
    values = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    allowed = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    allowed[2] = False
    weighted = nf.Hard(beta)(nf.Scores.of(values[:, 0], values, allowed)).negative
    sums = weighted.sum_of(torch.ones_like)
    torch.testing.assert_close(sums, weighted.count())
    expected = [
        (row[mask] ** 1 * (beta * row[mask]).exp()).sum() / (beta * row[mask]).exp().mean()
        if mask.any()
        else 0.0
        for row, mask in zip(values, allowed, strict=True)
    ]
    torch.testing.assert_close(
        weighted.sum_of(lambda f: f), torch.tensor([float(e) for e in expected], dtype=torch.float64)
    )


def test_every_documented_name_is_a_recipe() -> None:
    further = ["moco-v3", "dcl", "supcon", "hcl", "debiased", "nnclr", "vicreg", "sigreg"]
    without = {"vicreg", "sigreg"}
    ruled = [
        f"{name}-{s}"
        for name in further
        if name not in without
        for s in ("ring", "ball", "cave", "neighbours")
    ]
    assert {*further, *ruled} <= set(RECIPES)
    assert not any(name.startswith(("vicreg-", "sigreg-")) for name in RECIPES)
    assert RECIPES["supcon-ring"].choices["selection"]["name"] == "labelled+ring"
    assert RECIPES["hcl-cave"].choices["selection"]["name"] == "cave+hard"
