"""What selections share that go by a number of every instance: its group, its label."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.types import Context
from nearfar.errors import UserError

UNKNOWN_GROUP = -1


class Assigned(nn.Module, AbstractSelection):
    """The numbers, assigned once before the first step (`assign`), or read from each batch; below 0 is not known. Without
    `instances` there are as many as are assigned.

    Rows that are times of a recording have the identity instance + instances * time (see `encoders.sequence`), so the number
    is that of identity modulo instances.
    """

    ids: Int[Tensor, "instance"]

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if not parts["encoders"].keys_are_symbols:
            return None
        selection, role = choices["selection"]["name"], choices["encoders"]["name"]
        return f"selection was {selection} with encoders={role}, whose negatives are symbols: they have no group and no label"

    def __init__(self, by: str, instances: int) -> None:
        super().__init__()
        if not by:
            raise UserError("selection.by was empty; name a column of the data, label or self")
        self.by, self.group_by, self.assigned = by, by, False
        self.register_buffer("ids", torch.full((instances,), UNKNOWN_GROUP))

    def assign(self, groups: Int[Tensor, "instance"]) -> None:
        if len(self.ids) and groups.shape != self.ids.shape:
            raise ValueError(f"{len(groups)} groups for {len(self.ids)} instances")
        self.ids = groups.to(self.ids.device, self.ids.dtype).clamp(min=UNKNOWN_GROUP)
        self.assigned = True

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        held = state.get(f"{prefix}ids")
        if held is not None and not len(self.ids):
            self.ids = torch.full_like(held, UNKNOWN_GROUP)
        self.assigned = self.assigned or (held is not None and len(held) > 0)
        super()._load_from_state_dict(state, prefix, *rest)

    def of(self, index: Int[Tensor, "row"], context: Context) -> Int[Tensor, "row"]:
        """The number of each instance: as assigned, or as the batch has it."""
        if self.assigned:
            return self._assigned_to(index)
        name = type(self).__name__
        if context.groups is None or self.by not in context.groups.numbers:
            if self.by == "known-label":  # the class where there is one
                return torch.full_like(index, UNKNOWN_GROUP)
            source = "labels" if self.by == "label" else f"groups={{{self.by!r}: ...}}"
            raise UserError(
                f"{name} needs the {self.by} of every instance: pass {source} to nf.Batch, or give that of all instances to the selection's assign"
            )
        numbers, present = context.groups.find(self.by, index)
        if not bool((present | (index < 0)).all()):
            raise UserError(
                f"{name} knows the {self.by} of this batch alone, but some candidates are of earlier batches; "
                f"give the {self.by} of all instances to the selection's assign"
            )
        return numbers

    def _assigned_to(self, index: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        if not len(self.ids):
            return torch.full_like(index, UNKNOWN_GROUP)
        return torch.where(index >= 0, self.ids[index.clamp(min=0) % len(self.ids)], UNKNOWN_GROUP)
