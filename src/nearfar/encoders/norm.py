"""Batch normalisation whose forward pass changes nothing.

torch's batch norm moves its running statistics inside `forward`, so computing a loss twice would count a batch
twice. Here the forward pass leaves the batch's statistics aside, and `commit_statistics` (called by
`Method.advance`) folds them into the running ones. The numbers are those of torch; parameter and buffer names
too, so weights load in plain torchvision and timm.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _PureNorm(nn.modules.batchnorm._BatchNorm):
    _pending: tuple[Tensor, Tensor] | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        """Any shape (image, channel, ...) will do."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.track_running_stats:
            return super().forward(input)
        # momentum 1 makes torch write this batch's mean and unbiased variance into the scratch tensors
        scratch = torch.promote_types(input.dtype, torch.float32)
        mean = torch.zeros(self.num_features, device=input.device, dtype=scratch)
        variance = torch.ones(self.num_features, device=input.device, dtype=scratch)
        out = F.batch_norm(input, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
        self._pending = (mean, variance)
        return out

    @torch.no_grad()
    def commit(self) -> None:
        if self._pending is None or self.running_mean is None or self.running_var is None:
            return
        mean, variance = self._pending
        self._pending = None
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        weight = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, weight)
        self.running_var.lerp_(variance, weight)


class PureBatchNorm2d(_PureNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` with a pure forward pass."""


class PureBatchNorm1d(_PureNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` with a pure forward pass."""


_PURE = {nn.BatchNorm2d: PureBatchNorm2d, nn.BatchNorm1d: PureBatchNorm1d}


def with_pure_norms(module: nn.Module) -> nn.Module:
    """The same module, its batch norms replaced by pure ones with the same weights.

    Only torch's own classes are replaced; subclasses (timm's BatchNormAct2d) keep their own behaviour.
    """
    for name, child in module.named_children():
        setattr(module, name, with_pure_norms(child))
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and not isinstance(module, _PureNorm):
        pure = _PURE.get(type(module))
        if pure is not None:
            module.__class__ = pure  # type: ignore[assignment]
    return module


def commit_statistics(module: nn.Module) -> None:
    """Folds the statistics of the last forward pass into the running ones."""
    for child in module.modules():
        if isinstance(child, _PureNorm):
            child.commit()
