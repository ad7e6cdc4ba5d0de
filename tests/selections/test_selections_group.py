"""Negatives of the anchor's own group, against a loop over every pair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.schedules import START
from nearfar.core.scores import EMPTY, UNKNOWN, Candidates, Dense, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.selections import Group

INSTANCES = 7


@settings(max_examples=80, deadline=None)
@given(
    groups=st.lists(st.integers(-1, 2), min_size=INSTANCES, max_size=INSTANCES),
    anchors=st.lists(st.integers(0, 3 * INSTANCES - 1), min_size=1, max_size=6),
    candidates=st.lists(st.integers(0, 3 * INSTANCES - 1) | st.sampled_from([UNKNOWN, EMPTY]), max_size=12),
    seed=st.integers(0, 1000),
)
def test_a_candidate_counts_if_it_is_another_row_of_the_same_known_group(
    groups: list[int], anchors: list[int], candidates: list[int], seed: int
) -> None:
    selection = Group("speaker", instances=INSTANCES)
    selection.assign(torch.tensor(groups))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(anchors), len(candidates), generator=generator, dtype=torch.float64)
    index = torch.tensor(anchors)
    stored = Candidates(torch.zeros(len(candidates), 2), torch.tensor(candidates, dtype=torch.long))
    scores = Scores(torch.zeros(len(anchors), 1), Dense(values, stored.negative_mask(index)))
    mask = selection(scores, Context(torch.zeros(len(anchors), 2), stored, index, START)).negative.matrix()[1]
    for row, anchor in enumerate(anchors):
        foreign = [c not in (anchor, EMPTY) for c in candidates]
        mine = groups[anchor % INSTANCES]
        same_group = [
            stranger and c >= 0 and mine >= 0 and groups[c % INSTANCES] == mine
            for c, stranger in zip(candidates, foreign, strict=True)
        ]
        assert mask[row].tolist() == (same_group if any(same_group) else foreign)


def test_groups_are_state_and_nothing_else_is() -> None:
    selection = Group("speaker", instances=3)
    selection.assign(torch.tensor([5, -7, 0]))
    second = Group("speaker", instances=3)
    second.load_state_dict(selection.state_dict())
    assert second.ids.tolist() == [5, -1, 0]
    assert list(selection.state_dict()) == ["ids"]
    with pytest.raises(ValueError, match="2 groups for 3 instances"):
        selection.assign(torch.tensor([1, 2]))


def test_instances_of_no_known_group_keep_everyone() -> None:
    scores = Scores.of(torch.zeros(2), torch.ones(2, 3))
    stored = Candidates(torch.zeros(3, 1), torch.arange(3))
    context = Context(torch.zeros(2, 1), stored, torch.tensor([8, 9]), START)
    selection = Group()
    selection.assign(torch.full((10,), -1))
    assert selection(scores, context).negative.matrix()[1].all()


def test_certificate_of_a_group() -> None:
    first = Group("speaker").sampling(NegativeSampling(8, 7))
    assert not first.exchangeable
    assert "share the anchor's speaker" in first.reason
    with pytest.raises(UserError, match=r"selection.by was empty"):
        Group("")
