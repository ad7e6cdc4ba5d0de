"""Positives by label (supervised contrast, Khosla et al. 2020)."""

from dataclasses import replace

from torch import Tensor

from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.parts.selections.assigned import UNKNOWN_GROUP, Assigned
from nearfar.parts.selections.required import require_context


class Labelled(Assigned):
    """Candidates with the anchor's label are further positives of it, the others its negatives.

    `by` names the label: the class, or any column of the data. An instance whose label is not known has its own views as
    positives alone and everybody else as negatives, so that a few labels among many instances do.
    """

    equation = "those of another {by} than u; the others are positives"

    def __init__(self, by: str = "label", *, instances: int = 0) -> None:
        super().__init__(by, instances)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        anchors = self.of(context.index, context)[:, None]
        theirs = self.of(context.candidates.index, context)[None, :]

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            mine = anchors[rows]
            alike = offered & (mine == theirs) & (mine != UNKNOWN_GROUP)
            return Membership(offered & ~alike, alike)

        divided = scores.negative.divide(rule, close=True, plain=True)
        return replace(scores, negative=divided.kept, also=divided.close)

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        why = f"candidates with the anchor's {self.by} are positives, so negatives are not draws of p(v)"
        fewest = min(1, given.negatives)
        unlike = replace(given, exchangeable=False, independent=False, reason=why)
        return replace(unlike, min_negatives=fewest, more_positives=True)
