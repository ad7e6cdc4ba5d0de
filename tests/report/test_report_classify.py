"""Who is kept, dropped and pulled: against a full sort and the definitions, written separately."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.schedules import START
from nearfar.core.scores import Candidates, Scores
from nearfar.core.types import Context
from nearfar.parts.selections import Ball, Cave, Everyone, Neighbours, Ring
from nearfar.report.selection import ABSENT, CLOSE, DROPPED, EASY, NEGATIVE, PULLED, classify_candidates


def scores_and_context(values: np.ndarray, offered: np.ndarray, index: np.ndarray) -> tuple[Scores, Context]:
    """Scores of anchors 0, 1, ... with candidates of these instances."""
    anchors = torch.arange(len(values))
    tensors = torch.from_numpy(values), torch.from_numpy(offered)
    candidates = Candidates(torch.zeros(values.shape[1], 2), torch.from_numpy(index))
    scores = Scores.of(torch.zeros(len(values), dtype=torch.float64), *tensors)
    return scores, Context(torch.zeros(len(values), 2), candidates, anchors, START)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, and who is offered."""
    anchors, candidates = draw(st.integers(1, 4)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.integers(0, draw(st.sampled_from([2, 8, 1000])), (anchors, candidates)).astype(np.float64)
    offered = rng.random((anchors, candidates)) < draw(st.sampled_from([0.5, 1.0]))
    return values, offered


def by_full_sort(values: np.ndarray, offered: np.ndarray, lower: float, upper: float) -> np.ndarray:
    """In rising order, ties by position: places round(lower K) to round(upper K) - 1, at least one."""
    group = np.full(values.shape, ABSENT)
    for row in range(len(values)):
        ranked = sorted(np.flatnonzero(offered[row]), key=lambda place: (values[row, place], place))
        count = len(ranked)
        first = min(round(lower * count), count - 1)
        last = max(round(upper * count), first + 1)
        for place, candidate in enumerate(ranked):
            group[row, candidate] = EASY if place < first else NEGATIVE if place < last else CLOSE
    return group


@given(tables(), st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted))
@settings(deadline=None, max_examples=80)
def test_a_ring_and_a_ball_group_as_a_full_sort_does(
    table: tuple[np.ndarray, np.ndarray], edges: list[float]
) -> None:
    values, offered = table
    scores, context = scores_and_context(values, offered, np.arange(values.shape[1]) + 100)
    for selection, upper in ((Ring(edges[0], edges[1]), edges[1]), (Ball(edges[0]), 1.0)):
        classes = classify_candidates(selection, scores, context, by_rank=True)
        np.testing.assert_array_equal(classes.group, by_full_sort(values, offered, edges[0], upper))
        np.testing.assert_array_equal(classes.score, values)


def test_everyone_keeps_all_that_are_offered() -> None:
    offered = np.array([[True, False, True]])
    classes = classify_candidates(
        Everyone(), *scores_and_context(np.zeros((1, 3)), offered, np.array([7, 0, 8])), by_rank=False
    )
    assert classes.group.tolist() == [[NEGATIVE, ABSENT, NEGATIVE]]


@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_a_cave_keeps_its_cluster_and_pulls_the_close_of_it(spread: float) -> None:
    """Wu et al. 2021, App. F: negatives from the anchor's cluster; +C_i is pulled, however low its scores."""
    rng = np.random.default_rng(0)
    index = np.arange(40)
    cave = Cave(clusters=4, close=12, runs=2, instances=40)
    assert cave.close is not None
    cave.cave.ids = torch.from_numpy(rng.integers(0, 4, (1, 40)).astype(np.int32))
    cave.close.ids = torch.from_numpy(rng.integers(0, 12, (2, 40)).astype(np.int32))
    offered = index[None, :] != np.arange(6)[:, None]
    values = spread * rng.standard_normal((6, 40))
    classes = classify_candidates(cave, *scores_and_context(values, offered, index), by_rank=False)
    for anchor in range(6):
        for candidate in range(40):
            mine, theirs = cave.close.ids[:, anchor], cave.close.ids[:, candidate]
            if candidate == anchor:
                expected = ABSENT
            elif cave.cave.ids[0, anchor] != cave.cave.ids[0, candidate]:
                expected = DROPPED
            else:
                expected = PULLED if bool((mine == theirs).any()) else NEGATIVE
            assert classes.group[anchor, candidate] == expected


@pytest.mark.parametrize("keep", ["la", "annulus"])
def test_neighbours_group_by_place_and_by_cluster(keep: str) -> None:
    rng = np.random.default_rng(1)
    index = np.arange(50)
    ids = rng.integers(0, 5, (2, 50)).astype(np.int32)
    neighbours = Neighbours(lower=0.4, upper=0.9, clusters=5, runs=2, keep=keep, instances=50)  # type: ignore[arg-type]
    neighbours.close.ids = torch.from_numpy(ids)
    offered = index[None, :] != np.arange(6)[:, None]
    values = rng.standard_normal((6, 50))
    groups = classify_candidates(neighbours, *scores_and_context(values, offered, index), by_rank=True).group
    places = by_full_sort(values, offered, 0.4, 0.9)
    for anchor in range(6):
        same_cluster = (ids[:, anchor][:, None] == ids).any(axis=0)
        for candidate in range(50):
            place = places[anchor, candidate]
            close = bool(same_cluster[candidate]) and place in (NEGATIVE, CLOSE)
            if close and keep == "la":
                assert groups[anchor, candidate] == PULLED
            elif close and place == NEGATIVE:
                assert groups[anchor, candidate] in (DROPPED, EASY, CLOSE), "dropped, on whichever side"
            else:
                assert groups[anchor, candidate] == place


def test_classification_without_candidates() -> None:
    classes = classify_candidates(
        Ring(),
        *scores_and_context(np.zeros((2, 0)), np.zeros((2, 0), dtype=bool), np.zeros(0, int)),
        by_rank=True,
    )
    assert classes.group.shape == (2, 0)


def test_an_anchor_that_pulls_all_its_near_ones_still_has_easy_ones() -> None:
    neighbours = Neighbours(lower=0.5, clusters=2, runs=1, instances=5)
    neighbours.close.ids = torch.zeros(1, 5, dtype=torch.int32)
    scores, context = scores_and_context(
        np.arange(4.0)[None, :], np.ones((1, 4), dtype=bool), np.arange(1, 5)
    )
    classes = classify_candidates(neighbours, scores, context, by_rank=True)
    assert classes.group.tolist() == [[EASY, EASY, PULLED, PULLED]]
