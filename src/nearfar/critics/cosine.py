"""f(u, v) = cos(u, v) / temperature."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.critics.inner import InnerProduct
from nearfar.errors import UserError
from nearfar.schedules import Progress, Value, at, ends, parse_value, written


@dataclass(frozen=True)
class Cosine(InnerProduct):
    """Cosine similarity over a temperature, a value or a schedule (Wu et al. 2021, Eq. 2)."""

    equation: ClassVar[str] = "cos(u, v) / {temperature}"
    bounded: ClassVar[bool] = True  # above
    measure: ClassVar[str] = "cosine"  # what scores times `scale` are
    unit: ClassVar[bool] = True  # it scores directions, not lengths
    temperature: Value = 0.1

    def __post_init__(self) -> None:
        temperature = parse_value(self.temperature, "temperature")
        if min(ends(temperature)) <= 0:
            raise UserError(f"temperature was {written(temperature)}; it must be above 0")
        object.__setattr__(self, "temperature", temperature)

    def scale(self, progress: Progress) -> float:
        return at(self.temperature, progress)

    def prepare(self, embedding: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n dim"]:
        """Unit length, in float32 at least: cosines over a small temperature do not survive half precision."""
        whole = embedding if embedding.dtype is torch.float64 else embedding.float()
        return F.normalize(whole, dim=-1)

    def factors(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress
    ) -> tuple[Float[Tensor, "n width"], Float[Tensor, "m width"]]:
        return anchors / at(self.temperature, progress), keys
