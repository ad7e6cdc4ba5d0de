"""A learned view: this file; no line elsewhere, since views are passed as an object.

    nf.pretrain("simclr", data=images, out="runs/a", views=Viewmaker())

The views of SimCLR, each changed by a small network that is trained with the encoders, but against them: its
gradient is reversed, so it looks for changes of bounded size that make views hard to match (Viewmaker
networks, Tamkin et al. 2021)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.schedules import Progress


class _ReverseGradient(torch.autograd.Function):
    """The identity, with the gradient negated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Viewmaker(nn.Module, nf.AbstractViews):
    """`budget`: mean absolute change of a pixel, in standard deviations of the data."""

    def __init__(self, budget: float = 0.1, channels: int = 3, size: int = 32, width: int = 16) -> None:
        super().__init__()
        self.budget = budget
        self.crops = nf.Views((nf.Augment(), nf.Augment()), size, (0.5,) * channels, (0.25,) * channels)
        self.network = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    def __call__(
        self, instances: Any, seed: int, epoch: int, index: Int64[np.ndarray, "instance"]
    ) -> tuple[Tensor, ...]:
        return self.crops(instances, seed, epoch, index)

    def transform(self, views: tuple[Tensor, ...], progress: Progress) -> tuple[Tensor, ...]:
        return tuple(view + self.change(view) for view in views)

    def change(self, view: Tensor) -> Tensor:
        change = _ReverseGradient.apply(self.network(view))
        return self.budget * change / change.abs().mean(dim=(1, 2, 3), keepdim=True).clamp_min(1e-6)
