"""Clusters are a function of what was embedded, unknown instances belong nowhere, and refreshing is all that
changes them. Local Aggregation's numbers and its limits."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nearfar.core.method import Method
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import EMPTY, UNKNOWN, Candidates, Scores
from nearfar.core.types import Batch, Context, Encoded, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import InfoNCE, NPair, Triplet
from nearfar.parts.critics import Distance
from nearfar.parts.encoders import Shared
from nearfar.parts.negatives import InBatch
from nearfar.parts.selections import Cave, Neighbours, Ring
from nearfar.parts.selections.clusters import Clusters


def blobs(item: int = 20, groups: int = 4) -> Tensor:
    """Unit vectors around `groups` orthogonal directions; instance i belongs to group i % groups."""
    noise = torch.randn(item * groups, 8, generator=torch.Generator().manual_seed(0))
    return F.normalize(torch.eye(8)[torch.arange(item * groups) % groups] + 0.1 * noise, dim=1)


def scene(index: Tensor, candidates: Tensor, seed: int = 0) -> tuple[Scores, Context]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(index), len(candidates), generator=generator, dtype=torch.float64)
    stored = Candidates(torch.zeros(len(candidates), 1), candidates)
    positive = torch.randn(len(index), generator=generator, dtype=torch.float64)
    scores = Scores.of(positive, values, stored.negative_mask(index))
    return scores, Context(torch.zeros(len(index), 1), stored, index, START)


def mask_of(scores: Scores) -> Tensor:
    return scores.negative.matrix()[1]


def test_k_means_recovers_separated_groups() -> None:
    clusters = Clusters(4, 3, 1, 80)
    clusters.refresh(blobs())
    group = torch.arange(80) % 4
    all_rows = torch.arange(80)
    assert torch.equal(clusters.share_cluster(all_rows, all_rows), group[:, None] == group[None, :])


def test_length_does_not_matter_only_direction() -> None:
    baseline, scaled = Clusters(4, 1, 1, 80), Clusters(4, 1, 1, 80)
    baseline.refresh(blobs())
    scaled.refresh(blobs() * torch.arange(1, 81)[:, None])
    all_rows = torch.arange(80)
    assert torch.equal(baseline.share_cluster(all_rows, all_rows), scaled.share_cluster(all_rows, all_rows))


def test_the_same_embedding_gives_the_same_clusters_and_runs_differ() -> None:
    rows = torch.randn(120, 8, generator=torch.Generator().manual_seed(1))
    one, two = Clusters(10, 3, 1, 120), Clusters(10, 3, 1, 120)
    one.refresh(rows)
    two.refresh(rows + 1.0)  # whatever was known before leaves no trace
    two.refresh(rows)
    assert torch.equal(one.ids, two.ids)
    assert not torch.equal(one.ids[0], one.ids[1])
    assert set(one.ids.unique().tolist()) <= set(range(10))


def test_a_pair_is_together_if_any_clustering_joins_it() -> None:
    clusters = Clusters(3, 2, 1, 4)
    clusters.ids = torch.tensor([[0, 0, 1, -1], [2, 1, 2, -1]], dtype=torch.int32)
    all_rows = torch.arange(4)
    expected_values = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    assert clusters.share_cluster(all_rows, all_rows).int().tolist() == expected_values


def test_unknown_instances_share_no_cluster() -> None:
    rows = blobs()
    rows[3], rows[7, 2] = 0.0, torch.nan
    clusters = Clusters(4, 2, 1, 80)
    clusters.refresh(rows)
    strange = torch.tensor([3, 7, UNKNOWN, EMPTY, 80, 10**9])
    assert not clusters.share_cluster(strange, strange).any()
    assert not clusters.share_cluster(torch.arange(80), strange).any()
    assert clusters.has_cluster(torch.tensor([0, 3, UNKNOWN])).tolist() == [True, False, False]


@pytest.mark.parametrize("rows", [torch.zeros(5, 3), torch.eye(3), torch.zeros(0, 3)])
def test_fewer_instances_than_clusters_or_none_at_all(rows: Tensor) -> None:
    clusters = Clusters(10, 2, 1, len(rows))
    clusters.refresh(rows)
    all_rows = torch.arange(len(rows))
    single = torch.eye(len(rows), dtype=torch.bool) & (rows != 0).any(dim=1, keepdim=True)
    assert torch.equal(clusters.share_cluster(all_rows, all_rows), single)


@pytest.mark.parametrize("make", [lambda: Cave(4, instances=80), lambda: Neighbours(3, instances=80)])
def test_before_the_first_refresh_everyone_counts(make: Callable[[], Cave | Neighbours]) -> None:
    scores, context = scene(torch.arange(6), torch.tensor([UNKNOWN, EMPTY, *range(20)]))
    final = make()(scores, context)
    assert torch.equal(mask_of(final), mask_of(scores))
    assert torch.equal(final.positive, scores.positive)


def test_refreshing_is_due_at_the_start_of_every_nth_epoch_but_the_first() -> None:
    for part in (Cave(4, every=2), Neighbours(every=2)):
        assert part.refreshes
        due = [step for step in range(31) if part.due(Progress(step, 30, 5))]
        assert due == [10, 20, 30]
    for part in (Cave(4, after=2.5), Neighbours(after=2.5)):
        assert [step for step in range(31) if part.due(Progress(step, 30, 5))] == [15, 20, 25, 30]
    with pytest.raises(UserError, match=r"after was 0; it must be above 0"):
        Neighbours(after=0.0)
    assert not Ring().refreshes


def test_a_cave_holds_the_anchors_cluster_and_a_lone_anchor_everyone() -> None:
    cave = Cave(4, instances=80)
    cave.refresh(blobs())
    index, candidates = torch.tensor([0, 1, 2]), torch.tensor([0, 4, 8, 1, 5, 3, UNKNOWN, EMPTY])
    final = cave(*scene(index, candidates))
    assert mask_of(final).int().tolist() == [
        [0, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 0],  # no other member of group 2
    ]


def test_local_aggregation_is_the_log_of_two_sums() -> None:
    """Wu et al. 2020, sec. 5.3: log p(C_i and B_i) / p(B_i), plus the log m of InfoNCE."""
    part = Neighbours(background=12, lower=0.0, clusters=4, instances=80)
    part.refresh(blobs())
    index, candidates = torch.arange(8), torch.arange(40)
    scores, context = scene(index, candidates)
    values = scores.negative.matrix()[0]
    expected_values = []
    for i in range(8):
        foreign = [j for j in range(40) if j != i]
        background = sorted(foreign, key=lambda j: float(values[i, j]))[-12:]
        own_ids = scores.positive[i, 0].exp()
        close = own_ids + sum(values[i, j].exp() for j in background if j % 4 == i % 4)
        expected_values.append(torch.log(close / (own_ids + values[i, background].exp().sum())))
    final = part(scores, context)
    torch.testing.assert_close(NPair()(final), torch.stack(expected_values).mean())
    offset = final.negative.count().log1p().mean()
    torch.testing.assert_close(InfoNCE()(final), torch.stack(expected_values).mean() + offset)


def test_an_annulus_is_the_background_without_the_close() -> None:
    r"""Wu et al. 2020, Def. 5.3: log p(i) / p(B_i \ C_i), the positive beside those that are left."""
    part = Neighbours(background=12, lower=0.0, clusters=4, keep="annulus", instances=80)
    part.refresh(blobs())
    scores, context = scene(torch.arange(8), torch.arange(40))
    values, expected = scores.negative.matrix()[0], []
    for i in range(8):
        background = sorted((j for j in range(40) if j != i), key=lambda j: float(values[i, j]))[-12:]
        rest = sum(values[i, j].exp() for j in background if j % 4 != i % 4)
        positive = scores.positive[i, 0].exp()
        expected.append(torch.log(positive / (positive + rest)))
    torch.testing.assert_close(NPair()(part(scores, context)), torch.stack(expected).mean())


def test_local_aggregation_without_close_instances_is_a_ball() -> None:
    """Wu et al. 2020, Thm 5.4: C_i = {i} makes LA the ball objective."""
    part = Neighbours(lower=0.5, clusters=40, runs=1, instances=40)
    part.close.ids = torch.arange(40, dtype=torch.int32)[None]
    scores, context = scene(torch.arange(8), torch.arange(40))
    ball = Ring(0.5, 1.0)(scores)
    final = part(scores, context)
    assert torch.equal(mask_of(final), mask_of(ball))
    torch.testing.assert_close(NPair()(final), NPair()(ball))


def test_ring_with_close_set_differs_from_local_aggregation_by_its_inner_edge_alone() -> None:
    """Wu et al. 2021, App. F: close instances are pulled anywhere; only negatives that are too close are
    dropped."""
    la, ring = (Neighbours(lower=0.4, upper=u, clusters=4, instances=80) for u in (1.0, 0.8))
    for part in (la, ring):
        part.refresh(blobs())
    scores, context = scene(torch.arange(8), torch.arange(40))
    aggregated, ringed = la(scores, context), ring(scores, context)
    assert torch.equal(aggregated.positive, ringed.positive)
    assert torch.equal(mask_of(ringed), mask_of(aggregated) & mask_of(Ring(0.4, 0.8)(scores)))
    assert (mask_of(ringed).sum() < mask_of(aggregated).sum()).all()


@pytest.mark.parametrize("part", [Cave(4), Cave(4, close=8), Neighbours(), Neighbours(keep="annulus")])
def test_clusters_remove_the_proof_and_keep_the_ceiling(part: Cave | Neighbours) -> None:
    message = part.sampling(NegativeSampling(8, 100, independent=True))
    assert message.negatives == 100
    certificate = InfoNCE().certificate(message)
    assert certificate.status == "not covered"
    assert certificate.ceiling == pytest.approx(4.6151, abs=1e-4)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Cave(1), "selection.clusters was 1"),
    (lambda: Cave(10, every=0), "selection.every was 0"),
    (lambda: Cave(10, close=10), "selection.close was 10; it must exceed selection.clusters, 10"),
    (lambda: Neighbours(0), "selection.background was 0"),
    (lambda: Neighbours(runs=0), "selection.runs was 0"),
    (lambda: Neighbours(lower=0.9, upper=0.5), "selection.lower was 0.9; it must not exceed"),
    (lambda: Neighbours(keep="all"), "selection.keep was 'all'; expected la or annulus"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_bad_settings_of_clusters_get_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


@pytest.mark.parametrize("part", ["neighbours", "cave"])
def test_under_a_margin_the_close_ones_are_a_mean_of_distances(part: str) -> None:
    """A triplet's positive is -|u - v|^2: nine neighbours at one distance gain nothing, unlike a sum of
    e^f."""
    built = Neighbours(lower=0.0, clusters=4) if part == "neighbours" else Cave(2, close=4)
    built.refresh(blobs())
    index, candidates = torch.arange(8), torch.arange(80)
    scores, context = scene(index, candidates)
    summed, mean = built(scores, context), built(scores, replace(context, as_mean=True))
    values, foreign = scores.negative.matrix()
    group = index[:, None] % 4 == candidates[None, :] % 4
    for row in range(8):
        own_ids = [scores.positive[row, 0], *values[row][group[row] & foreign[row]]]
        assert mean.positive[row, 0] == pytest.approx(float(torch.stack(own_ids).mean()))
        assert summed.positive[row, 0] == pytest.approx(float(torch.stack(own_ids).logsumexp(0)))
    assert torch.equal(mask_of(summed), mask_of(mean))


def test_only_bounds_with_a_margin_take_the_mean() -> None:
    embedding = blobs()
    selection = Neighbours(lower=0.0, clusters=4)
    selection.refresh(embedding)
    for bound, expected in ((Triplet(1.0), 0.0), (InfoNCE(), math.log(1 + 19))):
        method = Method(Shared(torch.nn.Identity()), Distance(unit=False), InBatch("one"), selection, bound)
        same = torch.zeros(80, 8)  # all at the same place: the mean distance is 0, the sum counts members
        pair = Batch((same, same), torch.arange(80))
        encoded = Encoded({0: same}, {1: same})
        result = method.selection(*method.score(encoded, pair.index, 0, 1, START))
        torch.testing.assert_close(result.positive, torch.full((80, 1), expected))


def test_clusters_load_without_a_number_of_instances() -> None:
    one = Cave(4, close=8)
    one.refresh(blobs())
    two = Cave(4, close=8)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.cave.ids, two.cave.ids)
    assert one.close is not None
    assert two.close is not None
    assert torch.equal(one.close.ids, two.close.ids)
    with pytest.raises(RuntimeError, match="size mismatch"):
        Cave(4, instances=7).load_state_dict(Cave(4, instances=80).state_dict())
