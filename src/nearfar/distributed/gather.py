"""Rows of all ranks, gathered with gradient.

The gradient that reaches a gathered row is summed over ranks, because every rank used the row. So the
gradients of a weight's copies add up to the gradient of the sum of all ranks' losses. These are equal, so the
average of the gradients over ranks (`Strategy.average_gradients`, once per step) is the gradient of one loss.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearfar.core.strategy import Rows
from nearfar.errors import UserError


class RankRows(Rows):
    """The layout of a tensor whose rows are held by several ranks."""

    def all_gather(self, rows: Tensor) -> Tensor:
        return _Gather.apply(rows, self)

    def concatenate(self, rows: Tensor) -> Tensor:
        """The rows of all ranks. Ranks exchange blocks of one size: shorter blocks are padded with zeros that
        are cut off."""
        block = rows.new_zeros((max(self.sizes), *rows.shape[1:]))
        block[: len(rows)] = rows
        blocks = [torch.empty_like(block) for _ in self.sizes]
        dist.all_gather(blocks, block)
        return torch.cat([block[:size] for block, size in zip(blocks, self.sizes, strict=True)])


def rank_rows(count: int, device: torch.device) -> RankRows:
    """Exchanges the number of rows of each rank."""
    local = torch.tensor([count], device=device)
    sizes = [torch.zeros_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, local)
    return RankRows(tuple(int(size) for size in sizes), dist.get_rank())


def gather_layout(count: int, device: torch.device, gather: bool) -> Rows:
    """The layout for a loss with the argument `gather_distributed`."""
    if not gather:
        return Rows((count,))
    if not (dist.is_available() and dist.is_initialized()):
        raise UserError(
            "gather_distributed was True without a process group; call torch.distributed.init_process_group "
            "first, or leave it False for one process"
        )
    return rank_rows(count, device)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, layout: RankRows) -> Tensor:
        return layout.concatenate(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.layout = inputs[1]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], rows: Tensor, layout: RankRows
    ) -> tuple[Tensor, int]:
        """Bounds of sampled scores are computed many times at once: one exchange gathers all of them side by
        side."""
        return _Gather.apply(rows.movedim(in_dims[0] or 0, -1), layout), -1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        layout, total = ctx.layout, grad_output.contiguous()
        if total is grad_output:  # autograd may still read it
            total = grad_output.clone()
        dist.all_reduce(total)
        return total[layout.part], None
