"""Gradient accumulation, for objectives without negatives: this file, and no line elsewhere.

nf.pretrain("simsiam", "photos/", "runs/a", batch_size=64, hooks=[GradientAccumulation(4)])

An update then has the gradient of 4 x 64 instances. With negatives the batch is part of the objective: set
`encode_chunk` or `memory` instead, which keep the gradient of the whole batch. Batch norm sees 64 instances
either way, and momentum networks move after every batch."""

from typing import Any

import torch
from torch import Tensor

import nearfar as nf


class GradientAccumulation(nf.Hook):
    """Updates the weights once in `batches` steps, by the mean of their gradients."""

    def __init__(self, batches: int) -> None:
        self.batches, self.count = batches, 0
        self.sums: dict[str, Tensor] = {}

    def on_start(self, session: Any) -> None:
        if session.method.negatives.has_candidates:
            raise nf.UserError(
                "GradientAccumulation is for objectives without negatives; set encode_chunk or memory instead"
            )
        self.names = {parameter: name for name, parameter in session.method.named_parameters()}
        session.optimizer.register_step_pre_hook(self.before_update)

    @torch.no_grad()
    def before_update(self, optimizer: Any, *arguments: Any) -> None:
        """Adds up the gradients. Without a gradient the optimiser leaves a weight as it is."""
        self.count += 1
        for weight in (w for group in optimizer.param_groups for w in group["params"] if w.grad is not None):
            name = self.names[weight]
            total = self.sums.get(name)
            self.sums[name] = weight.grad.clone() if total is None else total.to(weight.device) + weight.grad
            weight.grad = self.sums[name] / self.batches if self.count == self.batches else None
        if self.count == self.batches:
            self.count, self.sums = 0, {}

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "sums": self.sums}

    def restore(self, state: dict[str, Any]) -> None:
        self.count, self.sums = state["count"], state["sums"]
