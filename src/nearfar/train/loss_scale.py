"""Loss scaling for float16, whose smallest number is 6e-8: smaller gradients would become zero.

    loss × scale → backward → gradients / scale → clip → optimiser

A step whose gradient is not finite is skipped and halves the scale; 2,000 steps in a row that were taken double
it. The rule and its constants are those of `torch.amp.GradScaler`. The decision is made from the gradient's
norm, which is equal on all ranks; `GradScaler` looks at the gradients of its own rank, and cannot take sharded
and full weights together.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nearfar.core.strategy import Strategy
from nearfar.train.hooks import Hook

INITIAL_SCALE = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_STEPS = 2000  # taken in a row before the scale grows
MAX_SCALE = 2.0**127  # the largest power of two in float32


class LossScale(Hook):
    """The factor of the loss, and how many steps in a row were taken with it. Saved in every checkpoint."""

    def __init__(self) -> None:
        self.value, self.streak = INITIAL_SCALE, 0

    def update(self, taken: bool) -> None:
        """Adapts the scale after a step that was taken or skipped."""
        if not taken:
            self.value, self.streak = self.value * BACKOFF, 0
            return
        self.streak += 1
        if self.streak == GROWTH_STEPS:
            self.value, self.streak = min(self.value * GROWTH, MAX_SCALE), 0

    def state(self) -> dict[str, Any]:
        return {"scale": self.value, "streak": self.streak}

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self.streak = state["scale"], state["streak"]


@torch.no_grad()
def unscale(parameters: Iterable[Tensor], scale: float, strategy: Strategy) -> None:
    """Divides the gradients by the scale. Scales are powers of two, so no digit is lost."""
    gradients = [strategy.local_tensor(p.grad) for p in parameters if p.grad is not None]
    torch._foreach_mul_(gradients, 1.0 / scale)
