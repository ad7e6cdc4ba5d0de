"""Local Aggregation: contrasted with the nearest, pulled towards those of them in the same clusters."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling, Remark, Sizes
from nearfar.errors import UserError
from nearfar.parts.selections.clusters import Clusters, merge_positives
from nearfar.parts.selections.draws import require_context, sample_candidates, step_seed
from nearfar.parts.selections.ranks import beyond_edges, round_share
from nearfar.parts.selections.ring import SAMPLE_REMARK, Ring, reduce_sampling


class Neighbours(nn.Module, AbstractSelection):
    """Background set B_i and close set C_i of each anchor (Wu et al. 2021, App. F, Wu et al. 2020, sec. 5.3).

    B_i: the candidates at the places of `Ring(lower, upper)`, of these the `background` most similar (a
    number of them, or below 1 a share of the anchor's candidates; None: all), ranked for the anchor as it is
    seen now (Wu et al. 2021), not for its remembered row (Wu et al. 2020). `sample` draws that many of the
    remaining negatives, as in `Ring`. C_i: the candidates that share a cluster with the anchor in any of
    `runs` k-means runs of `clusters` clusters, renewed every `every` epochs once `after` are over.

        keep="la"        close ones join the positive, the rest of B_i are negatives. With `Tuple` or `NPair`
                         the value is log( sum over C_i and B_i of e^f / sum over B_i of e^f ), the anchor's
                         own key in both sums
        keep="annulus"   close ones are left out of B_i (Wu et al. 2020, Def. 5.3)

    Local Aggregation has upper = 1. With upper < 1 it is Ring (+C_i): what is closer than the inner edge is
    no negative, but if it is in C_i it is pulled like the rest of C_i. Anchors without a cluster keep all
    candidates.
    """

    equation = (
        f"{Ring.equation}, of these the nearest ({{background}}), without C, who share a cluster with u in "
        f"one of {{runs}} "
        "k-means runs after epoch {after}"
    )
    remarks: tuple[Remark, ...] = (SAMPLE_REMARK, ("keep", "la", "{pulled}"))
    remembers_instances = True
    refreshes = True
    ranks_by_score = True
    drop_reason = "the anchor's own clusters"

    def __init__(
        self,
        background: float | None = None,
        lower: Value = 0.9,
        upper: Value = 1.0,
        clusters: int = 100,
        runs: int = 3,
        every: int = 1,
        keep: Literal["la", "annulus"] = "la",
        after: float = 1.0,
        sample: int | None = None,
        *,
        instances: int = 0,
    ) -> None:
        super().__init__()
        if background is not None and not (0 < background < 1 or background == background // 1 >= 1):
            raise UserError(
                f"selection.background was {background:g}; it must be a whole number from 1, a share "
                "between 0 and 1 of the candidates, or left out for no limit"
            )
        if keep not in ("la", "annulus"):
            raise UserError(f"selection.keep was {keep!r}; expected la or annulus")
        self.background, self.ring, self.keep = background, Ring(lower, upper, sample), keep
        self.close = Clusters(clusters, runs, every, instances, after)

    def meet(self, sizes: Sizes) -> None:
        self.close.resize(sizes.instances)

    def cluster_ids(self) -> Tensor:
        return self.close.ids

    def due(self, progress: Progress) -> bool:
        return self.close.due(progress)

    def refresh(self, embedding: Tensor) -> None:
        self.close.refresh(embedding)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        lower, upper = (at(edge, context.progress) for edge in (self.ring.lower, self.ring.upper))
        sample = self.ring.sample
        seed = step_seed() if sample is not None else 0

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            index = context.index[rows]
            with torch.no_grad():
                reach, too_close = beyond_edges(values, offered, lower, upper, self._nearest(offered))
                close = reach & self.close.share_cluster(index, context.candidates.index)
                unknown = ~self.close.has_cluster(index)[:, None]
                keep = (reach & ~too_close & ~close) | (offered & unknown)
                return Membership(
                    keep if sample is None else sample_candidates(keep, sample, seed, rows + context.first),
                    close,
                )

        divided = scores.negative.divide(rule, close=self.keep == "la", unweighted=True)
        if divided.close is None:
            return replace(scores, negative=divided.negatives)
        positive = merge_positives(scores.positive, divided.close, context.as_mean)
        return replace(scores, positive=positive, negative=divided.negatives)

    def _nearest(self, offered: Bool[Tensor, "anchor candidate"]) -> Int[Tensor, "anchor"] | int | None:
        """How large B_i may be: for a share, of each anchor's own candidates."""
        if self.background is None or self.background >= 1:
            return None if self.background is None else int(self.background)
        return round_share(self.background, offered.sum(dim=1), offered.shape[1]).clamp_min(1)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        if self.keep == "la":
            reason = (
                "close neighbours count as positives, for which no bound is proven (Wu et al. 2020, Cor. "
                "5.4.1 approximates)"
            )
        else:
            reason = "negatives in the anchor's own clusters were dropped, the most similar ones among them"
        # before the first refresh everyone is kept, so that many can count
        joined = self.keep == "la" or source.more_positives
        source = replace(
            source, exchangeable=False, independent=False, reason=reason, cut="above", more_positives=joined
        )
        return reduce_sampling(source, self.ring.sample)
