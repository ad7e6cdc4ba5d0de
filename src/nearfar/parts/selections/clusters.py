"""Selections by clusters of all instances: negatives from the anchor's own cluster (Cave)."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Negatives, Scores
from nearfar.core.types import Context, NegativeSampling, Sizes
from nearfar.errors import UserError, check_number, check_whole
from nearfar.parts.selections.draws import require_context
from nearfar.system.extras import need

UNKNOWN_CLUSTER = -1
ROUNDS = 20  # of k-means


class Clusters(nn.Module):
    """For each of several k-means runs, the cluster of every instance; checkpoints hold it.

    Before the first refresh no instance has a cluster, and an instance without a cluster shares one with
    none. Clusters are renewed at the start of every `every`-th epoch once `after` epochs are over: an
    untrained network's clusters mean nothing.
    """

    ids: Int[Tensor, "run instance"]

    def __init__(self, clusters: int, runs: int, every: int, instances: int, after: float = 1.0) -> None:
        super().__init__()
        check_number("selection.after", after, 0, exclude_low=True)
        for key, value, minimum in (("clusters", clusters, 2), ("runs", runs, 1), ("every", every, 1)):
            check_whole(f"selection.{key}", value, minimum)
        self.clusters, self.every, self.after = clusters, every, after
        self.register_buffer("ids", torch.full((runs, instances), UNKNOWN_CLUSTER, dtype=torch.int32))

    def resize(self, instances: int) -> None:
        """Forgets everything and sets the number of instances."""
        self.ids = self.ids.new_full((len(self.ids), instances), UNKNOWN_CLUSTER)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Made without a number of instances, it takes that of what it is given."""
        stored = state.get(f"{prefix}ids")
        if stored is not None and self.ids.shape[1] == 0 and len(stored) == len(self.ids):
            self.ids = self.ids.new_empty(stored.shape)
        super()._load_from_state_dict(state, prefix, *rest)

    def due(self, progress: Progress) -> bool:
        return progress.epoch >= self.after and progress.step % (self.every * progress.steps_per_epoch) == 0

    @torch.no_grad()
    def refresh(self, embedding: Float[Tensor, "instance dim"]) -> None:
        """Clusters all instances. A row of zeros, or one that is not finite, gets no cluster."""
        rows = embedding.detach().float().cpu()
        usable = rows.isfinite().all(dim=1) & (rows != 0).any(dim=1)
        ids = torch.full((len(self.ids), len(rows)), UNKNOWN_CLUSTER, dtype=torch.int32)
        directions = F.normalize(rows[usable], dim=1).numpy()
        for run in range(len(ids) if usable.any() else 0):
            ids[run, usable] = torch.from_numpy(spherical_kmeans(directions, self.clusters, seed=run + 1))
        self.ids = ids.to(self.ids.device)

    def cluster_ids_of(self, index: Int[Tensor, "item"]) -> Int[Tensor, "run item"]:
        """Clusters of these instances; -1: no cluster, or the instance is not known."""
        valid = (index >= 0) & (index < self.ids.shape[1])
        if self.ids.shape[1] == 0:
            return self.ids.new_full((len(self.ids), len(index)), UNKNOWN_CLUSTER)
        return torch.where(valid, self.ids[:, torch.where(valid, index, 0)], UNKNOWN_CLUSTER)

    def share_cluster(
        self, anchor: Int[Tensor, "anchor"], candidate: Int[Tensor, "candidate"]
    ) -> Bool[Tensor, "anchor candidate"]:
        """Who shares a cluster in at least one run: for C_i the union over the runs."""
        shared = torch.zeros(len(anchor), len(candidate), dtype=torch.bool, device=anchor.device)
        for anchor_clusters, candidate_clusters in zip(
            self.cluster_ids_of(anchor), self.cluster_ids_of(candidate), strict=True
        ):
            shared |= (anchor_clusters[:, None] == candidate_clusters[None, :]) & (
                anchor_clusters != UNKNOWN_CLUSTER
            )[:, None]
        return shared

    def has_cluster(self, index: Int[Tensor, "item"]) -> Bool[Tensor, "item"]:
        return (self.cluster_ids_of(index) != UNKNOWN_CLUSTER).any(dim=0)


def spherical_kmeans(
    directions: Float[np.ndarray, "item dim"], clusters: int, seed: int
) -> Int[np.ndarray, "item"]:
    """The cluster of each unit vector, centres being unit vectors too; deterministic."""
    faiss = need("faiss")  # here, so that losses and bounds work without it

    kmeans = faiss.Kmeans(
        directions.shape[1],
        min(clusters, len(directions)),
        niter=ROUNDS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,  # faiss would warn, not refuse
    )
    kmeans.train(directions)
    return kmeans.index.search(directions, 1)[1][:, 0].astype(np.int32)


def merge_positives(
    positive: Float[Tensor, "anchor positive"], close: Negatives, as_mean: bool = False
) -> Float[Tensor, "anchor positive"]:
    """The positive as the event "one of C_i": log( e^f(u, v+) + sum of e^f over the close candidates ).

    Why a sum, and why here. Local Aggregation's p(C_i) is the chance that a softmax picks any member of C_i,
    and chances of disjoint outcomes add (Wu et al. 2020, sec. 5.3); a mean of log-softmaxes, which bounds
    take over several positives, would require each member in turn. Which things count as one is a question of
    membership, so a selection answers it, and what leaves it is one score per positive: log( sum over C_i /
    sum over B_i ) is what any bound with a softmax computes from it.

    `as_mean`, for bounds that read scores as distances: the mean of f over v+ and C_i. A sum of e^f grows
    with the number of neighbours, and a margin would be had for nothing.
    """
    if as_mean:
        total = positive + close.sum_of(lambda score: score)[:, None]
        return total / (1 + close.count()[:, None])
    return torch.logaddexp(positive, close.logsumexp()[:, None])


class Cave(nn.Module, AbstractSelection):
    """The candidates in the anchor's own one of `clusters` k-means clusters (Wu et al. 2021, App. F).

    An anchor alone in its cluster, and every anchor before the first refresh, keeps all candidates, because
    without negatives it would learn nothing. `close` adds +C_i: members of the cave that share one of `close`
    smaller clusters with the anchor, in any of `runs` k-means runs, join its positive (see
    `merge_positives`) instead of its negatives.
    """

    equation = "those in u's own of {clusters} k-means clusters"
    remarks = (
        ("close", ..., "without C, who share one of {close} clusters in one of {runs} runs too; {pulled}"),
    )
    remembers_instances = True
    refreshes = True
    drop_reason = "another cluster"

    def __init__(
        self,
        clusters: int = 100,
        every: int = 1,
        close: int | None = None,
        runs: int = 3,
        after: float = 1.0,
        *,
        instances: int = 0,
    ) -> None:
        super().__init__()
        if close is not None and close <= clusters:
            raise UserError(
                f"selection.close was {close}; it must exceed selection.clusters, {clusters}, or every "
                "member of the cave would be close; leave it out for a plain cave"
            )
        self.cave = Clusters(clusters, 1, every, instances, after)
        self.close = None if close is None else Clusters(close, runs, every, instances, after)

    def meet(self, sizes: Sizes) -> None:
        for clusters in filter(None, (self.cave, self.close)):
            clusters.resize(sizes.instances)

    def cluster_ids(self) -> Tensor:
        return self.cave.ids

    def due(self, progress: Progress) -> bool:
        return self.cave.due(progress)

    def refresh(self, embedding: Tensor) -> None:
        self.cave.refresh(embedding)
        if self.close is not None:
            self.close.refresh(embedding)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        candidate_rows = context.candidates.index

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            index = context.index[rows], candidate_rows
            cave = offered & self.cave.share_cluster(*index)
            close = torch.zeros_like(cave) if self.close is None else cave & self.close.share_cluster(*index)
            negatives = cave & ~close
            empty = ~negatives.any(dim=1, keepdim=True)
            return Membership(negatives | (offered & ~close & empty), close)

        divided = scores.negative.divide(rule, close=self.close is not None, unweighted=True)
        if divided.close is None:
            return replace(scores, negative=divided.negatives)
        positive = merge_positives(scores.positive, divided.close, context.as_mean)
        return replace(scores, positive=positive, negative=divided.negatives)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        reason = (
            "negatives come from the anchor's own cluster; Wu et al. 2021, Thm 3.1 covers this only where "
            "every kept e^f is at least its mean over the anchor's candidates"
        )
        if self.close is not None:
            reason = f"close neighbours count as positives; {reason}"
        joined = self.close is not None
        return replace(
            source,
            exchangeable=False,
            independent=False,
            reason=reason,
            more_positives=joined or source.more_positives,
        )
