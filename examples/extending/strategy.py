"""A strategy: this file, and no line elsewhere.

strategy = CountingStrategy()
nf.pretrain("simclr", "photos/", "runs/a", strategy=strategy)

For several processes, subclass `nearfar.distributed.strategy.Replicated` or `Sharded` in the same way.
"""

from collections.abc import Iterable

from torch import Tensor

import nearfar as nf


class CountingStrategy(nf.Strategy):
    """Trains as a single process does, and counts the steps and the gradient bytes that several processes
    would exchange."""

    def __init__(self) -> None:
        self.steps, self.bytes = 0, 0

    def average_gradients(self, parameters: Iterable[Tensor], *numbers: Tensor) -> None:
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        self.steps += 1
        self.bytes += sum(gradient.numel() * gradient.element_size() for gradient in gradients)
