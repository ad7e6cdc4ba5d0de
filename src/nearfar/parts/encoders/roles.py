"""Who embeds the anchor and who the key.

    Shared(network)                                   SimCLR, instance discrimination
    Shared(network, stop_gradient=True, predictor=p)  SimSiam
    Momentum(network, momentum=0.999)                 MoCo
    Momentum(network, momentum=0.99, predictor=p)     BYOL
    PerView(networks)                                   CMC, end-to-end contrast (per_view.py)
    InfoMax(network)                                  Deep InfoMax (infomax.py)

All views a network must embed go through it in one forward pass: faster, and batch norm then sees the views
together, so its statistics are those of the mixture of views (as in single-device SimCLR), not of each view.
"""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nearfar.core.schedules import Progress, Value, at, ends, parse_value, written
from nearfar.core.types import Batch, Encoded, Encoders, Pair, Remark, view_pairs
from nearfar.errors import UserError
from nearfar.parts.encoders.config import HeadConfig, InputSpec


def embed_views(network: nn.Module, views: Sequence[Any], which: Sequence[int]) -> dict[int, Tensor]:
    if len(which) < 2:
        return {w: network(views[w]) for w in which}
    shapes = [tree_map(lambda tensor: tensor.shape, views[w]) for w in which]
    if any(shape != shapes[0] for shape in shapes):  # views of several sizes cannot share a forward pass
        return {w: network(views[w]) for w in which}
    joined = tree_map(lambda *tensors: together(tensors), *(views[w] for w in which))
    return dict(zip(which, network(joined).chunk(len(which)), strict=True))


def together(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all, one below the other; not copied where they lie so already, as the views of a batch do on a CPU.
    The parts have one shape."""
    first = parts[0]
    step = len(first) * first.stride(0)
    if any(part.requires_grad for part in parts) or not all(
        part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.stride() == first.stride()
        and part.storage_offset() == first.storage_offset() + k * step
        and part.dtype == first.dtype
        for k, part in enumerate(parts)
    ):
        return torch.cat(list(parts))
    return first.as_strided((len(parts) * len(first), *first.shape[1:]), first.stride())


def predicted(predictor: nn.Module | None, embedded: dict[int, Tensor]) -> dict[int, Tensor]:
    if predictor is None or not embedded:
        return embedded
    return dict(
        zip(embedded, predictor(torch.cat(list(embedded.values()))).chunk(len(embedded)), strict=True)
    )


def kept_of(network: nn.Module) -> nn.Module:
    """What is left of a network after training: its backbone, or, of one without, all of it."""
    backbone = getattr(network, "backbone", None)
    return backbone if isinstance(backbone, nn.Module) else network


class ViewEncoder:
    """What roles share that have one embedding for each view of an instance."""

    network: nn.Module
    key_groups: int = 1

    @classmethod
    def from_config(cls, plan: HeadConfig, seen: InputSpec, **settings: Any) -> Self:
        """The role with the network that a plan describes."""
        return cls(plan.network(seen), **settings, predictor=plan.make_predictor())  # type: ignore[call-arg]

    def group_of(self, key: int) -> int:
        return 0

    def pairs(self, views: int, symmetric: bool) -> tuple[Pair, ...]:
        pairs = view_pairs(views, symmetric)
        return tuple(Pair(anchor, key, 1 / len(pairs)) for anchor, key in pairs)

    def backbone(self) -> nn.Module:
        return kept_of(self.network)


class Shared(ViewEncoder, nn.Module):
    """One network for both. `predictor` follows it on the anchor's side only; `stop_gradient` lets no
    gradient through the keys."""

    equation: ClassVar[str] = "u = h(x), v = h(x'): one network"
    remarks: ClassVar[tuple[Remark, ...]] = (("stop_gradient", True, "no gradient reaches v"),)

    def __init__(
        self, network: nn.Module, stop_gradient: bool = False, *, predictor: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.network, self.predictor, self.stop_gradient = network, predictor, stop_gradient

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors, *keys}))
        asked = predicted(self.predictor, {w: embedded[w] for w in anchors})
        known = {w: embedded[w].detach() if self.stop_gradient else embedded[w] for w in keys}
        return Encoded(asked, known, clouds=embedded)

    def advance(self, progress: Progress) -> None:
        """Nothing follows slowly here."""


def as_encoders(encoders: Encoders | nn.Module) -> Encoders:
    """Encoders as they are; of a bare network, that network for anchors and keys alike."""
    if hasattr(encoders, "encode"):
        return cast(Encoders, encoders)
    return Shared(cast(nn.Module, encoders))


class Momentum(ViewEncoder, nn.Module):
    """Keys come from a slow copy: theta' <- m theta' + (1 - m) theta after each step (Liu 2022, sec. 3.2.2).

    No gradient reaches the copy. Its batch norms run on batch statistics, as the network's own do.
    """

    equation: ClassVar[str] = (
        "u = h(x), v = h'(x'): h' follows h, weights w' <- c w' + (1 - c) w, c = {momentum}"
    )
    own_key_network: ClassVar[bool] = True  # which no gradient reaches: keys may be made elsewhere

    def __init__(
        self, network: nn.Module, momentum: Value = 0.99, *, predictor: nn.Module | None = None
    ) -> None:
        super().__init__()
        momentum = parse_value(momentum, "encoders.momentum")
        if not all(0 <= end <= 1 for end in ends(momentum)):
            raise UserError(f"encoders.momentum was {written(momentum)}; it must lie in [0, 1]")
        self.network, self.predictor, self.momentum = network, predictor, momentum
        self.slow = copy.deepcopy(network).requires_grad_(False)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors}))
        asked = predicted(self.predictor, embedded)
        with torch.no_grad():
            known = embed_views(self.slow, batch.views, sorted({*keys}))
        return Encoded(asked, known, clouds=embedded)

    @torch.no_grad()
    def advance(self, progress: Progress) -> None:
        weight = 1.0 - at(self.momentum, progress)
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.network.parameters()), weight)
