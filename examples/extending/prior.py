"""A prior: this file, and a line in `nearfar/parts/priors/__init__.py`:  PARTS["mean-zero"] = MeanZero

nearfar pretrain simclr photos/ --out runs/a prior=mean-zero prior.weight=0.1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearfar.core.schedules import START, Progress, Value, at, ends, parse_value, written
from nearfar.errors import UserError


@dataclass(frozen=True)
class MeanZero:
    """The squared length of the mean embedding: a cloud should not lie to one side."""

    equation: ClassVar[str] = "{weight} |mean of z|^2"
    weight: Value = 1.0

    def __post_init__(self) -> None:
        weight = parse_value(self.weight, "prior.weight")
        if min(ends(weight)) < 0:
            raise UserError(f"prior.weight was {written(weight)}; it must be at least 0")
        object.__setattr__(self, "weight", weight)

    def __call__(self, clouds: Sequence[Tensor], progress: Progress = START) -> Tensor:
        return (
            at(self.weight, progress)
            * torch.stack([cloud.mean(dim=0).square().sum() for cloud in clouds]).mean()
        )
