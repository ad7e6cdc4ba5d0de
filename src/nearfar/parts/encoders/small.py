"""Networks for small pictures that neither torchvision nor timm has.

    resnet20 … resnet110    He et al. 2016, sec. 4.2: 6n + 2 layers, three stages of 16, 32 and 64 channels
    resnet8x4, resnet32x4   the same, stages four times and stem twice as wide (Tian et al. 2020b)
    wrn-16-2                Zagoruyko & Komodakis 2016: 6n + 4 layers, norms first, w times as wide
    resnet6-w48             ours, for CPUs: a stem of 4x4 patches, two residual blocks
    shufflenetv1            Zhang et al. 2018: grouped 1x1 convolutions, channels shuffled between them

All but resnet6 work at full resolution first, whatever the size of the picture; features are the mean over
places of the last map.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Staged(nn.Module):
    """A stem, then stages; `dim` features."""

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Module], dim: int) -> None:
        super().__init__()
        self.stem, self.stages, self.dim = stem, nn.Sequential(*stages), dim
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def maps(self, x: Float[Tensor, "image channel height width"]) -> list[Tensor]:
        """The map after each stage, finest first."""
        maps, x = [], self.stem(x)
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        return self.stages(self.stem(x)).mean(dim=(2, 3))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, ReLU after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(inner)) + self.shortcut(x), inplace=True)


class WideBlock(nn.Module):
    """Norm and ReLU before each of two 3x3 convolutions; a 1x1 shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=False)
        inner = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return inner + (x if self.shortcut is None else self.shortcut(active))


class ShuffleUnit(nn.Module):
    """1x1 in groups, shuffle, 3x3 by channel, 1x1 in groups; added to the input or, with stride 2, joined."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, first: int) -> None:
        super().__init__()
        self.stride, self.groups = stride, groups
        added = outputs - inputs if stride == 2 else outputs
        inner = outputs // 4
        self.squeeze = nn.Conv2d(inputs, inner, 1, groups=first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, added, 1, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(added)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.squeeze(x)), inplace=True)
        inner = F.channel_shuffle(inner, self.groups)
        inner = self.bn3(self.expand(self.bn2(self.depthwise(inner))))
        if self.stride == 1:
            return F.relu(inner + x, inplace=True)
        mean = F.avg_pool2d(x, 3, stride=2, padding=1)
        return F.relu(torch.cat([inner, mean], dim=1), inplace=True)


def small_resnet(depth: int, width: int, channels: int) -> Staged:
    """He et al.'s network for CIFAR with `depth` = 6n + 2 layers, stages `width` times as wide."""
    stem = 16 if width == 1 else 32
    widths = [16 * width, 32 * width, 64 * width]
    stages = _stages(BasicBlock, stem, widths, (depth - 2) // 6)
    first = nn.Sequential(
        nn.Conv2d(channels, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(inplace=True)
    )
    return Staged(first, stages, widths[-1])


def patch_resnet(width: int, channels: int) -> Staged:
    """Overlapping patches of 4x4 at every second pixel, then blocks of 2 and 4 times `width` channels, each
    halving the side. Layers at full resolution have few channels, which a CPU computes slowly; here are
    none."""
    stem = nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )
    stages = [nn.Sequential(BasicBlock(times * width, 2 * times * width, stride=2)) for times in (1, 2)]
    return Staged(stem, stages, 4 * width)


def wide_resnet(depth: int, width: int, channels: int) -> Staged:
    """WRN-depth-width, `depth` = 6n + 4."""
    widths = [16 * width, 32 * width, 64 * width]
    stages = _stages(WideBlock, 16, widths, (depth - 4) // 6)
    stages[-1].extend([nn.BatchNorm2d(widths[-1]), nn.ReLU(inplace=True)])
    return Staged(nn.Conv2d(channels, 16, 3, padding=1, bias=False), stages, widths[-1])


def _stages(block: type[nn.Module], inputs: int, widths: Sequence[int], blocks: int) -> list[nn.Sequential]:
    """Stages of `blocks` blocks, the second and third starting with stride 2."""
    stages = []
    for place, outputs in enumerate(widths):
        first = block(inputs, outputs, 1 if place == 0 else 2)
        rest = [block(outputs, outputs, 1) for _ in range(blocks - 1)]
        stages.append(nn.Sequential(first, *rest))
        inputs = outputs
    return stages


def shufflenet_v1(channels: int, small: bool) -> Staged:
    """ShuffleNet with three groups; `small`: nothing is thrown away before its first stage."""
    stem: list[nn.Module] = [
        nn.Conv2d(channels, 24, 3, 1 if small else 2, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(inplace=True),
    ]
    if not small:
        stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    stages, inputs, groups = [], 24, 3
    for outputs, repeats in ((240, 4), (480, 8), (960, 4)):
        # the paper's first 1x1 convolution is not grouped: it has too few inputs
        units = [ShuffleUnit(inputs, outputs, 2, groups, 1 if inputs == 24 else groups)]
        units += [ShuffleUnit(outputs, outputs, 1, groups, groups) for _ in range(repeats - 1)]
        stages.append(nn.Sequential(*units))
        inputs = outputs
    return Staged(nn.Sequential(*stem), stages, inputs)
