"""Selections by a label or group: the same group, another label, labels as further positives."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Divided, Membership, Scores
from nearfar.core.types import Context, NegativeSampling, Sizes
from nearfar.errors import UserError
from nearfar.parts.selections.draws import checked_number, require_context, sample_candidates, step_seed
from nearfar.parts.selections.ring import SAMPLE_REMARK, reduce_sampling

UNKNOWN_GROUP = -1
GroupRule = Callable[[Tensor, Tensor, Tensor], Membership]


class AbstractGroupSelection(nn.Module, AbstractSelection):
    """The numbers, assigned once before the first step (`assign`), or read from each batch; below 0 is not
    known. Without `instances` there are as many as are assigned.

    Rows that are times of a recording have the identity instance + instances * time (see
    `encoders.sequence`), so the number is that of identity modulo instances.
    """

    ids: Int[Tensor, "instance"]

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if not parts["encoders"].keys_are_symbols:
            return None
        selection, role = choices["selection"]["name"], choices["encoders"]["name"]
        return (
            f"selection was {selection} with encoders={role}, whose negatives are symbols: they have no "
            "group and no label"
        )

    def __init__(self, by: str, instances: int) -> None:
        super().__init__()
        if not by:
            raise UserError("selection.by was empty; name a column of the data, label or self")
        self.by, self.group_by, self.assigned = by, by, False
        self.register_buffer("ids", torch.full((instances,), UNKNOWN_GROUP))

    def meet(self, sizes: Sizes) -> None:
        self.ids = self.ids.new_full((sizes.instances,), UNKNOWN_GROUP)

    def assign(self, groups: Int[Tensor, "instance"]) -> None:
        if len(self.ids) and groups.shape != self.ids.shape:
            raise ValueError(f"{len(groups)} groups for {len(self.ids)} instances")
        self.ids = groups.to(self.ids.device, self.ids.dtype).clamp(min=UNKNOWN_GROUP)
        self.assigned = True

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state.get(f"{prefix}ids")
        if stored is not None and not len(self.ids):
            self.ids = torch.full_like(stored, UNKNOWN_GROUP)
        self.assigned = self.assigned or (stored is not None and len(stored) > 0)
        super()._load_from_state_dict(state, prefix, *rest)

    def group_ids(self, index: Int[Tensor, "row"], context: Context) -> Int[Tensor, "row"]:
        """The number of each instance: as assigned, or as the batch has it."""
        if self.assigned:
            return self._assigned_to(index)
        name = type(self).__name__
        if context.groups is None or self.by not in context.groups.numbers:
            if self.by == "known-label":  # the class where there is one
                return torch.full_like(index, UNKNOWN_GROUP)
            source = "labels" if self.by == "label" else f"groups={{{self.by!r}: ...}}"
            raise UserError(
                f"{name} needs the {self.by} of every instance: pass {source} to nf.Batch, or give that of "
                "all instances to the selection's assign"
            )
        numbers, present = context.groups.find(self.by, index)
        if not bool((present | (index < 0)).all()):
            raise UserError(
                f"{name} knows the {self.by} of this batch alone, but some candidates are of earlier "
                f"batches; give the {self.by} of all instances to the selection's assign"
            )
        return numbers

    def _assigned_to(self, index: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        if not len(self.ids):
            return torch.full_like(index, UNKNOWN_GROUP)
        return torch.where(index >= 0, self.ids[index.clamp(min=0) % len(self.ids)], UNKNOWN_GROUP)

    def divide(self, scores: Scores, context: Context, divide: GroupRule, close: bool = False) -> Divided:
        """Divides the candidates by a rule of those offered, those among them that share the anchor's known
        group, and the numbers of the anchors."""
        anchors = self.group_ids(context.index, context)[:, None]
        candidate_groups = self.group_ids(context.candidates.index, context)[None, :]

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            same = (anchors[rows] == candidate_groups) & (anchors[rows] != UNKNOWN_GROUP)
            return divide(offered, offered & same, rows)

        return scores.negative.divide(rule, close=close, unweighted=True)


class Group(AbstractGroupSelection):
    """The candidates that share the anchor's known group, by the data's column `by` (also `label`, and
    `self` for the recording itself: other times of it).

    What separates groups then no longer helps to tell the positive, so it need not be learned. An anchor
    without others in its group keeps all candidates, because without negatives it would learn nothing.
    """

    drop_reason = "another group"
    equation = "those of u's own {by}"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if symbols := AbstractGroupSelection.conflict(choices, parts):
            return symbols
        if choices["selection"]["by"] == "self" and choices["encoders"].get("others") != "times":
            return (
                "selection.by was self, but nothing is contrasted with its own recording here, so no "
                "candidate would be left; use it with encoders=predictive encoders.others=times"
            )
        return None

    def __init__(self, by: str = "speaker", *, instances: int = 0) -> None:
        super().__init__(by, instances)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        def rule(offered: Tensor, same: Tensor, rows: Tensor) -> Membership:
            empty = ~same.any(dim=1, keepdim=True)
            return Membership(same | (offered & empty))

        divided = self.divide(scores, require_context(self, context), rule)
        return replace(scores, negative=divided.negatives)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        reason = f"negatives share the anchor's {self.by}, so the value is about the information beyond it"
        return replace(source, exchangeable=False, independent=False, reason=reason)


class Others(AbstractGroupSelection):
    """The candidates that do not share the anchor's label; those whose label is not known all count.

    `by` names the label: the class (`label` of every instance; `known-label` where there is one), or any column
    of the data. `sample` draws that many of them for each anchor.

    The default is `known-label`, because a student may be distilled on data with few labels or none: what is
    not known to share the anchor's class is a negative of it. If no instance has a label, all candidates
    count, and the run warns when it starts; `by=label` refuses such data.
    """

    drop_reason = "the same label"
    equation = "those of another label than u, by {by}"
    remarks = (SAMPLE_REMARK,)

    def __init__(self, by: str = "known-label", sample: int | None = None, *, instances: int = 0) -> None:
        super().__init__(by, instances)
        self.sample = checked_number(sample, "sample")

    def startup_warning(self) -> str | None:
        if self.by == "known-label" and self.assigned and bool((self.ids == UNKNOWN_GROUP).all()):
            return "no instance has a label, so selection=others keeps every candidate"
        return None

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        context = require_context(self, context)
        first, seed = context.first, 0 if self.sample is None else step_seed()

        def rule(offered: Tensor, same: Tensor, rows: Tensor) -> Membership:
            keep = offered & ~same
            if self.sample is not None:
                keep = sample_candidates(keep, self.sample, seed, rows + first)
            return Membership(keep)

        return replace(scores, negative=self.divide(scores, context, rule).negatives)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        reason = f"candidates of the anchor's own {self.by} are left out, so negatives are not draws of p(v)"
        sampling = replace(source.not_exchangeable(reason), min_negatives=min(1, source.negatives))
        return reduce_sampling(sampling, self.sample)


class Labelled(AbstractGroupSelection):
    """Candidates with the anchor's label are further positives of it, the others its negatives.

    `by` names the label: the class, or any column of the data. An instance whose label is not known has its
    own views as positives alone and everybody else as negatives, so that a few labels among many instances
    do.
    """

    equation = "those of another {by} than u; the others are positives"

    def __init__(self, by: str = "label", *, instances: int = 0) -> None:
        super().__init__(by, instances)

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        rule = lambda offered, same, rows: Membership(offered & ~same, same)
        divided = self.divide(scores, require_context(self, context), rule, close=True)
        return replace(scores, negative=divided.negatives, more_positives=divided.close)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        reason = f"candidates with the anchor's {self.by} are positives, so negatives are not draws of p(v)"
        min_negatives = min(1, source.negatives)
        unlike = replace(source, exchangeable=False, independent=False, reason=reason)
        return replace(unlike, min_negatives=min_negatives, more_positives=True)
