"""Adapts objects without a base class to parts, once, where a `Method` is put together.

An object that subclasses an abstract part is used as it is. Any other object with the required methods is
wrapped; what else the abstract class declares is taken from the object where it has it.
"""

from collections.abc import Callable, Sequence
from inspect import getattr_static, signature
from typing import Any

from torch import nn

from nearfar.core.abstract import (
    AbstractBound,
    AbstractCritic,
    AbstractEncoders,
    AbstractNegatives,
    AbstractOneNetwork,
    AbstractPart,
    AbstractPrior,
    AbstractSelection,
    AbstractViews,
    AbstractViewSettings,
)
from nearfar.core.networks import embed_views
from nearfar.core.types import Batch, Encoded
from nearfar.errors import UserError


class SingleNetwork(nn.Module, AbstractOneNetwork):
    """A bare network as encoders: it embeds anchors and keys alike."""

    equation = "u = h(x), v = h(x'): one network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors, *keys}))
        return Encoded({w: embedded[w] for w in anchors}, {w: embedded[w] for w in keys}, embeddings=embedded)


class Adapter(nn.Module):
    """Wraps an object as a part of the abstract class `abstract_class`, whose methods `required` it must have."""

    abstract_class: type[AbstractPart]
    required: tuple[str, ...]

    def __init__(self, wrapped: Any) -> None:
        super().__init__()
        self.wrapped = wrapped
        for name in dir(self.abstract_class):
            implemented = (
                name.startswith("_")
                or name in vars(type(self))
                or isinstance(getattr_static(self.abstract_class, name), property)
            )
            if not implemented and hasattr(wrapped, name):
                object.__setattr__(self, name, getattr(wrapped, name))


def _adapter(
    abstract_class: type[AbstractPart], *required: str, **computed: Callable[..., Any]
) -> type[Adapter]:
    """The adapter of a kind of part: `required` methods call the object's, with the defaults of `abstract_class`;
    `computed` ones are made of these."""

    def delegate(name: str) -> Callable[..., Any]:
        parameters = signature(getattr(abstract_class, name))

        def call(self: Adapter, *arguments: Any, **keywords: Any) -> Any:
            bound = parameters.bind(self, *arguments, **keywords)
            bound.apply_defaults()
            return getattr(self.wrapped, name)(*bound.args[1:])

        return call

    methods = {"forward" if name == "__call__" else name: delegate(name) for name in required}
    name = abstract_class.__name__.replace("Abstract", "Adapted")
    return type(
        name,
        (Adapter, abstract_class),
        {**methods, **computed, "abstract_class": abstract_class, "required": required},
    )


# by the name of the kind of part, as settings spell it
ADAPTERS: dict[str, type[Adapter]] = {
    "encoders": _adapter(AbstractEncoders, "encode", "backbone"),
    "critic": _adapter(AbstractCritic, "prepare", "pairs", "cross"),
    "negatives": _adapter(AbstractNegatives, "candidates", "sampling"),
    "selection": _adapter(AbstractSelection, "__call__", "sampling"),
    "bound": _adapter(
        AbstractBound,
        "__call__",
        "certificate",
        ceiling=lambda self, sampling, progress=None: self.certificate(sampling, progress).ceiling,
        is_estimate=lambda self, sampling, progress=None: (
            self.certificate(sampling, progress).status != "objective only"
        ),
    ),
    "prior": _adapter(AbstractPrior, "__call__"),
    "views": _adapter(AbstractViews, "__call__"),
}
OPTIONAL = ("prior", "views")  # kinds of which a method may have none


def unwrapped(part: Any) -> Any:
    """The object inside an adapter; any other part as it is."""
    return part.wrapped if isinstance(part, Adapter) else part


def adapt(kind: str, part: Any) -> Any:
    """The part itself, or the object wrapped as a part of this kind. A bare network as encoders embeds anchors
    and keys alike; views without `transform` are shown as they are made."""
    adapter = ADAPTERS[kind]
    if isinstance(part, adapter.abstract_class) or (part is None and kind in OPTIONAL):
        return part
    if kind == "views" and isinstance(part, AbstractViewSettings):
        return part
    if kind == "encoders" and isinstance(part, nn.Module) and not hasattr(part, "encode"):
        return SingleNetwork(part)
    missing = [name for name in adapter.required if not callable(getattr(part, name, None))]
    if missing:
        raise UserError(
            f"{kind} was an object of type {type(part).__name__}, which has no {', '.join(missing)}; "
            f"expected a subclass of nearfar.core.abstract.{adapter.abstract_class.__name__}, or an object with "
            f"{', '.join(adapter.required)}"
        )
    return adapter(part)
