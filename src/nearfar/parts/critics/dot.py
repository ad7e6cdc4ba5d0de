"""f(u, v) = u^T v."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.schedules import Progress
from nearfar.parts.critics.inner import InnerProduct


@dataclass(frozen=True)
class Dot(InnerProduct):
    """The inner product as it is: for encoders whose maps are the critic (CPC's f_k = z^T W_k c, Liu 2022, Eq. 28) and for
    a softmax over a vocabulary (Wu et al. 2020, sec. 5.1)."""

    equation: ClassVar[str] = "u^T v"

    def prepare(self, embedding: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n dim"]:
        return embedding if embedding.dtype is torch.float64 else embedding.float()

    def factors(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress
    ) -> tuple[Float[Tensor, "n width"], Float[Tensor, "m width"]]:
        return anchors, keys
