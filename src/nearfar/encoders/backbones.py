"""Networks from images to features, by name.

    resnet8-w8, -w16, -w32        a small residual net for CPUs
    resnet18, resnet34, resnet50  torchvision's, with a 3x3 stem and no first pooling for small inputs
    timm/NAME                     any timm model (extra: nearfar[timm])

Every backbone carries `dim`, the width of its features, and takes any channel count and image size.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.errors import UserError, not_one_of
from nearfar.extras import need

SMALL = 64  # up to this side, a 7x7 stride-2 stem and a pooling would throw most of the picture away


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut; halves the side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(inner)) + self.bn3(self.shortcut(x)), inplace=True)


class ResNet8(nn.Module):
    """A stem of `width` channels at full resolution, then residual blocks of 2, 4 and 8 times that, each
    halving the side, then the mean over places.

    Most of the arithmetic of a usual ResNet-8 is its first block at full resolution, where few channels keep a
    CPU's vector units half idle; spending it on width at lower resolution instead was 1.3 times as fast and
    gave twice the feature width.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.dim = 8 * width
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Residual(width, 2 * width), Residual(2 * width, 4 * width), Residual(4 * width, 8 * width)
        )

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.blocks(x).mean(dim=(2, 3))


def plain_resnet(make: Callable[..., nn.Module], channels: int, small: bool) -> nn.Module:
    """torchvision's ResNet without its classifier; `small`: with a 3x3 stem and no first pooling."""
    net = make(weights=None)
    if small:
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    net.fc = nn.Identity()
    return net


def _torchvision_resnet(name: str, channels: int, image_size: int) -> nn.Module:
    net: Any = plain_resnet(getattr(need("torchvision.models"), name), channels, image_size <= SMALL)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.dim = net.inplanes  # the channels of the last stage
    return net


class TimmBackbone(nn.Module):
    """A timm model as a backbone: its pooled features."""

    def __init__(self, net: nn.Module, dim: int, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.dim = net, dim
        self.name, self.options = name, options  # with which timm makes it again

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def _timm(name: str, channels: int, image_size: int) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise UserError(
            f"backbone was 'timm/{name}' but timm is not installed; pip install 'nearfar[timm]' or choose one of "
            + ", ".join(BACKBONES)
        ) from None
    if name not in timm.list_models():
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise UserError(f"backbone was 'timm/{name}', which timm does not have{hint}")
    options = {"pretrained": False, "num_classes": 0, "in_chans": channels, "img_size": image_size}
    try:
        net = timm.create_model(name, **options)
    except TypeError:  # convolutional models take any size and no img_size
        del options["img_size"]
        net = timm.create_model(name, **options)
    # num_features is not the width of every model's output, so one picture is asked
    with torch.no_grad():
        dim = net.eval()(torch.zeros(1, channels, image_size, image_size)).shape[1]
    return TimmBackbone(net.train(), dim, name, options)


@dataclass(frozen=True)
class _Named:
    make: Callable[[int, int], nn.Module]  # (channels, image_size) -> module with .dim
    about: str


BACKBONES: dict[str, _Named] = {
    "resnet8-w8": _Named(lambda c, s: ResNet8(8, c), "77 thousand weights, 64 features: for trials"),
    "resnet8-w16": _Named(
        lambda c, s: ResNet8(16, c), "303 thousand weights, 128 features: minutes on a CPU"
    ),
    "resnet8-w32": _Named(lambda c, s: ResNet8(32, c), "1.2 million weights, 256 features"),
    "resnet18": _Named(
        lambda c, s: _torchvision_resnet("resnet18", c, s), "11 million weights, 512 features"
    ),
    "resnet34": _Named(
        lambda c, s: _torchvision_resnet("resnet34", c, s), "21 million weights, 512 features"
    ),
    "resnet50": _Named(
        lambda c, s: _torchvision_resnet("resnet50", c, s), "24 million weights, 2048 features"
    ),
}


def check_backbone(name: str) -> str:
    """The name, if there is such a backbone; otherwise a sentence."""
    if name in BACKBONES or re.fullmatch(r"timm/[\w.\-]+", name):
        return name
    raise not_one_of("backbone", name, BACKBONES, also=" and timm/NAME")


def backbone(name: str, channels: int = 3, image_size: int = 32) -> nn.Module:
    """The named network, ready to train, with `dim`."""
    check_backbone(name)
    if name.startswith("timm/"):
        return _timm(name.removeprefix("timm/"), channels, image_size)
    return BACKBONES[name].make(channels, image_size)


def parameters_of(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
