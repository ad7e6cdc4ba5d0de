"""Adapts objects without a base class to parts, once, where a `Method` is put together.

An object that subclasses an abstract part is used as it is. Any other object with the required methods is
wrapped; what else the abstract class declares is taken from the object where it has it.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import getattr_static
from typing import Any

from torch import Tensor, nn

from nearfar.core.abstract import (
    AbstractBound,
    AbstractCritic,
    AbstractEncoders,
    AbstractNegatives,
    AbstractPart,
    AbstractPrior,
    AbstractSelection,
)
from nearfar.core.networks import backbone_of, embed_views
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import Candidates, Scores
from nearfar.core.types import Batch, Certificate, Context, Encoded, NegativeSampling
from nearfar.errors import UserError


class SingleNetwork(nn.Module, AbstractEncoders):
    """A bare network as encoders: it embeds anchors and keys alike."""

    equation = "u = h(x), v = h(x'): one network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors, *keys}))
        return Encoded({w: embedded[w] for w in anchors}, {w: embedded[w] for w in keys}, embeddings=embedded)

    def backbone(self) -> nn.Module:
        return backbone_of(self.network)

    def view_networks(self) -> tuple[nn.Module, ...]:
        return (self.network,)


class Adapter(nn.Module):
    """Wraps `wrapped` as a part of the abstract class its subclass names."""

    def __init__(self, wrapped: Any, declared: type[AbstractPart]) -> None:
        super().__init__()
        self.wrapped = wrapped
        for name in dir(declared):
            implemented = (
                name.startswith("_")
                or name in vars(type(self))
                or isinstance(getattr_static(declared, name), property)
            )
            if not implemented and hasattr(wrapped, name):
                object.__setattr__(self, name, getattr(wrapped, name))


class AdaptedEncoders(Adapter, AbstractEncoders):
    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        return self.wrapped.encode(batch, anchors, keys)

    def backbone(self) -> nn.Module:
        return self.wrapped.backbone()


class AdaptedCritic(Adapter, AbstractCritic):
    def prepare(self, embedding: Tensor) -> Tensor:
        return self.wrapped.prepare(embedding)

    def pairs(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self.wrapped.pairs(anchors, keys, progress)

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self.wrapped.cross(anchors, keys, progress)


class AdaptedNegatives(Adapter, AbstractNegatives):
    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        return self.wrapped.candidates(keys, index, key)

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        return self.wrapped.sampling(batch_size, key_views, keys_per_instance, same_instance_negatives)


class AdaptedSelection(Adapter, AbstractSelection):
    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        return self.wrapped(scores, context)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        return self.wrapped.sampling(source, progress)


class AdaptedBound(Adapter, AbstractBound):
    def forward(self, scores: Scores, progress: Progress | None = None) -> Tensor:
        return self.wrapped(scores, progress)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return self.wrapped.certificate(sampling, progress)

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        return self.certificate(sampling, progress).ceiling

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return self.certificate(sampling, progress).status != "objective only"


class AdaptedPrior(Adapter, AbstractPrior):
    def forward(self, encoded: Encoded, progress: Progress = START) -> Tensor:
        return self.wrapped(encoded, progress)


def unwrapped(part: Any) -> Any:
    """The object inside an adapter; any other part as it is."""
    return part.wrapped if isinstance(part, Adapter) else part


def _adapt(
    kind: str, part: Any, declared: type[Any], wrap: Callable[..., Any], needed: tuple[str, ...]
) -> Any:
    if isinstance(part, declared):
        return part
    missing = [name for name in needed if not callable(getattr(part, name, None))]
    if missing:
        raise UserError(
            f"{kind} was an object of type {type(part).__name__}, which has no {', '.join(missing)}; "
            "expected a subclass of "
            f"nearfar.core.abstract.{declared.__name__}, or an object with {', '.join(needed)}"
        )
    return wrap(part, declared)


def as_encoders(part: Any) -> AbstractEncoders:
    """A bare `nn.Module` embeds anchors and keys alike."""
    if isinstance(part, nn.Module) and not isinstance(part, AbstractEncoders) and not hasattr(part, "encode"):
        return SingleNetwork(part)
    return _adapt("encoders", part, AbstractEncoders, AdaptedEncoders, ("encode", "backbone"))


def as_critic(part: Any) -> AbstractCritic:
    return _adapt("critic", part, AbstractCritic, AdaptedCritic, ("prepare", "pairs", "cross"))


def as_negatives(part: Any) -> AbstractNegatives:
    return _adapt("negatives", part, AbstractNegatives, AdaptedNegatives, ("candidates", "sampling"))


def as_selection(part: Any) -> AbstractSelection:
    return _adapt("selection", part, AbstractSelection, AdaptedSelection, ("__call__", "sampling"))


def as_bound(part: Any) -> AbstractBound:
    return _adapt("bound", part, AbstractBound, AdaptedBound, ("__call__", "certificate"))


def as_prior(part: Any) -> AbstractPrior | None:
    return None if part is None else _adapt("prior", part, AbstractPrior, AdaptedPrior, ("__call__",))


# by the name of the kind of part, as settings spell it
ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "encoders": as_encoders,
    "critic": as_critic,
    "negatives": as_negatives,
    "selection": as_selection,
    "bound": as_bound,
    "prior": as_prior,
}
