"""Networks from images to features, by name.

    resnet8-w8, -w16, -w32        a small residual net for CPUs
    resnet6-w32, -w48, -w64       faster, with wider features: no layer at full resolution (small.py)
    resnet18 … resnet152          torchvision's; 3x3 stem, no first pooling for small inputs; x2: twice as wide
    resnet20, wrn-16-2, …         networks of CIFAR's size (small.py)
    vgg8, mobilenetv2, …          torchvision's layers; less downsampling for small inputs (mobile.py)
    timm/NAME, hf/NAME            any timm model, image encoders of transformers (libraries.py)
    NAME+group, +group-ws, +none  one of the others with group norms, these and standardised weights, or no norms

Every backbone carries `dim`, the width of its features, and takes any channel count and image size.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from nearfar.errors import UserError, not_one_of
from nearfar.parts.encoders.libraries import hf_backbone, timm_backbone
from nearfar.parts.encoders.mobile import plain_mobilenet, plain_shufflenet, plain_vgg
from nearfar.parts.encoders.small import BasicBlock, patch_resnet, shufflenet_v1, small_resnet, wide_resnet
from nearfar.system.extras import need

SMALL = 64  # up to this side, a 7x7 stride-2 stem and a pooling would throw most of the picture away


class ResNet8(nn.Module):
    """A stem of `width` channels at full resolution, then residual blocks of 2, 4 and 8 times that, each
    halving the side, then the mean over places.

    Most of the arithmetic of a usual ResNet-8 is its first block at full resolution, where few channels keep
    a CPU's vector units half idle; spending it on width at lower resolution instead was 1.3 times as fast and
    gave twice the feature width.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.dim = 8 * width
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            *(BasicBlock(times * width, 2 * times * width, stride=2) for times in (1, 2, 4))
        )

    def maps(self, x: Float[Tensor, "image channel height width"]) -> list[Tensor]:
        """The map after each block, finest first."""
        maps, x = [], F.relu(self.bn1(self.conv1(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return maps

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.blocks(x).mean(dim=(2, 3))


def plain_resnet(make: Callable[..., nn.Module], channels: int, small: bool, width: int = 1) -> nn.Module:
    """torchvision's ResNet without classifier, `width` times as wide; `small`: 3x3 stem, no pooling."""
    net = make(weights=None)
    for place, layer in list(net.named_modules()) if width > 1 else ():
        if not isinstance(layer, (nn.Conv2d, nn.BatchNorm2d)):
            continue
        wide_layer: Any
        if isinstance(layer, nn.Conv2d):
            shape: Any = {"kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
            wide_layer = nn.Conv2d(layer.in_channels * width, layer.out_channels * width, bias=False, **shape)
            nn.init.kaiming_normal_(wide_layer.weight, mode="fan_out", nonlinearity="relu")
        else:
            wide_layer = nn.BatchNorm2d(layer.num_features * width)
        parent, _, name = place.rpartition(".")
        setattr(net.get_submodule(parent), name, wide_layer)
    if small:
        net.conv1 = nn.Conv2d(channels, 64 * width, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3 or width > 1:
        net.conv1 = nn.Conv2d(channels, 64 * width, 7, stride=2, padding=3, bias=False)
    net.fc = nn.Identity()
    return net


def _torchvision_resnet(depth: int, width: int, channels: int, image_size: int) -> nn.Module:
    make = getattr(need("torchvision.models"), f"resnet{depth}")
    net: Any = plain_resnet(make, channels, image_size <= SMALL, width)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.dim = net.inplanes * width  # the channels of the last stage
    return net


Make = Callable[[int, int], nn.Module]  # (channels, image_size) -> module with .dim
DEEPEST, WIDEST = 302, 16


def _resnets(depth: int, width: int) -> Make | None:
    """By their depth: torchvision's five, otherwise those for CIFAR, which have 6n + 2 layers."""
    if depth in (18, 34, 50, 101, 152):
        return partial(_torchvision_resnet, depth, width)
    if depth % 6 == 2 and 8 <= depth <= DEEPEST:
        return lambda c, s: small_resnet(depth, width, c)
    return None


def backbone_maker(name: str) -> Make | None:
    """The function that makes the network of that name; None if there is none. `xW` multiplies its
    widths, `+` is followed by other norms than batch norm."""
    if match := re.fullmatch(r"([^+]+)\+(group|group-ws|none)", name):
        make, norms = backbone_maker(match[1]), cast("Norms", match[2])
        return make and (lambda c, s: replace_norms(make(c, s), norms))
    if match := re.fullmatch(r"resnet8-w(8|16|32)", name):
        base = int(match[1])
        return lambda c, s: ResNet8(base, c)
    if match := re.fullmatch(r"resnet6-w(32|48|64)", name):
        first = int(match[1])
        return lambda c, s: patch_resnet(first, c)
    if match := re.fullmatch(r"resnet(\d{1,4})(?:x(\d{1,2}))?", name):
        width = int(match[2] or 1)
        return _resnets(int(match[1]), width) if 1 <= width <= WIDEST else None
    if match := re.fullmatch(r"wrn-(\d{1,4})-(\d{1,2})", name):
        depth, width = int(match[1]), int(match[2])
        sound = depth % 6 == 4 and 10 <= depth <= DEEPEST and 1 <= width <= WIDEST
        return (lambda c, s: wide_resnet(depth, width, c)) if sound else None
    if match := re.fullmatch(r"vgg(8|11|13|16|19)", name):
        layers = int(match[1])
        return lambda c, s: plain_vgg(layers, c, s <= SMALL)
    if match := re.fullmatch(r"mobilenetv2(?:x(0\.25|0\.5|0\.75|1\.4|2))?", name):
        times = float(match[1] or 1)
        return lambda c, s: plain_mobilenet(times, c, s <= SMALL)
    if match := re.fullmatch(r"shufflenetv2(?:x(0\.5|1\.5|2))?", name):
        times = float(match[1] or 1)
        return lambda c, s: plain_shufflenet(times, c, s <= SMALL)
    if name == "shufflenetv1":
        return lambda c, s: shufflenet_v1(c, s <= SMALL)
    return None


# the listed ones, each with its size and use; `backbone_maker` knows whole families
BACKBONES: dict[str, str] = {
    "resnet8-w8": "76 thousand weights, 64 features: for trials",
    "resnet8-w16": "303 thousand weights, 128 features: minutes on a CPU",
    "resnet6-w48": "649 thousand weights, 192 features: most accuracy for minutes on a CPU; also -w32, -w64",
    "resnet8-w32": "1.2 million weights, 256 features",
    "resnet18": "11 million weights, 512 features",
    "resnet34": "21 million weights, 512 features",
    "resnet50": "24 million weights, 2048 features; resnet50x2 is twice as wide",
    "resnet101": "42 million weights, 2048 features",
    "resnet152": "58 million weights, 2048 features",
    "resnet20": "for CIFAR: 272 thousand weights, 64 features",
    "resnet32": "for CIFAR: 466 thousand weights, 64 features",
    "resnet44": "for CIFAR: 661 thousand weights, 64 features",
    "resnet56": "for CIFAR: 855 thousand weights, 64 features",
    "resnet110": "for CIFAR: 1.7 million weights, 64 features",
    "resnet8x4": "for CIFAR: 1.2 million weights, 256 features",
    "resnet32x4": "for CIFAR: 7.4 million weights, 256 features",
    "wrn-16-2": "for CIFAR: 690 thousand weights, 128 features; WRN-d-w of any depth 6n + 4 and width",
    "wrn-40-1": "for CIFAR: 563 thousand weights, 64 features",
    "wrn-40-2": "for CIFAR: 2.2 million weights, 128 features",
    "vgg8": "3.9 million weights, 512 features",
    "vgg13": "9.4 million weights, 512 features",
    "mobilenetv2": "2.2 million weights, 1280 features; mobilenetv2x0.5 is half as wide",
    "shufflenetv1": "905 thousand weights, 960 features",
    "shufflenetv2": "1.3 million weights, 1024 features; shufflenetv2x0.5 is half as wide",
}


STAGED = tuple(  # have maps after each of their stages (stages.py)
    name for name in BACKBONES if name.startswith(("resnet", "wrn")) or name == "shufflenetv1"
)


def check_backbone(name: str) -> str:
    """The name, if there is such a backbone; otherwise a sentence."""
    if backbone_maker(name) is not None or re.fullmatch(r"timm/[\w.\-]+|hf/.+", name):
        return name
    raise not_one_of("backbone", name, BACKBONES, suffix=", timm/NAME and hf/NAME")


def backbone(
    name: str,
    channels: int = 3,
    image_size: int = 32,
    sides: Sequence[int] = (),
    config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The named network, ready to train, with `dim`. It is made for pictures of `image_size` pixels; `sides`:
    those of further views. `config`: of a network of transformers."""
    check_backbone(name)
    make = backbone_maker(name)
    if make is not None:
        return make(channels, image_size)
    if name.startswith("timm/"):
        return timm_backbone(name.removeprefix("timm/"), channels, image_size, sides)
    if config is None:
        raise UserError(f"backbone was {name!r}, which is made from a configuration; none was given")
    return hf_backbone(config, name, channels, image_size, sides)


def parameters_of(module: nn.Module) -> int:
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise UserError("the network has lazy layers without weights; call it once on a batch of images")
    return sum(p.numel() for p in module.parameters())


# ----------------------------------------------------------------------------------------------- other norms

# Batch norm lets an embedding depend on the other instances of its batch. These norms do not (Richemond et al.
# 2020 study whether BYOL needs that).
Norms = Literal["group", "group-ws", "none"]
MAX_GROUPS = 16


class StandardisedConv2d(nn.Conv2d):
    """A convolution with kernels of mean 0 and variance 1 / fan-in (Qiao et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        length = torch.linalg.vector_norm(centred, dim=(1, 2, 3), keepdim=True)
        return self._conv_forward(x, centred / (length + 1e-8), self.bias)


def replace_norms(network: nn.Module, norms: Norms) -> nn.Module:
    """The network with its batch norms replaced, and its convolutions standardised with `group-ws`."""
    for place, layer in list(network.named_modules()):
        replacement: nn.Module
        if isinstance(layer, nn.BatchNorm2d):
            groups = next(g for g in range(MAX_GROUPS, 0, -1) if layer.num_features % g == 0)
            replacement = nn.Identity() if norms == "none" else nn.GroupNorm(groups, layer.num_features)
        elif isinstance(layer, nn.Conv2d) and norms == "group-ws":
            sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
            replacement = StandardisedConv2d(*sizes, layer.dilation, layer.groups, layer.bias is not None)  # type: ignore[arg-type]
            replacement.load_state_dict(layer.state_dict())
        else:
            continue
        parent, _, name = place.rpartition(".")
        setattr(network.get_submodule(parent), name, replacement)
    return network
