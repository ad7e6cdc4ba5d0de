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

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.networks import embed_views
from nearfar.core.schedules import Progress, Value, at, ends, parse_value, written
from nearfar.core.types import Batch, Encoded
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, network_or_plan, planned_config


def predicted(predictor: nn.Module | None, embedded: dict[int, Tensor]) -> dict[int, Tensor]:
    if predictor is None or not embedded:
        return embedded
    return dict(
        zip(embedded, predictor(torch.cat(list(embedded.values()))).chunk(len(embedded)), strict=True)
    )


class Shared(nn.Module, AbstractOneNetwork):
    """One network for both. `predictor` follows it on the anchor's side only; `stop_gradient` lets no
    gradient through the keys."""

    equation = "u = h(x), v = h(x'): one network"
    remarks = (("stop_gradient", True, "no gradient reaches v"),)

    def __init__(
        self,
        network: nn.Module | HeadConfig,
        stop_gradient: bool = False,
        *,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.network = network_or_plan(network)
        self.register_module("predictor", predictor)
        self.stop_gradient = stop_gradient

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        self.network, self.predictor = head.network(inputs), head.make_predictor()

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors, *keys}))
        anchor_embeddings = predicted(self.predictor, {w: embedded[w] for w in anchors})
        key_embeddings = {w: embedded[w].detach() if self.stop_gradient else embedded[w] for w in keys}
        return Encoded(anchor_embeddings, key_embeddings, embeddings=embedded)


class Momentum(nn.Module, AbstractOneNetwork):
    """Keys come from a slow copy: theta' <- m theta' + (1 - m) theta after each step (Liu 2022, sec. 3.2.2).

    No gradient reaches the copy. Its batch norms run on batch statistics, as the network's own do.
    """

    equation = "u = h(x), v = h'(x'): h' follows h, weights w' <- c w' + (1 - c) w, c = {momentum}"
    separate_key_network = True  # which no gradient reaches: keys may be made elsewhere

    def __init__(
        self,
        network: nn.Module | HeadConfig,
        momentum: Value = 0.99,
        *,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        momentum = parse_value(momentum, "encoders.momentum")
        if not all(0 <= end <= 1 for end in ends(momentum)):
            raise UserError(f"encoders.momentum was {written(momentum)}; it must lie in [0, 1]")
        self.network, self.momentum = network_or_plan(network), momentum
        self.register_module("predictor", predictor)  # before the copy, also where it is made later
        self.slow = copy.deepcopy(self.network).requires_grad_(False)

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        self.network, self.predictor = head.network(inputs), head.make_predictor()
        self.slow = copy.deepcopy(self.network).requires_grad_(False)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted({*anchors}))
        anchor_embeddings = predicted(self.predictor, embedded)
        with torch.no_grad():
            key_embeddings = embed_views(self.slow, batch.views, sorted({*keys}))
        return Encoded(anchor_embeddings, key_embeddings, embeddings=embedded)

    @torch.no_grad()
    def advance(self, progress: Progress) -> None:
        weight = 1.0 - at(self.momentum, progress)
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.network.parameters()), weight)
