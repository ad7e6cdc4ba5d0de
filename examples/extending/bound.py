"""A bound: this file, and a line in `nearfar/parts/bounds/__init__.py`:  PARTS["cpc-t"] = TemperedCPC

nearfar pretrain simclr photos/ --out runs/a bound=cpc-t bound.power=0.5
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, as_text, at, ends, parse_value
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError


@dataclass(frozen=True)
class TemperedCPC(AbstractBound):
    """InfoNCE with the negatives' sum raised to a power: below 1 the many count less than the hardest."""

    equation = "E[ f(u, v+) - log( e^f(u, v+) + (sum_k e^f(u, v_k))^{power} ) ]"
    power: Value = 1.0

    def __post_init__(self) -> None:
        power = parse_value(self.power, "bound.power")
        if min(ends(power)) <= 0:
            raise UserError(f"bound.power was {as_text(power)}; it must be above 0")
        object.__setattr__(self, "power", power)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Tensor:
        negatives = at(self.power, progress) * scores.negative.logsumexp()
        return scores.over_positives(lambda f, negative: f - torch.logaddexp(f, negative), negatives)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return Certificate("objective only", "a power of the sum of negatives is not a density ratio", None)
