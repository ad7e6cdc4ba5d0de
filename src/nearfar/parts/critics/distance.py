"""f(u, v) = -|u - v|^2 / temperature."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractCritic
from nearfar.core.schedules import START, Progress, Value, at, ends, parse_value, written
from nearfar.errors import UserError


@dataclass(frozen=True)
class Distance(AbstractCritic):
    """Minus the squared Euclidean distance over a temperature (Sáez Maldonado 2021, Eq. 17); of unit vectors when `unit`, and
    divided by their dimension when `mean`.

    On unit vectors it is 2 cos - 2: the cosine critic up to a constant, at half the temperature.
    """

    equation = "-|u - v|^2 / {temperature}"
    remarks = (("mean", True, "divided by the dimension"),)
    normalised = False
    bounded_above = True  # above
    temperature: Value = 1.0
    unit: bool = True
    mean: bool = False

    def __post_init__(self) -> None:
        temperature = parse_value(self.temperature, "temperature")
        if min(ends(temperature)) <= 0:
            raise UserError(f"temperature was {written(temperature)}; it must be above 0")
        object.__setattr__(self, "temperature", temperature)

    def prepare(self, embedding: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n dim"]:
        whole = embedding if embedding.dtype is torch.float64 else embedding.float()
        return F.normalize(whole, dim=-1) if self.unit else whole

    def pairs(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "n dim"], progress: Progress = START
    ) -> Float[Tensor, "n"]:
        return -(anchors - keys).square().sum(dim=1) / self._scale(anchors, progress)

    def cross(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress = START
    ) -> Float[Tensor, "n m"]:
        # |u|^2 + |v|^2 - 2 uv: one matrix product instead of n x m x dim differences
        squares = anchors.square().sum(dim=1)[:, None] + keys.square().sum(dim=1)[None, :]
        return (2.0 * anchors @ keys.T - squares) / self._scale(anchors, progress)

    def _scale(self, anchors: Float[Tensor, "n dim"], progress: Progress) -> float:
        return at(self.temperature, progress) * (anchors.shape[1] if self.mean else 1)
