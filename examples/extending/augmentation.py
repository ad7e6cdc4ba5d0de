"""An augmentation: this file, and a line in `nearfar/modalities/image/views/operations.py`:
OPERATIONS["posterise"] = Posterise

    nearfar pretrain simclr photos/ --out runs/a views.posterise=0.2

Its numbers are drawn under its own name: no run without it changes by a bit.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from nearfar.config.schema import between, check_fields
from nearfar.modalities.image.views.operations import Probability


@dataclass(frozen=True)
class Posterise:
    """Each channel rounded to between `min_levels` and 16 levels."""

    name: ClassVar[str] = "posterise"
    slots: ClassVar[int] = 1
    probability: Probability = 0.5
    min_levels: Annotated[int, between(2, 16)] = 4

    def __post_init__(self) -> None:
        check_fields(self, f"views.{self.name}")

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        steps = self.min_levels - 1 + torch.floor(numbers[:, :1, None, None] * (17 - self.min_levels))
        return torch.round(images * steps) / steps
