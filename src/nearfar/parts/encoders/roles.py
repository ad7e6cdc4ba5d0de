"""Who embeds the anchor and who the key.

    Shared(network)                                   SimCLR, instance discrimination
    Shared(network, stop_gradient=True, predictor=p)  SimSiam
    Momentum(network, momentum=0.999)                 MoCo
    Momentum(network, momentum=0.99, predictor=p)     BYOL
    Shared(network, stop_gradient=True)               SwAV: the head has prototypes
    Momentum(network, momentum=0.996)                 DINO: the head has prototypes
    Shared(network, target="mean")                    LeJEPA
    PerView(networks)                                   CMC, end-to-end contrast (per_view.py)
    InfoMax(network)                                  Deep InfoMax (infomax.py)

All views of one size go through a network in one forward pass: faster, and batch norm then sees the views
together, so its statistics are those of the mixture of views (as in single-device SimCLR), not of each view.
"""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.networks import embed_views, shape_of
from nearfar.core.schedules import Progress, Value, at, parse_within
from nearfar.core.types import Batch, Encoded, Pair
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, network_or_plan, planned_config, prototypes_of


def predicted(predictor: nn.Module | None, embedded: dict[int, Tensor]) -> dict[int, Tensor]:
    if predictor is None or not embedded:
        return embedded
    return dict(
        zip(embedded, predictor(torch.cat(list(embedded.values()))).chunk(len(embedded)), strict=True)
    )


class Shared(nn.Module, AbstractOneNetwork):
    """One network for both. `predictor` follows it on the anchor's side only; `stop_gradient` lets no
    gradient through the keys. `target="mean"`: the key of every view is the mean of all views, or of the
    large crops where there are small ones (Balestriero & LeCun 2025)."""

    equation = "u = h(x), v = h(x'): one network"
    remarks = (
        ("stop_gradient", True, "no gradient reaches v"),
        ("target", "mean", "v is the mean over the views x' of full size"),
    )
    has_prototypes = True

    def __init__(
        self,
        network: nn.Module | HeadConfig,
        stop_gradient: bool = False,
        target: Literal["view", "mean"] = "view",
        *,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.network = network_or_plan(network)
        self.register_module("predictor", predictor)
        self.stop_gradient, self.target = stop_gradient, target
        if target == "mean":
            self.estimate_subject = "about the mean of the views, the own one among them"

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        self.network, self.predictor = head.network(inputs), head.make_predictor()

    @property
    def vocabulary_size(self) -> int | None:
        prototypes = prototypes_of(self.network)
        return None if prototypes is None else len(prototypes)

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """Views with views, or every view with the mean, which is the only key."""
        if self.target == "view":
            return super().pairs(views, symmetric, key_views)
        return tuple(Pair(view, 0, 1 / views) for view in range(views))

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        views, mean = batch.views, self.target == "mean"
        large = [w for w in range(len(views)) if shape_of(views[w]) == shape_of(views[0])] if mean else []
        embedded = embed_views(self.network, views, sorted({*anchors, *(large if mean and keys else keys)}))
        anchor_embeddings = predicted(self.predictor, {w: embedded[w] for w in anchors})
        if mean:
            key_embeddings = {w: torch.stack([embedded[v] for v in large]).mean(dim=0) for w in keys}
        else:
            key_embeddings = {w: embedded[w] for w in keys}
        if self.stop_gradient:
            key_embeddings = {key: rows.detach() for key, rows in key_embeddings.items()}
        return Encoded(
            anchor_embeddings, key_embeddings, embeddings=embedded, vocabulary=prototypes_of(self.network)
        )


class Momentum(nn.Module, AbstractOneNetwork):
    """Keys come from a slow copy: theta' <- m theta' + (1 - m) theta after each step (Liu 2022, sec. 3.2.2).

    No gradient reaches the copy. Its batch norms run on batch statistics, as the network's own do.
    """

    equation = "u = h(x), v = h'(x'): h' follows h, weights w' <- c w' + (1 - c) w, c = {momentum}"
    separate_key_network = True  # which no gradient reaches: keys may be made elsewhere
    has_prototypes = True

    def __init__(
        self, network: nn.Module | HeadConfig, momentum: Value = 0.99, *, predictor: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.network, self.momentum = (
            network_or_plan(network),
            parse_within(momentum, "encoders.momentum", 0, 1),
        )
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
        return Encoded(
            anchor_embeddings,
            key_embeddings,
            embeddings=embedded,
            vocabulary=prototypes_of(self.network),
            key_vocabulary=prototypes_of(self.slow),
        )

    @property
    def vocabulary_size(self) -> int | None:
        prototypes = prototypes_of(self.network)
        return None if prototypes is None else len(prototypes)

    @torch.no_grad()
    def advance(self, progress: Progress) -> None:
        weight = 1.0 - at(self.momentum, progress)
        weights = [*zip(self.slow.parameters(), self.network.parameters(), strict=True)]
        for kind in {type(slow) for slow, _ in weights}:  # sharded weights and others cannot be mixed
            slow, fast = zip(*(pair for pair in weights if type(pair[0]) is kind), strict=True)
            torch._foreach_lerp_(slow, fast, weight)
