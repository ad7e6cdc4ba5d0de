"""An optimiser: this file, and a line in `nearfar/core/optimisers.py`:  OPTIMISERS["lion"] = lion

nearfar pretrain simclr photos/ --out runs/a optimizer=lion lr=3e-4 optimizer.second=0.99
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """Lion (Chen et al. 2023): w <- w - lr (sign(b1 m + (1 - b1) g) + decay w), m <- b2 m + (1 - b2) g."""

    state_names = ("mean",)  # what a checkpoint may hold of each weight

    def __init__(self, params: Any, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight))
                direction = torch.lerp(weight.grad, mean, first).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
                mean.lerp_(weight.grad, 1 - second)
        return loss


def lion(groups: list[dict[str, Any]], lr: float, momentum: float | None, second: float = 0.99) -> Optimizer:
    """What comes after the first three parameters can be set: `optimizer.second=0.95`."""
    return Lion(groups, lr, (0.9 if momentum is None else momentum, second))
