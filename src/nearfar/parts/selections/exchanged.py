"""Negatives of which some anchors' rows are those of other negatives: what would a bound say if one anchor had drawn otherwise?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nearfar.core.scores import Divided, Negatives, Rule


@dataclass(frozen=True)
class Reduced:
    """Negatives whose usual reductions are made at once, so that they are the same tensors each time they are asked for."""

    negative: Negatives

    def __post_init__(self) -> None:
        _ = self.logsumexp, self.count

    @cached_property
    def logsumexp(self) -> Float[Tensor, "anchor"]:
        return self.negative.logsumexp()

    @cached_property
    def count(self) -> Float[Tensor, "anchor"]:
        return self.negative.count()


@dataclass(frozen=True)
class Exchanged:
    """The rows of `second` where `exchanged`, elsewhere those of `first`."""

    first: Reduced
    second: Reduced
    exchanged: Bool[Tensor, "anchor"]

    def _either(self, first: Tensor, second: Tensor) -> Float[Tensor, "anchor"]:
        return torch.where(self.exchanged, second, first)

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        return self._either(self.first.logsumexp, self.second.logsumexp)

    def count(self) -> Float[Tensor, "anchor"]:
        return self._either(self.first.count, self.second.count)

    def offered(self) -> int:
        return self.first.negative.offered()

    def sum_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        both = (each.negative.sum_of(function, *per_anchor) for each in (self.first, self.second))
        return self._either(*both)

    def mean_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        return self.sum_of(function, *per_anchor) / self.count().clamp_min(1.0)

    def hardest(self) -> Float[Tensor, "anchor"]:
        return self._either(*(each.negative.hardest() for each in (self.first, self.second)))

    def divide(self, rule: Rule, *, close: bool = False, drawn: bool = False, plain: bool = False) -> Divided:
        raise TypeError("rows are exchanged after all selections")

    def matrix(self) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
        (values, kept), (others, theirs) = (each.negative.matrix() for each in (self.first, self.second))
        rows = self.exchanged[:, None]
        return torch.where(rows, others, values), torch.where(rows, theirs, kept)
