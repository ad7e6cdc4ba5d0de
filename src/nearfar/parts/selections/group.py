"""Negatives from the anchor's own group: the same speaker, the same place, the same day."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.parts.selections.assigned import UNKNOWN_GROUP, Assigned
from nearfar.parts.selections.required import require_context


class Group(Assigned):
    """The candidates that share the anchor's known group, told by the data's column `by` (also `label`, and `self`
    for the recording itself: other times of it).

    What separates groups then no longer helps to tell the positive, so it need not be learned. An anchor without
    others in its group keeps everyone: contrasted with nobody it would learn nothing.
    """

    drop_reason = "another group"  # who is
    equation = "those of u's own {by}"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if symbols := Assigned.conflict(choices, parts):
            return symbols
        if choices["selection"]["by"] == "self" and choices["encoders"].get("others") != "times":
            return (
                "selection.by was self, but nothing is contrasted with its own recording here, so no candidate would be left; "
                "use it with encoders=predictive encoders.others=times"
            )
        return None

    def __init__(self, by: str = "speaker", *, instances: int = 0) -> None:
        super().__init__(by, instances)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        anchors = self.of(context.index, context)[:, None]
        theirs = self.of(context.candidates.index, context)[None, :]

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            mine = anchors[rows]
            company = offered & (mine == theirs) & (mine != UNKNOWN_GROUP)
            alone = ~company.any(dim=1, keepdim=True)
            return Membership(company | (offered & alone))

        return replace(scores, negative=scores.negative.divide(rule, plain=True).kept)

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        why = f"negatives share the anchor's {self.by}, so the value speaks of the information beyond it, not of all"
        return replace(given, exchangeable=False, independent=False, reason=why)
