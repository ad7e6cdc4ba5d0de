"""Rows of all ranks, with gradient.

Each rank compares its own anchors with everybody's keys. The gradient that reaches a gathered row is summed over ranks, as
it must be: every rank used it. DDP then averages over ranks what `Rows.mean` has multiplied by their number, so that value
and gradient, averaged over ranks, are those of one process with the whole batch, also when ranks hold different numbers of rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.errors import UserError


@dataclass(frozen=True)
class Rows:
    """How many rows each rank holds; one rank alone when nothing is gathered."""

    sizes: tuple[int, ...]
    rank: int = 0

    @staticmethod
    def of(rows: int, device: torch.device, gather: bool) -> "Rows":
        if not gather:
            return Rows((rows,))
        if not (dist.is_available() and dist.is_initialized()):
            raise UserError(
                "gather_distributed was True without a process group; call torch.distributed.init_process_group "
                "first, or leave it False for one process"
            )
        mine = torch.tensor([rows], device=device)
        sizes = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, mine)
        return Rows(tuple(int(size) for size in sizes), dist.get_rank())

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def start(self) -> int:
        """The number of this rank's first row among all."""
        return sum(self.sizes[: self.rank])

    def own(self, device: torch.device) -> Int[Tensor, "own"]:
        """Numbers of this rank's rows among all."""
        return torch.arange(self.start, self.start + self.sizes[self.rank], device=device)

    def everyones(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, one after the other."""
        return rows if len(self.sizes) == 1 else _Gather.apply(rows, self)

    def mean(self, values: Float[Tensor, "own"]) -> Float[Tensor, ""]:
        """This rank's share, whose average over ranks is the mean over all rows."""
        return values.sum() * (len(self.sizes) / self.total)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, layout: Rows) -> Tensor:
        ctx.layout = layout
        # ranks exchange blocks of one size: shorter ones are filled up with zeros that nobody reads
        block = rows.new_zeros((max(layout.sizes), *rows.shape[1:]))
        block[: len(rows)] = rows
        blocks = [torch.empty_like(block) for _ in layout.sizes]
        dist.all_gather(blocks, block)
        return torch.cat([block[:size] for block, size in zip(blocks, layout.sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        layout, summed = ctx.layout, above.contiguous()
        dist.all_reduce(summed)
        return summed[layout.start : layout.start + layout.sizes[layout.rank]], None
