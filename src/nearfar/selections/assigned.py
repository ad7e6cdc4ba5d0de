"""What selections share that go by a number of every instance: its group, its label."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.errors import UserError

UNKNOWN_GROUP = -1


class Assigned(nn.Module):
    """The numbers, told once before the first step (`types.Grouping`); below 0 is not known.

    Rows that are times of a recording have the identity instance + instances * time (see `encoders.sequence`), so the number
    is that of identity modulo instances.
    """

    ids: Int[Tensor, "instance"]

    def __init__(self, by: str, instances: int) -> None:
        super().__init__()
        if not by:
            raise UserError("selection.by was empty; name a column of the data, label or self")
        self.by = by
        self.register_buffer("ids", torch.full((instances,), UNKNOWN_GROUP))

    def assign(self, groups: Int[Tensor, "instance"]) -> None:
        if groups.shape != self.ids.shape:
            raise ValueError(f"{len(groups)} groups for {len(self.ids)} instances")
        self.ids = groups.to(self.ids.device, self.ids.dtype).clamp(min=UNKNOWN_GROUP)

    def of(self, index: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        if not len(self.ids):
            return torch.full_like(index, UNKNOWN_GROUP)
        return torch.where(index >= 0, self.ids[index.clamp(min=0) % len(self.ids)], UNKNOWN_GROUP)
