"""A prior: this file, and a line in `nearfar/parts/priors/__init__.py`:  PARTS["mean-zero"] = MeanZero

nearfar pretrain simclr photos/ --out runs/a prior=mean-zero prior.weight=0.1
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, as_text, at, ends, parse_value
from nearfar.core.types import Encoded
from nearfar.errors import UserError


@dataclass(frozen=True)
class MeanZero(AbstractPrior):
    """The squared length of the mean embedding: a cloud should not lie to one side."""

    equation = "{weight} |mean of z|^2"
    weight: Value = 1.0

    def __post_init__(self) -> None:
        weight = parse_value(self.weight, "prior.weight")
        if min(ends(weight)) < 0:
            raise UserError(f"prior.weight was {as_text(weight)}; it must be at least 0")
        object.__setattr__(self, "weight", weight)

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Tensor:
        means = [rows.mean(dim=0) for rows in encoded.embeddings_per_view()]
        return at(self.weight, progress) * torch.stack(means).square().sum(dim=1).mean()
