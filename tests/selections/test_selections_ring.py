"""Ball and Ring keep the places of their definition, for any ties, masks and numbers of candidates."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.schedules import Progress
from nearfar.core.scores import EMPTY, Candidates
from nearfar.core.types import Context, Coverage, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.selections import PARTS, Accept, Cave, Group, Neighbours, ranks
from nearfar.parts.selections.ranks import beyond_edges, places

shares = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]), st.floats(0, 1))


def by_sorting(row: list[float], mask: list[bool], lower: float, upper: float) -> list[bool]:
    """The definition, one anchor at a time: sort the kept by (score, position), cut out the places."""
    order = sorted((j for j, stays in enumerate(mask) if stays), key=lambda j: (row[j], j))
    count = len(order)
    first = min(round(lower * count), max(count - 1, 0))
    last = max(round(upper * count), first + 1)
    choice = set(order[first:last])
    return [j in choice for j in range(len(row))]


@st.composite
def tied_scores(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n, k = draw(st.integers(1, 5)), draw(st.integers(0, 14))
    levels = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (n, k), generator=generator).double() - 2.0
    if draw(st.booleans()):
        values = values.masked_fill(values == -2.0, -torch.inf)  # a critic may rule a pair out
    mask = torch.rand(n, k, generator=generator) < draw(st.sampled_from([0.5, 0.8, 1.0]))
    return values, mask


@given(problem=tied_scores(), shares=st.tuples(shares, shares))
@settings(max_examples=400, deadline=None)
def test_ring_keeps_the_places_of_the_definition(
    problem: tuple[Tensor, Tensor], shares: tuple[float, float]
) -> None:
    (values, mask), (lower, upper) = problem, sorted(shares)
    _, got = nf.Ring(lower, upper)(nf.Scores.of(torch.zeros(len(values)), values, mask)).negative.matrix()
    expected_values = [
        by_sorting(v, m, lower, upper) for v, m in zip(values.tolist(), mask.tolist(), strict=True)
    ]
    assert got.tolist() == expected_values


@given(problem=tied_scores(), shares=st.tuples(shares, shares), nearest=st.integers(1, 6) | st.none())
@settings(max_examples=200, deadline=None)
def test_partition_and_topk_give_the_same_edges(
    problem: tuple[Tensor, Tensor], shares: tuple[float, float], nearest: int | None
) -> None:
    """float64 on a CPU is partitioned, bfloat16 (exact here) uses the path of other devices; both equal
    sorting.

    `nearest` keeps the last places between the edges.
    """
    (values, mask), (lower, upper) = problem, sorted(shares)
    result = [beyond_edges(v, mask, lower, upper, nearest) for v in (values, values.bfloat16())]
    for row, (v, m) in enumerate(zip(values.tolist(), mask.tolist(), strict=True)):
        order = sorted((j for j, stays in enumerate(m) if stays), key=lambda j: (v[j], j))
        first, last = places(len(order), lower, upper)
        first = first if nearest is None else max(first, last - nearest)
        for reach, close in result:
            assert reach[row].nonzero()[:, 0].tolist() == sorted(order[first:])
            assert close[row].nonzero()[:, 0].tolist() == sorted(order[last:])


@pytest.mark.parametrize("levels", [3, 10_000])
def test_threads_share_the_rows_and_change_nothing(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(levels, (7, 500), generator=generator).float()
    mask = torch.rand(7, 500, generator=generator) < 0.9
    single = beyond_edges(values, mask, 0.6, 0.9)
    monkeypatch.setattr(ranks, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for full, shared in zip(single, beyond_edges(values, mask, 0.6, 0.9), strict=True):
        assert torch.equal(full, shared)
        assert full.any()


@given(problem=tied_scores(), lower=shares)
@settings(max_examples=100, deadline=None)
def test_ball_is_a_ring_without_an_outer_edge(problem: tuple[Tensor, Tensor], lower: float) -> None:
    values, mask = problem
    scores = nf.Scores.of(torch.zeros(len(values)), values, mask)
    ball, ring = (s(scores).negative.matrix()[1] for s in (nf.Ball(lower), nf.Ring(lower, 1.0)))
    expected_values = [
        by_sorting(v, m, lower, 1.0) for v, m in zip(values.tolist(), mask.tolist(), strict=True)
    ]
    assert ball.tolist() == ring.tolist() == expected_values


@given(problem=tied_scores())
@settings(max_examples=50, deadline=None)
def test_ring_from_0_to_1_is_everyone(problem: tuple[Tensor, Tensor]) -> None:
    values, mask = problem
    scores = nf.Scores.of(torch.zeros(len(values)), values, mask)
    _, got = nf.Ring(0.0, 1.0)(scores).negative.matrix()
    assert torch.equal(got, nf.Everyone()(scores).negative.matrix()[1])


@pytest.mark.parametrize("select", [nf.Ball(0.3), nf.Ring(0.3, 0.9)])
def test_gradients_flow_only_through_kept_candidates(select: nf.Ball | nf.Ring) -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 10, dtype=torch.float64, requires_grad=True)
    scores = nf.Scores.of(torch.zeros(4, dtype=torch.float64), values)
    choice = select(scores)
    (gradient,) = torch.autograd.grad(nf.InfoNCE()(choice), values)
    assert torch.equal(gradient != 0, choice.negative.matrix()[1])


def test_streamed_and_dense_scores_are_selected_equally() -> None:
    a, k = torch.randn(2, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for select in (nf.Ball(0.4), nf.Ring(0.2, 0.8)):
        dense, streamed = (
            nf.InfoNCE()(select(scores(a, k, 0.2))) for scores in (nf.dense_scores, nf.streamed_scores)
        )
        torch.testing.assert_close(dense, streamed)


def test_neither_the_anchor_nor_an_empty_place_is_ranked() -> None:
    """K counts strangers: of 6 places, one is empty and one the anchor itself, so Ball(0.5) keeps 2 of 4."""
    candidates = Candidates(torch.zeros(6, 1), torch.tensor([7, EMPTY, 1, 2, 3, 4]))
    values = torch.tensor([[9.0, 8.0, 1.0, 4.0, 3.0, 2.0]])
    scores = nf.Scores.of(torch.zeros(1), values, candidates.negative_mask(torch.tensor([7])))
    _, mask = nf.Ball(0.5)(scores).negative.matrix()
    assert mask.tolist() == [[False, False, False, True, True, False]]


def test_a_schedule_moves_the_edges() -> None:
    ring = nf.Ring(lower=nf.linear(0.0, 0.8), upper=1.0)
    scores = nf.Scores.of(torch.zeros(1), torch.arange(10.0)[None])
    index = torch.zeros(1, dtype=torch.long)
    for step, mask in ((0, 10), (5, 6), (10, 2)):
        progress = Progress(step, 10)
        context = Context(
            torch.zeros(1, 1), Candidates(torch.zeros(10, 1), torch.arange(10)), index, progress
        )
        assert ring(scores, context).negative.count().tolist() == [mask]
        assert ring.sampling(NegativeSampling(1, 10), progress).negatives == mask


@given(k=st.integers(0, 300), shares=st.tuples(shares, shares))
@settings(max_examples=100, deadline=None)
def test_sampling_states_how_many_are_kept_and_the_cut(k: int, shares: tuple[float, float]) -> None:
    lower, upper = sorted(shares)
    ring = nf.Ring(lower, upper)
    _, mask = ring(nf.Scores.of(torch.zeros(1), torch.arange(float(k))[None])).negative.matrix()
    sampling = ring.sampling(NegativeSampling(8, k))
    assert sampling.negatives == int(mask.sum())
    cut_above = k > 0 and not bool(mask[0, -1])
    cut_below = k > 0 and not bool(mask[0, 0])
    assert sampling.cut == ("above" if cut_above else "below" if cut_below else "none")


def test_sampling_of_a_schedule_is_its_widest() -> None:
    sampling = nf.Ring(nf.linear(0.0, 0.5), nf.linear(1.0, 0.9)).sampling(NegativeSampling(8, 100))
    assert (sampling.negatives, sampling.cut) == (100, "above")
    ball = nf.Ball(nf.linear(0.9, 0.2)).sampling(NegativeSampling(8, 100))
    assert (ball.negatives, ball.cut) == (80, "below")


def test_everyone_keeps_the_sampling() -> None:
    sampling = NegativeSampling(3, 4, independent=True, coverage=Coverage(0.5, 8))
    assert nf.Everyone().sampling(sampling) == sampling


@given(problem=tied_scores(), shares=st.tuples(shares, shares), lift=st.sampled_from([0.0, 1e4, -1e4]))
@settings(max_examples=100, deadline=None)
def test_coverage_is_the_share_of_anchors_that_meet_the_theorem(
    problem: tuple[Tensor, Tensor], shares: tuple[float, float], lift: float
) -> None:
    """Wu et al. 2021, Thm 3.1: every kept e^f is at least c(u); a common offset of any size changes
    nothing."""
    (values, mask_values), (lower, upper) = problem, sorted(shares)
    holds = []
    for row, mask in zip(values.tolist(), mask_values.tolist(), strict=True):
        candidates = [math.exp(v) for v, stays in zip(row, mask, strict=True) if stays]
        if not candidates:  # shows nothing
            continue
        inside = by_sorting(row, mask, lower, upper)
        mean = sum(candidates) / len(candidates)
        holds.append(
            all(math.exp(v) >= mean * (1 - 1e-12) for v, stays in zip(row, inside, strict=True) if stays)
        )
    scores = nf.Scores.of(torch.zeros(len(values)), values + lift, mask_values)
    assert nf.Ring(lower, upper).coverage(scores).share == pytest.approx(sum(holds) / max(1, len(holds)))


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: nf.Ball(1.5), r"selection.lower was 1.5; it must lie in \[0, 1\]"),
    (lambda: nf.Ring(-0.1, 0.5), r"selection.lower was -0.1"),
    (lambda: nf.Ring(0.1, float("nan")), r"selection.upper was nan"),
    (lambda: nf.Ring(0.8, 0.2), r"selection.lower was 0.8; it must not exceed selection.upper, 0.2"),
    (lambda: nf.Ring(nf.linear(0.0, 0.9), 0.5), r"selection.lower was linear\(0.0,0.9\); it must not exceed"),
    (lambda: nf.Ball(nf.linear(0, 2)), r"selection.lower was linear\(0.0,2.0\)"),
    (lambda: nf.Ball("half"), r"selection.lower was 'half'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_bad_edges_get_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


def test_every_selection_is_known_by_name() -> None:
    stateless = {"everyone": nf.Everyone, "ball": nf.Ball, "ring": nf.Ring}
    remembering = {"cave": Cave, "neighbours": Neighbours, "group": Group, "accept": Accept}
    further = {"labelled": nf.Labelled, "hard": nf.Hard, "others": nf.Others}
    further["proposal"] = nf.Proposal
    assert {**stateless, **remembering, **further} == PARTS


def test_progress_moves_the_edges_without_a_method() -> None:
    scores = nf.Scores.of(torch.zeros(2), torch.randn(2, 40, generator=torch.Generator().manual_seed(0)))
    half = nf.Progress(5, 10, 1)
    for moving, fixed in (
        (nf.Ring(nf.linear(0, 0.8), 0.9), nf.Ring(0.4, 0.9)),
        (nf.Ball(nf.linear(0, 0.8)), nf.Ball(0.4)),
    ):
        result, expected = (part.negative.matrix()[1] for part in (moving(scores, half), fixed(scores)))
        assert torch.equal(result, expected)
