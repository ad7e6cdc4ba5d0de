"""f(u, v) = u^T v."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.schedules import START, Progress


@dataclass(frozen=True)
class Dot:
    """The inner product as it is: for encoders whose maps are the critic (CPC's f_k = z^T W_k c, 000 Eq. 28) and for
    a softmax over a vocabulary (003 sec. 5.1)."""

    def prepare(self, embedding: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n dim"]:
        return embedding if embedding.dtype is torch.float64 else embedding.float()

    def pairs(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "n dim"], progress: Progress = START
    ) -> Float[Tensor, "n"]:
        return (anchors * keys).sum(dim=1)

    def cross(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress = START
    ) -> Float[Tensor, "n m"]:
        return anchors @ keys.T
