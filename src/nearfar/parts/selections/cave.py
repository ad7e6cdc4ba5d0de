"""Negatives from the anchor's own cluster."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.selections.close import merge_positives
from nearfar.parts.selections.clusters import Clusters
from nearfar.parts.selections.required import require_context


class Cave(nn.Module, AbstractSelection):
    """The candidates in the anchor's own one of `clusters` k-means clusters (Wu et al. 2021, App. F).

    An anchor alone there, and every anchor before the first refresh, keeps everyone: contrasted with nobody it
    would learn nothing. `close` adds +C_i: members of the cave that share one of so many smaller clusters with the
    anchor, in any of `runs` k-means runs, join its positive (see `close.merge_positives`) instead of its negatives.
    """

    equation = "those in u's own of {clusters} k-means clusters"
    remarks = (
        (
            "close",
            ...,
            "without C, who share one of {close} clusters in one of {runs} runs too; {pulled}",
        ),
    )
    remembers_instances = True
    refreshes = True
    drop_reason = "another cluster"  # who is

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
                f"selection.close was {close}; it must exceed selection.clusters, {clusters}, or every member of "
                "the cave would be close; leave it out for a plain cave"
            )
        self.cave = Clusters(clusters, 1, every, instances, after)
        self.close = None if close is None else Clusters(close, runs, every, instances, after)

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
        theirs = context.candidates.index

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            index = context.index[rows], theirs
            cave = offered & self.cave.together(*index)
            close = torch.zeros_like(cave) if self.close is None else cave & self.close.together(*index)
            negatives = cave & ~close
            alone = ~negatives.any(dim=1, keepdim=True)
            return Membership(negatives | (offered & ~close & alone), close)

        divided = scores.negative.divide(rule, close=self.close is not None, plain=True)
        if divided.close is None:
            return replace(scores, negative=divided.kept)
        positive = merge_positives(scores.positive, divided.close, context.as_mean)
        return replace(scores, positive=positive, negative=divided.kept)

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        why = (
            "negatives come from the anchor's own cluster, which Wu et al. 2021, Thm 3.1 covers only where every kept e^f is at "
            "least its mean over the anchor's candidates"
        )
        if self.close is not None:
            why = f"{why}, and close neighbours count as positives"
        joined = self.close is not None
        return replace(
            given,
            exchangeable=False,
            independent=False,
            reason=why,
            more_positives=joined or given.more_positives,
        )
