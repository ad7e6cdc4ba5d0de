"""Which features of a trained network are looked at: pooled, the map before pooling, or what the head makes of them."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import Network
from nearfar.parts.encoders.mobile import Pooled
from nearfar.parts.encoders.per_view import ConcatFeatures
from nearfar.parts.encoders.stages import maps_of

Kind = Literal["pooled", "map", "head"]
KINDS: tuple[Kind, ...] = ("pooled", "map", "head")


class LastMap(nn.Module):
    """The feature map that a backbone pools, flattened: every channel at every place (Wu et al. 2021, sec. 5)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        return last_map(self.body, x).flatten(1)


def last_map(body: nn.Module, x: Tensor) -> Tensor:
    """What the last stage of a backbone gives, before the mean over places is taken."""
    if isinstance(body, Pooled):
        return body.features(x)
    inside = getattr(body, "net", body)  # timm's networks stand in a wrapper
    if hasattr(inside, "forward_features"):
        return inside.forward_features(x)  # type: ignore[operator]
    if hasattr(body, "layer4") or hasattr(body, "maps"):
        return maps_of(body, x, "features=map reads the last one")[-1]
    raise UserError(
        f"features was map, but {type(body).__name__} has no stages known here; use a resnet or a timm backbone, or pooled features"
    )


def features_of(encoders: AbstractEncoders, kind: Kind = "pooled") -> nn.Module:
    """The network from a plain view to the features asked for; its weights are the encoders' own."""
    if kind not in KINDS:
        raise UserError(f"features was {kind!r}; expected {', '.join(KINDS)}")
    backbone = encoders.backbone()
    if kind == "pooled":
        return backbone
    if kind == "map":
        bodies = backbone.backbones if isinstance(backbone, ConcatFeatures) else [backbone]
        parts: list[nn.Module] = [LastMap(body) for body in bodies]
    else:
        parts = [network for network in encoders.view_networks() if isinstance(network, Network)]
        if not parts:
            raise UserError("features was head, but this method's networks have none; use pooled features")
    return ConcatFeatures(parts, backbone.channels) if isinstance(backbone, ConcatFeatures) else parts[0]
