"""Batch norm over the batch of all ranks, on any device and whoever's module it is.

torch's own `SyncBatchNorm` runs on GPUs alone and must replace modules, of which it knows torch's. Here it is the function that
is replaced: inside `synchronised`, every `torch.nn.functional.batch_norm` in training mode normalises by the mean and variance over
all ranks. No module changes, so neither do the names in a checkpoint, and norms of timm or anybody's own are synchronised too.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


@contextmanager
def synchronised(several: bool) -> Iterator[None]:
    """Inside, batch statistics are those of all ranks; does nothing for one."""
    if not several:
        yield
        return
    with _Mode():
        yield


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Float[Tensor, "row channel ..."],
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    mean, variance, count = _moments(x.detach())
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = variance * (count / max(count - 1, 1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    weight, bias = (None if learnt is None else learnt.to(mean.dtype) for learnt in (weight, bias))
    return _Normalised.apply(x, weight, bias, mean, variance, count, eps)


@torch.no_grad()
def _moments(x: Tensor) -> tuple[Float[Tensor, "channel"], Float[Tensor, "channel"], int]:
    """Mean and variance of each channel over all ranks, and over how many numbers: each rank's own, put together as Chan et al.
    (1979) do, which does not cancel."""
    dims = [d for d in range(x.ndim) if d != 1]
    wide = x if x.dtype is torch.float64 else x.float()
    count = x.numel() // x.shape[1]
    if count and x.device.type in ("cpu", "cuda"):
        # what batch norm itself takes: ten times as fast as `var_mean` where channels come last
        mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
    elif count:
        variance, mean = torch.var_mean(wide, dims, correction=0)
    else:
        variance = mean = wide.new_zeros(x.shape[1])
    mine = torch.cat([mean, variance, mean.new_tensor([count])])
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    means, variances, counts = torch.stack(parts).split([x.shape[1], x.shape[1], 1], dim=1)
    total = counts.sum()
    whole = (counts * means).sum(dim=0) / total
    spread = (counts * (variances + (means - whole).square())).sum(dim=0) / total
    return whole, spread, int(total)


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) weight + bias, where mean and variance are of the rows of all ranks; the gradient of every
    rank's rows passes through them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.count, ctx.eps, ctx.shifted = count, eps, bias is not None
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        scale = weight if weight is not None else torch.ones_like(mean)
        to_scale, to_bias = _sums(above, x, scale, mean, variance, ctx.eps)
        both = torch.cat([to_scale, to_bias]).to(mean.dtype)
        dist.all_reduce(both)
        of_scale, of_bias = (both / ctx.count).chunk(2)
        # scale / deviation (above - of_bias - (x - mean) / deviation of_scale): directly, and through the statistics
        steep = scale / (variance + ctx.eps).sqrt()
        slope = -scale * of_scale / (variance + ctx.eps)
        to_x = _combined(above, steep, x, slope, -steep * of_bias - slope * mean)
        learnt = (to_scale if weight is not None else None, to_bias if ctx.shifted else None)
        return to_x, *learnt, None, None, None, None


def _sums(
    above: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """For each channel the sum of above (x - mean) / deviation, and that of above."""
    if not x.numel():  # a rank without rows, which the kernel divides by
        return torch.zeros_like(mean), torch.zeros_like(mean)
    # the last two are read in training mode alone, but CUDA's kernel wants them to be there
    statistics = (mean, variance, mean, (variance + eps).rsqrt())
    _, to_scale, to_bias = torch.ops.aten.native_batch_norm_backward(
        above, x, scale, *statistics, False, eps, [False, True, True]
    )
    return to_scale, to_bias


BLOCK = 2**16  # numbers: a block of each operand stays in a core's cache between one operation and the next


def _combined(one: Tensor, a: Tensor, other: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """one a + other b + c, with a number of a, b and c for each channel, in one pass over memory."""
    channels = other.shape[1]
    last = other.movedim(1, -1).is_contiguous()
    if (
        last
    ):  # rows of several places side by side: long rows go by vectors, those of sixteen channels one by one
        many = math.gcd(other.numel() // max(1, channels), max(1, 1024 // channels))
        rows = lambda side: side.movedim(1, -1).contiguous().view(-1, many * channels)
        a, b, c = (numbers.repeat(many) for numbers in (a, b, c))
    else:
        rows = lambda side: side.contiguous().view(len(side), channels, -1)
        a, b, c = (numbers[:, None] for numbers in (a, b, c))
    out = torch.empty_like(other, memory_format=torch.preserve_format if last else torch.contiguous_format)
    first, second, into = rows(one), rows(other), rows(out)
    block = len(into) if other.device.type != "cpu" else BLOCK // max(1, into[:1].numel())
    for place in range(0, len(into), max(1, block)):
        part = slice(place, place + max(1, block))
        into[part] = torch.addcmul(c, second[part], b).addcmul_(first[part], a)
    return out
