"""Negatives of another label than the anchor's (contrastive representation distillation, Tian et al. 2020b)."""

from dataclasses import replace

from torch import Tensor

from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.parts.selections.assigned import UNKNOWN_GROUP, Assigned
from nearfar.parts.selections.draws import checked_sample, drawn, step_seed
from nearfar.parts.selections.required import require_context
from nearfar.parts.selections.ring import DRAWN, sampled


class Others(Assigned):
    """The candidates that do not share the anchor's label; those whose label is not known all count.

    `by` names the label: the class (`known-label`: the class where there is one), or any column of the data. `sample` draws that many of
    them for each anchor.
    """

    drop_reason = "the same label"  # who is
    equation = "those of another label than u, by {by}"
    remarks = (DRAWN,)

    def __init__(self, by: str = "known-label", sample: int | None = None, *, instances: int = 0) -> None:
        super().__init__(by, instances)
        self.sample = checked_sample(sample)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        anchors = self.of(context.index, context)[:, None]
        theirs = self.of(context.candidates.index, context)[None, :]
        seed = 0 if self.sample is None else step_seed()

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            mine = anchors[rows]
            kept = offered & ((mine != theirs) | (mine == UNKNOWN_GROUP))
            if self.sample is not None:
                kept = drawn(kept, self.sample, seed, rows + context.first)
            return Membership(kept)

        return replace(scores, negative=scores.negative.divide(rule, plain=True).kept)

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        why = f"candidates of the anchor's own {self.by} are left out, so negatives are not draws of p(v)"
        others = replace(given.not_exchangeable(why), min_negatives=min(1, given.negatives))
        return sampled(others, self.sample)
