"""A trained backbone for people without nearfar: its weights under the keys of the library it came from, and
Python source that makes the network again.

    resnet18        torchvision's own keys, no fc                plain_resnet(torchvision.models.resnet18, …)
    timm/NAME       timm's own keys                              timm.create_model(NAME, num_classes=0, …)
    hf/NAME         transformers' own keys behind `net.`         HFBackbone({"model_type": …})
    vgg8, …         torchvision's own keys, no classifier        plain_vgg(8, channels=3, small=True)
    resnet8-w16     keys of our classes, whose source goes along ResNet8(16, 3)
    wrn-16-2, …     the same                                     wide_resnet(16, 2, 3)
    resnet6-w48     the same                                     patch_resnet(48, 3)
    CMC's pair      `backbones.0.`, `backbones.1.`               ConcatFeatures([…, …], (1, 2))
    anyone's        the module's own keys                        only its author
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nearfar.parts.encoders import mobile
from nearfar.parts.encoders import small as small_networks
from nearfar.parts.encoders.backbones import SMALL, ResNet8, plain_resnet
from nearfar.parts.encoders.libraries import HFBackbone, TimmBackbone
from nearfar.parts.encoders.per_view import ConcatFeatures
from nearfar.parts.encoders.small import BasicBlock, Staged

Shape = tuple[int, ...]
_NEED = "def need(name):\n    return importlib.import_module(name)\n"  # what our sources import with


@dataclass(frozen=True)
class Portable:
    """`expression` makes the network after `imports` and `definitions`; empty if only its author can."""

    weights: dict[str, Tensor]
    library: str
    differs: str = ""  # from what the library gives by that name
    expression: str = ""
    imports: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()


def portable(body: nn.Module, name: str, shapes: Sequence[Shape]) -> Portable:
    """The weights and source of a network of that name, for these shapes, for use without nearfar."""
    if isinstance(body, ConcatFeatures):
        return _side_by_side(body, name, shapes)
    if isinstance(body, TimmBackbone):
        options = ", ".join(f"{key}={value!r}" for key, value in body.options.items())
        expression = f"timm.create_model({body.name!r}, {options})"
        return Portable(_weights(body.net), "timm", "without its classifier", expression, ("import timm",))
    if isinstance(body, HFBackbone):
        imports = ("import importlib", "import inspect", "import transformers")
        definitions = (_NEED, *_sources(HFBackbone))
        differs = "its pooled features, its class token or the mean over places are the output"
        return Portable(
            _weights(body), "transformers", differs, f"HFBackbone({body.config!r})", imports, definitions
        )
    if isinstance(body, ResNet8):
        expression = f"ResNet8({body.dim // 8}, {body.conv1.in_channels})"
        return Portable(_weights(body), "torch", "", expression, definitions=_sources(BasicBlock, ResNet8))
    if isinstance(body, Staged):
        return _own_source(body, name, *shapes[0][:2])
    if name.startswith("resnet"):
        return _resnet(body, name, *shapes[0][:2])
    if name.startswith(("vgg", "mobilenet", "shufflenet")):
        return _mobile(body, name, *shapes[0][:2])
    return Portable(_weights(body), "own")


def _own_source(body: Staged, name: str, channels: int, side: int) -> Portable:
    """Networks whose source is ours: the functions that make them and the classes they use."""
    numbers = [int(digits) for digits in re.findall(r"\d+", name)]
    parts: tuple[Any, ...]
    if name == "shufflenetv1":
        expression, parts = (
            f"shufflenet_v1({channels}, {side <= SMALL})",
            (small_networks.ShuffleUnit, small_networks.shufflenet_v1),
        )
    elif name.startswith("resnet6-"):
        expression = f"patch_resnet({numbers[1]}, {channels})"
        parts = (small_networks.BasicBlock, small_networks.patch_resnet)
    else:
        is_wide = name.startswith("wrn")
        depth, width = (*numbers, 1)[:2]
        make = small_networks.wide_resnet if is_wide else small_networks.small_resnet
        block = small_networks.WideBlock if is_wide else small_networks.BasicBlock
        expression, parts = (
            f"{make.__name__}({depth}, {width}, {channels})",
            (block, small_networks._stages, make),
        )
    return Portable(_weights(body), "torch", "", expression, definitions=_sources(Staged, *parts))


def _mobile(body: nn.Module, name: str, channels: int, side: int) -> Portable:
    """torchvision's layers, put together by a function whose source goes along."""
    family, number = re.fullmatch(r"(vgg|mobilenetv2|shufflenetv2)x?([\d.]*)", name).groups()  # type: ignore[union-attr]
    make: Any = {
        "vgg": mobile.plain_vgg,
        "mobilenetv2": mobile.plain_mobilenet,
        "shufflenetv2": mobile.plain_shufflenet,
    }[family]
    size = int(number) if family == "vgg" else float(number or 1)
    differs = "its classifier is left out, so that the output is the pooled features" + (
        "; for small pictures fewer of its layers have stride 2 or pool" if side <= SMALL else ""
    )
    expression = f"{make.__name__}({size}, channels={channels}, small={side <= SMALL})"
    tables = (
        f"VGG_CONVOLUTIONS = {mobile.VGG_CONVOLUTIONS}",
        f"SHUFFLENET_WIDTHS = {mobile.SHUFFLENET_WIDTHS}",
    )
    return Portable(
        _weights(body),
        "torchvision",
        differs,
        expression,
        ("import importlib", "import torchvision"),
        (_NEED, *tables, *_sources(mobile.Pooled, make)),
    )


def _resnet(body: nn.Module, name: str, channels: int, side: int) -> Portable:
    small = side <= SMALL
    depth, width = re.fullmatch(r"resnet(\d+)(?:x(\d+))?", name).groups()  # type: ignore[union-attr]
    differs = ["fc is nn.Identity, so that the output is the pooled features"]
    if small:
        differs.append(f"conv1 is 3x3 with stride 1 for {channels} channels and maxpool is nn.Identity")
    elif channels != 3:
        differs.append(f"conv1 takes {channels} channels")
    if width:
        differs.append(f"every layer is {width} times as wide")
    width_argument = f", width={width}" if width else ""
    expression = (
        f"plain_resnet(torchvision.models.resnet{depth}, channels={channels}, small={small}{width_argument})"
    )
    return Portable(
        _weights(body),
        "torchvision",
        "; ".join(differs),
        expression,
        ("import torchvision",),
        _sources(plain_resnet),
    )


def _side_by_side(body: ConcatFeatures, name: str, shapes: Sequence[Shape]) -> Portable:
    parts = [portable(net, name, [shape]) for net, shape in zip(body.backbones, shapes, strict=False)]
    weights = {
        f"backbones.{place}.{key}": value
        for place, part in enumerate(parts)
        for key, value in part.weights.items()
    }
    if not all(part.expression for part in parts):
        return Portable(weights, "own")
    first = parts[0]
    expression = f"ConcatFeatures([{', '.join(part.expression for part in parts)}], {body.channels})"
    return Portable(
        weights,
        first.library,
        f"{len(parts)} of them side by side, each with channels of its own"
        + f"; {first.differs}" * bool(first.differs),
        expression,
        first.imports,
        (*first.definitions, *_sources(ConcatFeatures)),
    )


def keys_of_body(body: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Portable weights under the keys that the body has in nearfar: the inverse of `portable`."""
    keys = list(body.state_dict())
    outside = list(portable_keys(body))
    return {
        key: weights[exported_key]
        for key, exported_key in zip(keys, outside, strict=True)
        if exported_key in weights
    }


def portable_keys(body: nn.Module) -> list[str]:
    """The keys under which each of the body's tensors is exported, in its own order."""
    if isinstance(body, TimmBackbone):
        return list(body.net.state_dict())
    if isinstance(body, ConcatFeatures):
        return [
            f"backbones.{place}.{key}"
            for place, net in enumerate(body.backbones)
            for key in portable_keys(net)
        ]
    return list(body.state_dict())


def _weights(body: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in body.state_dict().items()}


def _sources(*definitions: Any) -> tuple[str, ...]:
    return tuple(inspect.getsource(definition) for definition in definitions)
