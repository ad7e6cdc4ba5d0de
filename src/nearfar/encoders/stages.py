"""A backbone's feature map one stage before the last, and its features, in one pass."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.encoders.backbones import ResNet8
from nearfar.encoders.config import InputSpec
from nearfar.errors import UserError

Map = Float[Tensor, "image channel side side"]


def map_and_features(
    body: nn.Module, x: Float[Tensor, "image channel height width"]
) -> tuple[Map, Float[Tensor, "image dim"]]:
    """The features are exactly `body(x)`."""
    if isinstance(body, ResNet8):
        inner = body.blocks[:-1](F.relu(body.bn1(body.conv1(x)), inplace=True))
        return inner, body.blocks[-1](inner).mean(dim=(2, 3))
    if not hasattr(body, "layer4"):
        raise UserError(
            "the backbone has no stages, and encoders=infomax needs a map from inside it; expected backbone="
            "resnet8-w8, resnet8-w16, resnet8-w32, resnet18, resnet34, resnet50"
        )
    stem = body.maxpool(body.relu(body.bn1(body.conv1(x))))  # type: ignore[operator]
    inner = body.layer3(body.layer2(body.layer1(stem)))  # type: ignore[operator]
    return inner, body.avgpool(body.layer4(inner)).flatten(1)  # type: ignore[operator]


@torch.no_grad()
def map_shape(body: nn.Module, seen: InputSpec) -> tuple[int, int]:
    """(channels, side) of the map."""
    weight = next(body.parameters())
    picture = torch.zeros(1, *seen.shapes[0], device=weight.device)
    training = body.training
    inner, _ = map_and_features(body.eval(), picture)
    body.train(training)
    return inner.shape[1], inner.shape[2]


class Stages(nn.Module):
    """A convolutional backbone as the maps after each of its stages, finest first: what a feature pyramid stands on.

    `strides` and `channels` are those of the maps; stages finer than `least` pixels are left out, if two are left.
    """

    def __init__(self, body: nn.Module, channels: int, least: int = 4) -> None:
        super().__init__()
        self.body = body
        side = 64
        with torch.no_grad():
            training = body.training
            maps = self._maps(body.eval(), torch.zeros(1, channels, side, side))
            body.train(training)
        strides = [side // found.shape[2] for found in maps]
        used = [place for place, stride in enumerate(strides) if stride >= least]
        self.used = used if len(used) > 1 else list(range(len(maps)))[-2:]
        self.strides = [strides[place] for place in self.used]
        self.channels = [maps[place].shape[1] for place in self.used]

    @staticmethod
    def _maps(body: nn.Module, x: Tensor) -> list[Tensor]:
        if isinstance(body, ResNet8):
            found, x = [], F.relu(body.bn1(body.conv1(x)), inplace=True)
            for block in body.blocks:
                x = block(x)
                found.append(x)
            return found
        if not hasattr(body, "layer4"):
            raise UserError(
                "the backbone has no stages, and a detector stands on a pyramid of them; expected a run with backbone="
                "resnet8-w8, resnet8-w16, resnet8-w32, resnet18, resnet34, resnet50"
            )
        x, found = body.maxpool(body.relu(body.bn1(body.conv1(x)))), []  # type: ignore[operator]
        for name in ("layer1", "layer2", "layer3", "layer4"):
            x = getattr(body, name)(x)
            found.append(x)
        return found

    def forward(self, x: Float[Tensor, "image channel height width"]) -> dict[str, Tensor]:
        maps = self._maps(self.body, x)
        return {str(level): maps[place] for level, place in enumerate(self.used)}
