"""Rows of all ranks, gathered with gradient.

The gradient that reaches a gathered row is summed over ranks, because every rank used the row. So the
gradients of a weight's copies add up to the gradient of the sum of all ranks' losses. These are equal, so the
average of the gradients over ranks (`Strategy.average_gradients`, once per step) is the gradient of one loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearfar.core.strategy import Rows


@dataclass(frozen=True)
class RankRows(Rows):
    """The layout of a tensor whose rows are held by several ranks. Ranks exchange blocks of one size: shorter
    blocks are padded with zeros that are cut off. `cpu_group` exchanges CPU tensors."""

    cpu_group: dist.ProcessGroup | None = None

    def all_gather(self, rows: Tensor) -> Tensor:
        return _Gather.apply(rows, self)

    @property
    def block(self) -> int:
        return max(self.sizes)

    def pass_on(self, *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        ranks = len(self.sizes)
        received = tuple(torch.empty_like(tensor) for tensor in tensors)
        transfers = []
        for tag, (tensor, target) in enumerate(zip(tensors, received, strict=True)):
            for start, buffer, peer in ((dist.isend, tensor, 1), (dist.irecv, target, -1)):
                rank = (self.rank + peer) % ranks
                transfers.append(dist.P2POp(start, buffer, rank, self._group(buffer), tag))
        requests = dist.batch_isend_irecv(transfers)

        def wait() -> tuple[Tensor, ...]:
            for request in requests:
                request.wait()
            return received

        return wait

    def concatenate(self, rows: Tensor) -> Tensor:
        """The rows of all ranks."""
        block = rows.contiguous() if len(rows) == self.block else _padded([rows], self.block)
        gathered = rows.new_empty((len(self.sizes) * self.block, *rows.shape[1:]))
        dist.all_gather_into_tensor(gathered, block, group=self._group(rows))
        if len(gathered) == self.total:
            return gathered
        blocks = gathered.split(max(1, self.block))
        return torch.cat([block[:size] for block, size in zip(blocks, self.sizes, strict=True)])

    def sum_of_own(self, rows: Tensor) -> Tensor:
        """Of tensors with the rows of all ranks, one on each rank, the sum over ranks of this rank's rows."""
        equal_blocks = len(self.sizes) * self.block == self.total
        blocks = rows.contiguous() if equal_blocks else _padded(rows.split(self.sizes), self.block)
        block = rows.new_empty((self.block, *rows.shape[1:]))
        dist.reduce_scatter_tensor(block, blocks, group=self._group(rows))
        return block[: self.sizes[self.rank]]

    def _group(self, rows: Tensor) -> dist.ProcessGroup | None:
        return self.cpu_group if rows.device.type == "cpu" else None


def _padded(parts: Sequence[Tensor], size: int) -> Tensor:
    """The parts one below the other, each followed by zeros up to `size` rows."""
    blocks = parts[0].new_zeros((len(parts), size, *parts[0].shape[1:]))
    for block, part in zip(blocks, parts, strict=True):
        block[: len(part)] = part
    return blocks.flatten(0, 1)


def rank_rows(
    count: int, device: torch.device | str = "cpu", cpu_group: dist.ProcessGroup | None = None
) -> RankRows:
    """Exchanges the number of rows of each rank."""
    sizes = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    layout = RankRows((1,) * len(sizes), dist.get_rank(), cpu_group)
    return replace(layout, sizes=tuple(layout.concatenate(sizes.new_full((1,), count)).tolist()))


def gather_layout(count: int, device: torch.device, gather: bool) -> Rows:
    """The layout for a loss with the argument `gather_distributed`; of one process without a group."""
    if not (gather and dist.is_available() and dist.is_initialized()):
        return Rows((count,))
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
        """One exchange gathers the bounds of sampled scores that are computed side by side."""
        return _Gather.apply(rows.movedim(in_dims[0] or 0, -1), layout), -1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.sum_of_own(grad_output), None
