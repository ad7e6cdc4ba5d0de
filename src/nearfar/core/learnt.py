"""Numbers of a critic that are learnt with the networks."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.schedules import Learnt, Progress, Value, at, parse_learnable
from nearfar.errors import UserError

MIN_TEMPERATURE = 0.01  # temperature: CLIP's limit, a scale of 100 (Radford et al. 2021)


class LearntNumber(nn.Module):
    """A number that begins as `start` and follows the gradient, in float32 at least: start + s, or, if it is
    `positive`, m + (start - m) e^s, which stays above m = MIN_TEMPERATURE. s begins at 0."""

    def __init__(self, start: float, *, positive: bool) -> None:
        super().__init__()
        self.start, self.positive = start, positive
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self) -> Float[Tensor, ""]:
        if self.positive:
            return MIN_TEMPERATURE + (self.start - MIN_TEMPERATURE) * self.offset.exp()
        return self.start + self.offset


def learnable(raw: Any, key: str, *, positive: bool = False) -> Value | LearntNumber:
    """A number, a schedule, or a number that is learnt."""
    value = parse_learnable(raw, key)
    if not isinstance(value, Learnt):
        return value
    if positive and value.start <= MIN_TEMPERATURE:
        raise UserError(f"{key} was {value.written()}; a learnt temperature begins above {MIN_TEMPERATURE:g}")
    return LearntNumber(value.start, positive=positive)


def current_value(value: Value | LearntNumber, progress: Progress) -> float | Float[Tensor, ""]:
    return value() if isinstance(value, LearntNumber) else at(value, progress)
