"""torchvision's VGG, MobileNetV2 and ShuffleNetV2 without classifiers, for any number of channels.

At ImageNet's size a stem throws three quarters or more of the places away at once. For `small` pictures it
does not, as those do who train these networks on CIFAR: VGG halves the side three times instead of five, the
others begin with stride 1.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from nearfar.system.extras import need

VGG_CONVOLUTIONS = {
    8: (1, 1, 1, 1, 1),
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
SHUFFLENET_WIDTHS = {
    0.5: (24, 48, 96, 192, 1024),
    1.0: (24, 116, 232, 464, 1024),
    1.5: (24, 176, 352, 704, 1024),
    2.0: (24, 244, 488, 976, 2048),
}


class Pooled(nn.Module):
    """Convolutions, then the mean over places."""

    def __init__(self, features: nn.Module, dim: int) -> None:
        super().__init__()
        self.features, self.dim = features, dim

    def forward(self, x: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        return self.features(x).mean(dim=(2, 3))


def plain_vgg(depth: int, channels: int, small: bool) -> nn.Module:
    """torchvision's VGG with batch norm, under its keys; VGG-8 has one layer a stage (Tian et al. 2020b)."""
    plan: list[Any] = []
    for width, count in zip((64, 128, 256, 512, 512), VGG_CONVOLUTIONS[depth], strict=True):
        plan += [width] * count + ["M"]
    features = need("torchvision.models.vgg").make_layers(plan, batch_norm=True)
    pools = [place for place, layer in enumerate(features) if isinstance(layer, nn.MaxPool2d)]
    # the last one always: after it is the mean over places
    for place in pools[3:] if small else pools[4:]:
        features[place] = nn.Identity()
    if channels != 3:
        features[0] = nn.Conv2d(channels, 64, 3, padding=1)
    for layer in features:
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return Pooled(features, 512)


def plain_mobilenet(width: float, channels: int, small: bool) -> nn.Module:
    """torchvision's MobileNetV2, its widths multiplied; `small`: stride 1 in stem and first strided stage."""
    net = need("torchvision.models").mobilenet_v2(weights=None, width_mult=width)
    stem = net.features[0][0]
    if small or channels != 3:
        stride = 1 if small else 2
        net.features[0][0] = nn.Conv2d(channels, stem.out_channels, 3, stride, padding=1, bias=False)
        nn.init.kaiming_normal_(net.features[0][0].weight, mode="fan_out", nonlinearity="relu")
    if small:
        net.features[2].conv[1][0].stride = (1, 1)
    net.classifier = nn.Identity()
    net.dim = net.last_channel
    return net


def plain_shufflenet(width: float, channels: int, small: bool) -> nn.Module:
    """torchvision's ShuffleNetV2 of one of its widths; `small`: stride 1 in the stem, no pooling."""
    module = need("torchvision.models.shufflenetv2")
    net = module.ShuffleNetV2([4, 8, 4], list(SHUFFLENET_WIDTHS[width]), num_classes=1)
    if small or channels != 3:
        net.conv1[0] = nn.Conv2d(channels, 24, 3, 1 if small else 2, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1[0].weight, mode="fan_out", nonlinearity="relu")
    if small:
        net.maxpool = nn.Identity()
    net.fc = nn.Identity()
    net.dim = SHUFFLENET_WIDTHS[width][-1]
    return net
