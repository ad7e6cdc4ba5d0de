"""`chunk` works with every selection: tile by tile, selection and bound equal those of the whole matrix."""

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
    """With clusters of all instances, so that there are candidates to keep and to pull."""
    generator = torch.Generator().manual_seed(5)
    selection.refresh(torch.randn(INSTANCES, DIM, generator=generator))
    return selection


def grouped() -> nf.Group:
    group = nf.Group("speaker", instances=INSTANCES)
    group.assign(torch.arange(INSTANCES) % 3)
    return group


def other_classes() -> nf.Others:
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


SELECTIONS: dict[str, Callable[[], AbstractSelection]] = {
    "everyone": nf.Everyone,
    "ball": lambda: nf.Ball(0.4),
    "ring": lambda: nf.Ring(0.3, 0.8),
    "ring below": lambda: nf.Ring(0.0, 0.5),
    "ring, sampled": lambda: nf.Ring(0.1, 0.9, sample=6),
    "annulus": lambda: clustered(nf.Neighbours(lower=0.2, clusters=4, keep="annulus", instances=INSTANCES)),
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
    "others": other_classes,
    "hard": lambda: nf.Hard(0.7),
    "proposal": lambda: nf.Proposal(0.7, sample=3),
}
CRITIC_BUILDERS: dict[str, Callable[[], Any]] = {
    "cosine": lambda: nf.Cosine(0.2),
    "dot": nf.Dot,
    "distance": lambda: nf.Distance(0.5),
    "bilinear": lambda: nf.Bilinear(dim=DIM).double(),
    "separable": lambda: nf.Separable(hidden=6, out=3, dim=DIM).double(),
    "hybrid": lambda: nf.Hybrid(hidden=6, out=3, small=4, dim=DIM).double(),
    "joint": lambda: nf.Joint(hidden=6, dim=DIM).double(),
}


def build_bound(name: str) -> AbstractBound:
    return bounds.PARTS[name](**({"entropy": 1.0} if name == "barber-agakov" else {}))


def value_and_gradients(
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
    part, measure = SELECTIONS[selection](), build_bound(bound)
    torch.manual_seed(3)
    scorer = CRITIC_BUILDERS[critic]()
    full = value_and_gradients(part, measure, scorer, None)
    for tile in (1, 3, N + 1):
        value, gradients = value_and_gradients(part, measure, scorer, tile)
        torch.testing.assert_close(value, full[0], rtol=1e-11, atol=1e-11)
        for ours, theirs in zip(gradients, full[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("selection", "bound"), list(itertools.product(SELECTIONS, bounds.PARTS)))
def test_tiles_equal_the_matrix(selection: str, bound: str) -> None:
    same(selection, bound, "cosine")


@pytest.mark.parametrize(("selection", "critic"), list(itertools.product(SELECTIONS, CRITIC_BUILDERS)))
def test_tiles_equal_the_matrix_for_any_critic(selection: str, critic: str) -> None:
    same(selection, "infonce", critic)


def test_every_selection_is_in_this_suite() -> None:
    """A new selection or critic joins by an entry above; bounds are all taken."""
    types = {type(make()) for make in SELECTIONS.values()}
    assert types >= {part for part in selections.PARTS.values() if isinstance(part, type)}
    assert set(CRITIC_BUILDERS) == set(CRITICS)


def test_a_selection_changes_which_candidates_count() -> None:
    """Or the comparison above would be one of everyone with everyone."""
    for name, make in SELECTIONS.items():
        if name != "everyone":
            baseline, _ = value_and_gradients(nf.Everyone(), nf.InfoNCE(), nf.Cosine(0.2), None)
            assert not torch.equal(
                value_and_gradients(make(), nf.InfoNCE(), nf.Cosine(0.2), None)[0], baseline
            ), name


def test_random_numbers_depend_only_on_their_place() -> None:
    """Numbers of some rows or columns equal those of all, and they are uniform."""
    from nearfar.core.randomness import word_grid

    rows = torch.arange(300)
    words = word_grid(12345, rows, 200)
    assert torch.equal(word_grid(12345, rows[17:29], 50), words[17:29, :50])
    full = words.double() * 2.0**-53
    assert 0 <= float(full.min()) < float(full.max()) < 1
    # mean 1/2 and deviation sqrt(1/12) of 60,000 draws, to five standard errors; no correlation
    assert abs(float(full.mean()) - 0.5) < 5 * (1 / 12 / 60_000) ** 0.5
    for one, second in ((full[:, :-1], full[:, 1:]), (full[:-1], full[1:])):
        assert (
            abs(float(torch.corrcoef(torch.stack([one.flatten(), second.flatten()]))[0, 1])) < 5 / 59_000**0.5
        )
    assert not torch.equal(word_grid(12346, rows, 200), words)
