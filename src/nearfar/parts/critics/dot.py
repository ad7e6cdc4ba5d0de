"""f(u, v) = u^T v."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractInnerProduct
from nearfar.core.schedules import Progress
from nearfar.core.scores import at_least_float32


@dataclass(frozen=True)
class Dot(AbstractInnerProduct):
    """The inner product as it is: for encoders whose maps are the critic (CPC's f_k = z^T W_k c, Liu 2022, Eq. 28) and for
    a softmax over a vocabulary (Wu et al. 2020, sec. 5.1)."""

    equation = "u^T v"

    def prepare(self, embedding: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n dim"]:
        return at_least_float32(embedding)

    def factors(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress
    ) -> tuple[Float[Tensor, "n width"], Float[Tensor, "m width"]]:
        return anchors, keys
