"""One network for each view: for luminance and colour (CMC), or query and key (end-to-end)."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.networks import backbone_of, embed_views
from nearfar.core.types import Batch, Encoded, Pair, view_pairs
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, planned_config
from nearfar.parts.encoders.roles import predicted


class ConcatFeatures(nn.Module):
    """Features of several backbones side by side, each of its channels: all, or its own in order."""

    def __init__(self, backbones: Sequence[nn.Module], channels: Sequence[int]) -> None:
        super().__init__()
        self.backbones = nn.ModuleList(backbones)
        self.channels = tuple(channels)
        widths = [getattr(backbone, "dim", None) for backbone in backbones]
        self.dim = sum(widths) if all(isinstance(width, int) for width in widths) else None  # type: ignore[arg-type]

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        all_channels = all(count == x.shape[1] for count in self.channels)
        parts = (
            [x] * len(self.channels)
            if all_channels
            else x[:, : sum(self.channels)].split(self.channels, dim=1)
        )
        return torch.cat([net(part) for net, part in zip(self.backbones, parts, strict=True)], dim=1)


class PerView(nn.Module, AbstractEncoders):
    """View v has network v: no weight is shared (Liu 2022, sec. 3.2.1; CMC in Wu et al. 2021, sec. 2).

    There are as many weights as views times those of one network. `keep="all"` puts the networks' features
    side by side afterwards (CMC), `keep="first"` keeps the first network alone (the query encoder). Small
    crops share the networks: they go to each in turn, or to the query encoder. Views of one network
    are not contrasted.
    """

    equation = "u = h_1(x), v = h_2(x'): no weight shared"

    network_per_view = True  # for each view, which may then have other channels

    def __init__(
        self, networks: Sequence[nn.Module] | HeadConfig, keep: Literal["all", "first"] = "all"
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList([networks.planned()] if isinstance(networks, HeadConfig) else networks)
        self.keep = keep
        self.channels: tuple[int, ...] = ()
        self.register_module("predictor", None)
        self.key_groups = len(self.networks)

    def meet(self, inputs: InputSpec) -> None:
        head, count = planned_config(self.networks[0]), inputs.context.get("key_views") or len(inputs.shapes)
        self.networks = nn.ModuleList(head.network(inputs, view) for view in range(count))
        self.channels = tuple(shape[0] for shape in inputs.shapes[:count])
        self.predictor = head.make_predictor()
        self.key_groups = len(self.networks)

    def view_networks(self) -> tuple[nn.Module, ...]:
        return tuple(self.networks)

    def group_of(self, key: int) -> int:
        return self._network_of(key)  # a view's network makes its keys

    def _network_of(self, view: int) -> int:
        count = len(self.networks)
        return view if view < count else 0 if self.keep == "first" else view % count

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        if views > len(self.networks) and key_views != len(self.networks):
            raise UserError(f"got {views} views for {len(self.networks)} per-view networks")
        pairs = [
            (anchor, key)
            for anchor, key in view_pairs(views, symmetric, key_views)
            if views == 1 or self._network_of(anchor) != self._network_of(key)
        ]
        return tuple(Pair(anchor, key, 1 / len(pairs)) for anchor, key in pairs)

    def backbone(self) -> nn.Module:
        backbones = [backbone_of(network) for network in self.networks]
        count = 1 if self.keep == "first" else len(backbones)
        if count == 1 and len({*self.channels}) <= 1:  # every network sees what the plain view shows
            return backbones[0]
        return ConcatFeatures(backbones[:count], self.channels[:count])

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        requested = sorted({*anchors, *keys})
        embedded: dict[int, Tensor] = {}
        for place, network in enumerate(self.networks):
            own_views = [w for w in requested if self._network_of(w) == place]
            embedded.update(embed_views(network, batch.views, own_views))
        embedded = {w: embedded[w] for w in requested}
        anchor_embeddings = predicted(self.predictor, {w: embedded[w] for w in anchors})
        return Encoded(anchor_embeddings, {w: embedded[w] for w in keys}, embeddings=embedded)
