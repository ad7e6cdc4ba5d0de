"""`chunk` is true under every selection: asked tile by tile, a selection and a bound say what they say of the whole matrix."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import nearfar as nf
from nearfar.core.abstract import AbstractBound, AbstractSelection
from nearfar.core.schedules import START
from nearfar.core.scores import EMPTY, Candidates, Dense, Scores, Streamed
from nearfar.core.types import Context
from nearfar.parts import bounds, selections
from nearfar.parts.critics import PARTS as CRITICS

N, K, DIM, INSTANCES = 7, 23, 5, 40


def clustered(selection: Any) -> Any:
    """With clusters of all instances, so that it has somebody to keep and to pull."""
    generator = torch.Generator().manual_seed(5)
    selection.refresh(torch.randn(INSTANCES, DIM, generator=generator))
    return selection


def grouped() -> nf.Group:
    group = nf.Group("speaker", instances=INSTANCES)
    group.assign(torch.arange(INSTANCES) % 3)
    return group


def others() -> nf.Others:
    part = nf.Others(sample=5, instances=INSTANCES)
    part.assign(torch.arange(INSTANCES) % 4 - 1)  # some labels are not known
    return part


def labelled() -> nf.Labelled:
    part = nf.Labelled(instances=INSTANCES)
    part.assign(torch.arange(INSTANCES) % 3)
    return part


def accepting() -> nf.Accept:
    torch.manual_seed(7)
    return nf.Accept(least=0.3, hidden=4).double()


CHOSEN: dict[str, Callable[[], AbstractSelection]] = {
    "everyone": nf.Everyone,
    "ball": lambda: nf.Ball(0.4),
    "ring": lambda: nf.Ring(0.3, 0.8),
    "ring below": lambda: nf.Ring(0.0, 0.5),
    "ring, sampled": lambda: nf.Ring(0.1, 0.9, sample=6),
    "annulus": lambda: clustered(nf.Annulus(lower=0.2, clusters=4, instances=INSTANCES)),
    "cave": lambda: clustered(nf.Cave(3, instances=INSTANCES)),
    "cave +C_i": lambda: clustered(nf.Cave(2, close=6, runs=2, instances=INSTANCES)),
    "group": grouped,
    "neighbours": lambda: clustered(nf.Neighbours(lower=0.2, clusters=4, instances=INSTANCES)),
    "ring +C_i": lambda: clustered(nf.Neighbours(lower=0.2, upper=0.8, clusters=4, instances=INSTANCES)),
    "neighbours left out": lambda: clustered(
        nf.Neighbours(background=9, clusters=4, keep="annulus", lower=0.0, instances=INSTANCES)
    ),
    "accept": accepting,
    "labelled": labelled,
    "others": others,
    "hard": lambda: nf.Hard(0.7),
    "proposal": lambda: nf.Proposal(0.7, sample=3),
}
CRITICAL: dict[str, Callable[[], Any]] = {
    "cosine": lambda: nf.Cosine(0.2),
    "dot": nf.Dot,
    "distance": lambda: nf.Distance(0.5),
    "bilinear": lambda: nf.Bilinear(dim=DIM).double(),
    "separable": lambda: nf.Separable(hidden=6, out=3, dim=DIM).double(),
    "hybrid": lambda: nf.Hybrid(hidden=6, out=3, small=4, dim=DIM).double(),
    "joint": lambda: nf.Joint(hidden=6, dim=DIM).double(),
}


def made(name: str) -> AbstractBound:
    return bounds.PARTS[name](**({"entropy": 1.0} if name == "barber-agakov" else {}))


def found(
    selection: AbstractSelection, bound: AbstractBound, critic: Any, tile: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Value and every gradient: of anchors, keys, the critic's weights and the selection's."""
    generator = torch.Generator().manual_seed(1)
    anchors = torch.randn(N, DIM, generator=generator, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(K, DIM, generator=generator, dtype=torch.float64, requires_grad=True)
    index = torch.randperm(INSTANCES, generator=generator)[:N]
    ids = torch.cat(
        [index, torch.randint(0, INSTANCES, (K - N - 2,), generator=generator), torch.tensor([EMPTY, -1])]
    )
    candidates = Candidates(critic.prepare(keys), ids)
    views = critic.prepare(anchors)
    score = lambda a, k: critic.cross(a, k, START)
    positive = critic.pairs(views, critic.prepare(anchors + 0.3), START)[:, None]
    if tile is None:
        negative: Any = Dense(score(views, candidates.embedding), candidates.negative_mask(index))
    else:
        negative = Streamed(views, index, candidates, tile, score)
    as_mean = getattr(bound, "distance_scores", False)
    torch.manual_seed(11)  # of what a selection draws
    scores = selection(Scores(positive, negative), Context(views, candidates, index, START, as_mean))
    value = bound(scores)
    total = value + scores.score_function_term(value, bound)
    weights = [
        w for part in (critic, selection) if isinstance(part, torch.nn.Module) for w in part.parameters()
    ]
    gradients = torch.autograd.grad(
        total, [anchors, keys, *weights], allow_unused=True, materialize_grads=True
    )
    return value.detach(), list(gradients)


def same(selection: str, bound: str, critic: str) -> None:
    part, measure = CHOSEN[selection](), made(bound)
    torch.manual_seed(3)
    scorer = CRITICAL[critic]()
    full = found(part, measure, scorer, None)
    for tile in (1, 3, N + 1):
        value, gradients = found(part, measure, scorer, tile)
        torch.testing.assert_close(value, full[0], rtol=1e-11, atol=1e-11)
        for ours, theirs in zip(gradients, full[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("selection", "bound"), list(itertools.product(CHOSEN, bounds.PARTS)))
def test_tiles_say_what_the_matrix_says(selection: str, bound: str) -> None:
    same(selection, bound, "cosine")


@pytest.mark.parametrize(("selection", "critic"), list(itertools.product(CHOSEN, CRITICAL)))
def test_tiles_of_any_critic(selection: str, critic: str) -> None:
    same(selection, "infonce", critic)


def test_every_part_is_here() -> None:
    """A new selection or critic joins by an entry above; bounds are all taken."""
    types = {type(make()) for make in CHOSEN.values()}
    assert types >= {part for part in selections.PARTS.values() if isinstance(part, type)}
    assert set(CRITICAL) == set(CRITICS)


def test_a_selection_changes_who_counts() -> None:
    """Or the comparison above would be one of everyone with everyone."""
    for name, make in CHOSEN.items():
        if name != "everyone":
            baseline, _ = found(nf.Everyone(), nf.InfoNCE(), nf.Cosine(0.2), None)
            assert not torch.equal(found(make(), nf.InfoNCE(), nf.Cosine(0.2), None)[0], baseline), name


def test_drawn_numbers_belong_to_their_place() -> None:
    """Rows asked for together or apart, and only some of the columns: the same numbers, even ones."""
    from nearfar.core.randomness import word_grid

    rows = torch.arange(300)
    words = word_grid(12345, rows, 200)
    assert torch.equal(word_grid(12345, rows[17:29], 50), words[17:29, :50])
    full = words.double() * 2.0**-53
    assert 0 <= float(full.min()) < float(full.max()) < 1
    # mean 1/2 and deviation sqrt(1/12) of 60,000 draws, to five standard errors; neighbours do not follow one another
    assert abs(float(full.mean()) - 0.5) < 5 * (1 / 12 / 60_000) ** 0.5
    for one, second in ((full[:, :-1], full[:, 1:]), (full[:-1], full[1:])):
        assert (
            abs(float(torch.corrcoef(torch.stack([one.flatten(), second.flatten()]))[0, 1])) < 5 / 59_000**0.5
        )
    assert not torch.equal(word_grid(12346, rows, 200), words)
