"""f(u, v) = a(u)^T b(v): what most critics are."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeGuard

from jaxtyping import Float
from torch import Tensor

from nearfar.core.logsumexp import inner
from nearfar.core.schedules import START, Progress


class InnerProduct(ABC):
    """A critic whose `factors` say what is multiplied. Streamed, it needs no graph of its scores (`logsumexp`)."""

    normalised: ClassVar[bool] = False

    @abstractmethod
    def factors(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress
    ) -> tuple[Float[Tensor, "n width"], Float[Tensor, "m width"]]:
        """What is made of anchors and of keys before they are multiplied."""

    def pairs(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "n dim"], progress: Progress = START
    ) -> Float[Tensor, "n"]:
        left, right = self.factors(anchors, keys, progress)
        return (left * right).sum(dim=1)

    def cross(
        self, anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "m dim"], progress: Progress = START
    ) -> Float[Tensor, "n m"]:
        return inner(*self.factors(anchors, keys, progress))


def is_product(critic: Any) -> TypeGuard[InnerProduct]:
    """Whether its factors say all of it: a subclass may score in a way of its own."""
    return isinstance(critic, InnerProduct) and type(critic).cross is InnerProduct.cross
