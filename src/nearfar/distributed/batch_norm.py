"""Batch norm over the batch of all ranks, on any device and for any module.

torch's `SyncBatchNorm` runs on GPUs only and replaces torch's own modules. Here the function is replaced:
inside `synchronised_batch_norm`, every `torch.nn.functional.batch_norm` in training mode uses the mean and
variance over all ranks. No module changes, so names in a checkpoint stay the same, and norms of timm or of
user modules are synchronised too.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


def synchronised_batch_norm(cpu_group: dist.ProcessGroup | None = None) -> AbstractContextManager[None]:
    """Inside, batch statistics are those of all ranks. `cpu_group` exchanges CPU tensors."""
    return _SynchronisedMode(cpu_group)


class _SynchronisedMode(TorchFunctionMode):
    def __init__(self, cpu_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self._cpu_group = cpu_group

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.batch_norm:
            return _batch_norm(self._cpu_group, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    cpu_group: dist.ProcessGroup | None,
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
    group = cpu_group if x.device.type == "cpu" else None
    mean, variance, count = _moments(x.detach(), group)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp_min(1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    weight, bias = (None if factor is None else factor.to(mean.dtype) for factor in (weight, bias))
    return _Normalised.apply(x, weight, bias, mean, variance, count, eps, group)


@torch.no_grad()
def _moments(
    x: Tensor, group: dist.ProcessGroup | None
) -> tuple[Float[Tensor, "channel"], Float[Tensor, "channel"], Float[Tensor, "1"]]:
    """Mean and variance of each channel over all ranks, and the number of values: moments of ranks are merged
    by the formula of Chan et al. (1979), which does not cancel. The number stays on the device: reading it
    would wait for the device at every norm."""
    dims = [d for d in range(x.ndim) if d != 1]
    values = x if x.dtype is torch.float64 else x.float()
    count = x.numel() // x.shape[1]
    if count and x.device.type in ("cpu", "cuda"):
        # the kernel of batch norm: ten times as fast as `var_mean` where channels come last
        mean, variance = torch.batch_norm_update_stats(values, None, None, 0.0)
    elif count:
        variance, mean = torch.var_mean(values, dims, correction=0)
    else:
        variance = mean = values.new_zeros(x.shape[1])
    local = torch.cat([mean, variance, mean.new_full((1,), count)])
    gathered = local.new_empty((dist.get_world_size(), len(local)))
    dist.all_gather_into_tensor(gathered, local[None], group=group)
    means, variances, counts = gathered.split([x.shape[1], x.shape[1], 1], dim=1)
    total = counts.sum(dim=0)
    mean = (counts * means).sum(dim=0) / total
    variance = (counts * (variances + (means - mean).square())).sum(dim=0) / total
    return mean, variance, total


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) weight + bias, where mean and variance are of the rows of all ranks;
    the gradient of every rank's rows passes through them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps, ctx.has_bias, ctx.group = eps, bias is not None, group
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance, count = ctx.saved_tensors
        scale = weight if weight is not None else torch.ones_like(mean)
        to_scale, to_bias = _sums(grad_output, x, scale, mean, variance, ctx.eps)
        sums = torch.cat([to_scale, to_bias]).to(mean.dtype)
        dist.all_reduce(sums, group=ctx.group)
        mean_scale, mean_bias = (sums / count).chunk(2)
        # scale / deviation (grad_output - mean_bias - (x - mean) / deviation mean_scale): directly, and
        # through the statistics
        slope_output = scale / (variance + ctx.eps).sqrt()
        slope_input = -scale * mean_scale / (variance + ctx.eps)
        to_x = _scale_and_add(
            grad_output, slope_output, x, slope_input, -slope_output * mean_bias - slope_input * mean
        )
        to_factors = (to_scale if weight is not None else None, to_bias if ctx.has_bias else None)
        return to_x, *to_factors, None, None, None, None, None


def _sums(
    grad_output: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """For each channel the sum of grad_output (x - mean) / deviation, and that of grad_output."""
    if not x.numel():  # a rank without rows, which the kernel divides by
        return torch.zeros_like(mean), torch.zeros_like(mean)
    # the last two are read in training mode alone, but CUDA's kernel wants them to be there
    statistics = (mean, variance, mean, (variance + eps).rsqrt())
    _, to_scale, to_bias = torch.ops.aten.native_batch_norm_backward(
        grad_output, x, scale, *statistics, False, eps, [False, True, True]
    )
    return to_scale, to_bias


BLOCK = 2**16  # numbers: a block of each operand stays in a core's cache between one operation and the next


def _scale_and_add(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """x a + y b + c, with a value of a, b and c for each channel, in one pass over memory."""
    channels = y.shape[1]
    channels_last = y.movedim(1, -1).is_contiguous()
    if channels_last:  # several positions per row: long rows are vectorised, rows of sixteen channels are not
        repeats = math.gcd(y.numel() // max(1, channels), max(1, 1024 // channels))
        rows = lambda tensor: tensor.movedim(1, -1).contiguous().view(-1, repeats * channels)
        a, b, c = (factors.repeat(repeats) for factors in (a, b, c))
    else:
        rows = lambda tensor: tensor.contiguous().view(len(tensor), channels, -1)
        a, b, c = (factors[:, None] for factors in (a, b, c))
    out = torch.empty_like(
        y, memory_format=torch.preserve_format if channels_last else torch.contiguous_format
    )
    x_rows, y_rows, out_rows = rows(x), rows(y), rows(out)
    block = len(out_rows) if y.device.type != "cpu" else BLOCK // max(1, out_rows[:1].numel())
    for start in range(0, len(out_rows), max(1, block)):
        part = slice(start, start + max(1, block))
        out_rows[part] = torch.addcmul(c, y_rows[part], b).addcmul_(x_rows[part], a)
    return out
