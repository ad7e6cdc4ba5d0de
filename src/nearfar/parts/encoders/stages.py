"""Feature maps of a backbone: stage by stage, and as the features that are evaluated."""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import InputSpec, Network
from nearfar.parts.encoders.mobile import Pooled
from nearfar.parts.encoders.per_view import ConcatFeatures

FeatureMap = Float[Tensor, "image channel side side"]


def map_and_features(
    body: nn.Module, x: Float[Tensor, "image channel height width"]
) -> tuple[FeatureMap, Float[Tensor, "image dim"]]:
    """The features are exactly `body(x)`."""
    *_, inner, last = maps_of(body, x, "encoders=infomax needs a map from inside it")
    return inner, last.mean(dim=(2, 3))


def maps_of(
    body: nn.Module, x: Float[Tensor, "image channel height width"], purpose: str
) -> list[FeatureMap]:
    """The map after each stage, finest first; features are the mean over places of the last. `purpose` is
    named in the error for a network without stages."""
    if not _has_maps(body):
        raise UserError(
            f"the backbone has no stages, and {purpose}; expected backbone=resnet8-w16, resnet18 to "
            "resnet152, resnet20 or another resnet, wrn-16-2 or another wrn, shufflenetv1"
        )
    if (own_maps := _maps_method(body)) is not None:
        return own_maps(x)
    x, maps = body.maxpool(body.relu(body.bn1(body.conv1(x)))), []  # type: ignore[operator]
    for name in ("layer1", "layer2", "layer3", "layer4"):
        x = getattr(body, name)(x)
        maps.append(x)
    return maps


def _maps_method(body: nn.Module) -> Callable[[Tensor], list[Tensor]] | None:
    """The method of networks that return their maps themselves, as ours do."""
    return getattr(body, "maps", None)


def _has_maps(body: nn.Module) -> bool:
    """Whether a network returns its maps, or has torchvision's names for the stages of a ResNet."""
    return _maps_method(body) is not None or hasattr(body, "layer4")


@torch.no_grad()
def map_shape(body: nn.Module, inputs: InputSpec) -> tuple[int, int]:
    """(channels, side) of the map."""
    weight = next(body.parameters())
    picture = torch.zeros(1, *inputs.shapes[0], device=weight.device)
    training = body.training
    inner, _ = map_and_features(body.eval(), picture)
    body.train(training)
    return inner.shape[1], inner.shape[2]


class Stages(nn.Module):
    """A convolutional backbone as the maps after its stages, finest first, for a feature pyramid.

    `strides` and `channels` are the maps'; stages below `min_stride` are left out, if two remain.
    """

    def __init__(self, body: nn.Module, channels: int, min_stride: int = 4) -> None:
        super().__init__()
        self.body = body
        side = 64
        with torch.no_grad():
            training = body.training
            maps = self._maps(body.eval(), torch.zeros(1, channels, side, side))
            body.train(training)
        strides = [side // feature_map.shape[2] for feature_map in maps]
        used = [place for place, stride in enumerate(strides) if stride >= min_stride]
        self.used = used if len(used) > 1 else list(range(len(maps)))[-2:]
        self.strides = [strides[place] for place in self.used]
        self.channels = [maps[place].shape[1] for place in self.used]

    @staticmethod
    def _maps(body: nn.Module, x: Tensor) -> list[Tensor]:
        return maps_of(body, x, "a detector stands on a pyramid of them")

    def forward(self, x: Float[Tensor, "image channel height width"]) -> dict[str, Tensor]:
        maps = self._maps(self.body, x)
        return {str(level): maps[place] for level, place in enumerate(self.used)}


StageParts = tuple[list[nn.Parameter], list[nn.Module]]  # weights that belong to no part, and parts
# names of the list of blocks or stages: timm's, transformers', torchvision's and ours
_TRUNKS = ("stages", "layers", "layer", "blocks", "features")
GROUPS = 4  # of the blocks of a transformer, as a ResNet has four stages


def named_stages(body: nn.Module) -> dict[str, StageParts]:
    """What the stages of a backbone consist of, by name, in the order of the forward pass: `stem` is all that
    stands before `stage1`. Empty where they are not known.

        ResNet          stage1 to stage4: layer1 to layer4 (or its stages)
        ConvNeXt, Swin  stage1 to stage4: its stages, each with the downsampling before it
        ViT             stage1 to stage4: quarters of its blocks

    A norm, pooling or projection after the last stage belongs to none.
    """
    groups = _stage_modules(body)
    if len(groups) < 2:
        return {}
    numbered = {f"stage{number}": group for number, group in enumerate(groups, start=1)}
    in_stages = {id(module) for group in groups for part in group for module in part.modules()}
    first = next(groups[0][0].parameters())
    # what is registered before the first stage, and is not around it
    stem: list[nn.Parameter] = []
    for parameter in body.parameters():
        if parameter is first:
            break
        stem.append(parameter)
    early = {id(parameter) for parameter in stem}
    parts = [module for module in body.modules() if id(module) not in in_stages and _is_within(module, early)]
    return {"stem": (stem, parts), **{name: ([], list(group)) for name, group in numbered.items()}}


def _is_within(module: nn.Module, weights: set[int]) -> bool:
    """Whether a module has weights, and all of them are among these."""
    identities = [id(parameter) for parameter in module.parameters()]
    return bool(identities) and weights.issuperset(identities)


def _stage_modules(body: nn.Module) -> list[list[nn.Module]]:
    """The modules of each stage."""
    for module in body.modules():
        layers = [getattr(module, f"layer{number}", None) for number in range(1, 5)]
        if all(isinstance(layer, nn.Module) for layer in layers):
            return [[layer] for layer in layers if layer is not None]
        for name in _TRUNKS:
            trunk = getattr(module, name, None)
            if isinstance(trunk, (nn.Sequential, nn.ModuleList)) and _has_blocks(trunk):
                return _grouped(name, list(trunk))
    return []


def _has_blocks(trunk: nn.Module) -> bool:
    entries = list(trunk.children())
    return len(entries) > 1 and all(next(entry.children(), None) is not None for entry in entries)


def _grouped(name: str, entries: list[nn.Module]) -> list[list[nn.Module]]:
    """Stages of the entries of a trunk: each is one, or they are blocks, or (torchvision) the stem, then stages
    with the downsampling before each."""
    if name == "features":
        alternating = len(entries) % 2 == 0
        return [entries[1:2], *(entries[k : k + 2] for k in range(2, len(entries), 2))] if alternating else []
    count = len(entries)
    if count <= GROUPS or isinstance(entries[0], nn.Sequential):  # timm's EfficientNets have more stages
        return [[entry] for entry in entries]
    bounds = [count * group // GROUPS for group in range(GROUPS + 1)]
    return [entries[a:b] for a, b in pairwise(bounds)]


Kind = Literal["pooled", "map", "head"]
KINDS: tuple[Kind, ...] = ("pooled", "map", "head")


class LastMap(nn.Module):
    """The map that a backbone pools, flattened: channels at every place (Wu et al. 2021, sec. 5)."""

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
    if _has_maps(body):
        return maps_of(body, x, "features=map reads the last one")[-1]
    raise UserError(
        f"features was map, but {type(body).__name__} has no stages known here; use a resnet or a timm "
        "backbone, or pooled features"
    )


def features_of(encoders: AbstractEncoders, kind: Kind = "pooled") -> nn.Module:
    """The network from a plain view to the requested features; it shares the encoders' weights."""
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
