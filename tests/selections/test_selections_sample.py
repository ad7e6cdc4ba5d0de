"""`sample` draws exactly that many kept candidates per anchor, equal to a slow reference, tiled or not."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.abstract import AbstractSelection
from nearfar.core.randomness import word_grid, words_at
from nearfar.core.schedules import START
from nearfar.core.scores import Candidates, Dense, Scores, Streamed
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.selections import draws
from nearfar.parts.selections.ring import reduce_sampling


def slowly(values: Tensor, mask: Tensor, lower: float, upper: float, sample: int, seed: int) -> Tensor:
    """The definition, anchor by anchor: sort, cut out the places, then take those with the lowest numbers."""
    numbers = word_grid(seed, torch.arange(len(values)), values.shape[1])
    choice = torch.zeros_like(mask)
    for i, row in enumerate(values.tolist()):
        order = sorted((j for j in range(len(row)) if mask[i, j]), key=lambda j: (row[j], j))
        first = min(round(lower * len(order)), max(len(order) - 1, 0))
        ring = order[first : max(round(upper * len(order)), first + 1)]
        for j in sorted(ring, key=lambda j: int(numbers[i, j]))[:sample]:
            choice[i, j] = True
    return choice


@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 30)),
    sample=st.integers(1, 12),
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
@settings(max_examples=150, deadline=None)
def test_ring_then_sample_equals_the_slow_reference(
    seed: int, shape: tuple[int, int], sample: int, edges: tuple[float, float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(9, shape, generator=generator).double()
    mask = torch.rand(shape, generator=generator) < 0.8
    lower, upper = sorted(edges)
    scores = Scores.of(torch.zeros(shape[0]), values, mask)
    torch.manual_seed(seed)
    result = nf.Ring(lower, upper, sample)(scores).negative.matrix()[1]
    torch.manual_seed(seed)
    assert torch.equal(result, slowly(values, mask, lower, upper, sample, draws.step_seed()))


def test_numbers_of_some_columns_order_as_those_of_all() -> None:
    seed, row = 2**61 + 12345, 7
    full = word_grid(seed, torch.tensor([row]), 100)[0]
    places = torch.arange(3, 100, 7)
    words = words_at(seed, row, places.numpy())
    assert torch.equal(full[places], torch.from_numpy(words.astype("int64")))


def test_the_path_of_other_devices_draws_the_same() -> None:
    """Without numpy, numbers are compared by topk: the same numbers, so the same draw."""
    mask = torch.rand(5, 60, generator=torch.Generator().manual_seed(0)) < 0.6
    rows = torch.arange(5)
    mine = draws.sample_candidates(mask, 9, 77, rows)
    number = word_grid(77, rows, 60).masked_fill(~mask, 2**53)
    lowest = number.topk(9, dim=1, largest=False).indices
    assert torch.equal(mine, torch.zeros_like(mask).scatter_(1, lowest, True))


def test_draws_are_uniform_and_independent_between_anchors() -> None:
    """Every pair of five kept is drawn equally often (chi-squared); two anchors draw independently."""
    mask = torch.tensor([[True] * 5 + [False]] * 2)
    times, first, same = 3000, Counter[tuple[int, ...]](), 0
    for seed in range(times):
        mine, second = draws.sample_candidates(mask, 2, seed * 1_000_003, torch.arange(2))
        first[tuple(mine.nonzero()[:, 0].tolist())] += 1
        same += int(torch.equal(mine, second))
    assert set(first) == set(itertools.combinations(range(5), 2))
    expected = times / 10
    assert sum((count - expected) ** 2 / expected for count in first.values()) < 33.7  # 9 degrees, p = 1e-4
    assert abs(same / times - 0.1) < 4 * (0.1 * 0.9 / times) ** 0.5


SELECTIONS: dict[str, Callable[[], AbstractSelection]] = {
    "ring": lambda: nf.Ring(0.2, 0.9, 5),
    "ball": lambda: nf.Ball(0.3, 5),
    "neighbours": lambda: _clustered(nf.Neighbours(lower=0.2, clusters=4, sample=5, instances=40)),
    "annulus": lambda: _clustered(
        nf.Neighbours(lower=0.2, clusters=4, keep="annulus", sample=5, instances=40)
    ),
    "share": lambda: _clustered(nf.Neighbours(0.4, lower=0.0, clusters=4, instances=40)),
}


def _clustered(part: Any) -> Any:
    part.refresh(torch.randn(40, 5, generator=torch.Generator().manual_seed(5)))
    return part


@pytest.mark.parametrize("name", SELECTIONS)
def test_tiles_draw_what_the_whole_draws(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    anchors, keys = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (7, 40))
    index, ids = torch.arange(7), torch.arange(40)
    candidates, part, result = Candidates(keys, ids), SELECTIONS[name](), []
    full = Dense(anchors @ keys.T, candidates.negative_mask(index))
    for negative in (full, Streamed(anchors, index, candidates, 3), Streamed(anchors, index, candidates, 1)):
        anchors.requires_grad_().grad = None
        torch.manual_seed(3)
        context = Context(anchors, candidates, index, START)
        value = nf.InfoNCE()(part(Scores(torch.ones(7, 1, dtype=torch.float64), negative), context))
        result.append(float(value.detach()))
    torch.testing.assert_close(result[1:], result[:1] * 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_rank_draws_for_its_anchors_what_one_process_draws(name: str) -> None:
    """Anchors 3 to 6 alone, as on the second of two ranks, keep what they keep among all seven."""
    generator = torch.Generator().manual_seed(1)
    anchors, keys = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (7, 40))
    candidates, part, result = Candidates(keys, torch.arange(40)), SELECTIONS[name](), []
    for first in (0, 3):
        mine, index = anchors[first:], torch.arange(7)[first:]
        scores = Scores.of(torch.ones(len(mine)), mine @ keys.T, candidates.negative_mask(index))
        torch.manual_seed(3)
        context = Context(mine, candidates, index, START, first=first)
        result.append(part(scores, context).negative.matrix()[1])
    assert torch.equal(result[0][3:], result[1])


def test_the_background_of_local_aggregation_may_be_a_share() -> None:
    """A share is a share of the anchor's candidates, however many there are."""
    for count in (20, 40):
        values = torch.randn(3, count, generator=torch.Generator().manual_seed(0))
        part = nf.Neighbours(0.25, lower=0.0, clusters=2, runs=1, instances=count + 3)
        part.close.ids = torch.zeros_like(part.close.ids) + torch.arange(count + 3, dtype=torch.int32)
        candidates = Candidates(torch.zeros(count, 2), torch.arange(3, count + 3))
        context = Context(torch.zeros(3, 2), candidates, torch.arange(3), START)
        mask = part(Scores.of(torch.zeros(3), values), context).negative.matrix()[1]
        assert mask.sum(dim=1).tolist() == [count // 4] * 3
        nearest = values.topk(count // 4, dim=1).indices
        assert mask.gather(1, nearest).all()


def test_the_annulus_is_the_ball_without_the_close_ones() -> None:
    """B_i without C_i (Wu et al. 2020, Def. 5.3): members of the anchor's clusters are neither negatives nor
    positives."""
    part = _clustered(nf.Neighbours(lower=0.0, clusters=4, keep="annulus", instances=40))
    values = torch.randn(6, 34, generator=torch.Generator().manual_seed(2))
    candidates = Candidates(torch.zeros(34, 2), torch.arange(6, 40))
    context = Context(torch.zeros(6, 2), candidates, torch.arange(6), START)
    scores = Scores.of(torch.zeros(6), values)
    result = part(scores, context)
    joint = part.close.share_cluster(torch.arange(6), torch.arange(6, 40))
    assert joint.any()
    assert torch.equal(result.negative.matrix()[1], ~joint)
    assert torch.equal(result.positive, scores.positive)


def test_sampling_after_a_ball_keeps_the_claim() -> None:
    """k of the M most similar are place by place at least as similar as k of M chosen blindly, so the
    expected value is at most that
    of k of all, which is InfoNCE's with m = k + 1: enumerated over all draws (docs/certificates.md)."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(20):
        positive, negative = (
            torch.randn(1, generator=generator),
            torch.randn(1, 7, generator=generator).sort(dim=1).values,
        )

        def mean(pool: range, k: int, f: Tensor = positive, g: Tensor = negative) -> float:
            values = [
                float(nf.InfoNCE()(Scores.of(f, g[:, list(c)]))) for c in itertools.combinations(pool, k)
            ]
            return sum(values) / len(values)

        for k in (1, 2, 3):
            assert mean(range(3, 7), k) <= mean(range(7), k) + 1e-6


def test_a_certificate_counts_the_drawn_negatives() -> None:
    sampling = NegativeSampling(64, 1000, independent=True)
    ball, ring = (
        nf.Ball(0.9, 32).sampling(sampling),
        nf.Ring(nf.linear(0, 0.99), 0.999, 32).sampling(sampling),
    )
    assert (ball.negatives, ball.min_negatives, ball.cut) == (32, 32, "below")
    assert (ring.negatives, ring.min_negatives, ring.cut) == (32, 9, "above")
    assert reduce_sampling(sampling, None) is sampling
    assert nf.InfoNCE().certificate(ball).status == "proven"
    assert nf.InfoNCE().certificate(ball).ceiling == pytest.approx(torch.tensor(33.0).log().item())
    assert nf.InfoNCE().certificate(ring).status == "not covered"


@pytest.mark.parametrize("part", [nf.Ring, nf.Ball, nf.Neighbours])
@pytest.mark.parametrize("sample", [0, -3, 2.5])
def test_a_sample_is_a_whole_number(part: type, sample: float) -> None:
    with pytest.raises(UserError, match=r"selection.sample was .*; it must be a whole number from 1"):
        part(sample=sample)
