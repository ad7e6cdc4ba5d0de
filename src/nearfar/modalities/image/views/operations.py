"""Operations beyond the kernel's: functions of images in [0, 1] and of random numbers, applied after it and
before normalising.

An operation's numbers are drawn under its own name, so that a new one changes no draw of another, and no old
run. It is a frozen dataclass with a `name`, how many numbers it needs (`slots`), its settings, of which
`probability` is the first, and a call. In `OPERATIONS` it is a setting of any pipeline: `views.erase=0.5`,
`views.second.erase.scale=[0.1,0.2]`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.config.schema import between, check_fields, check_given, rising
from nearfar.modalities.image.views.colour import ImageTensor

# types of settings
Probability = Annotated[float, between(0, 1, "a probability")]
Share = Annotated[float, between(0, 1)]
Shares = Annotated[tuple[float, float], rising(0, 1)]
Ratios = Annotated[tuple[float, float], rising(0)]


class Operation(Protocol):
    name: ClassVar[str]
    # random numbers an image needs, in addition to the one that decides whether it is changed
    slots: ClassVar[int]

    @property
    def probability(self) -> float: ...

    def __call__(self, images: ImageTensor, numbers: Float[Tensor, "image slot"]) -> ImageTensor:
        """The images changed, each by its own numbers in [0, 1)."""


@dataclass(frozen=True)
class Erase:
    """A rectangle of noise-free grey somewhere in the image (Zhong et al. 2020, random erasing, with one
    value)."""

    name: ClassVar[str] = "erase"
    slots: ClassVar[int] = 4
    probability: Probability = 0.5
    scale: Shares = (0.02, 0.33)  # of the image's area
    ratio: Ratios = (0.3, 3.3)  # width / height
    value: Share = 0.5

    def __post_init__(self) -> None:
        check_fields(self, f"views.{self.name}")

    def __call__(self, images: ImageTensor, numbers: Float[Tensor, "image slot"]) -> ImageTensor:
        height, width = images.shape[2:]
        low, high = self.scale
        area = (low + (high - low) * numbers[:, 0]) * height * width
        low_ratio, high_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(low_ratio + (high_ratio - low_ratio) * numbers[:, 1])
        tall = torch.round(torch.sqrt(area / ratio)).clamp(1, height)
        broad = torch.round(torch.sqrt(area * ratio)).clamp(1, width)
        top, left = (
            torch.floor(numbers[:, 2] * (height - tall + 1)),
            torch.floor(numbers[:, 3] * (width - broad + 1)),
        )
        rows, columns = (torch.arange(side, device=images.device)[None] for side in (height, width))
        inside = (rows >= top[:, None]) & (rows < (top + tall)[:, None])  # (image, height)
        across = (columns >= left[:, None]) & (columns < (left + broad)[:, None])  # (image, width)
        return images.masked_fill((inside[:, :, None] & across[:, None, :])[:, None], self.value)


@dataclass(frozen=True)
class Rotate:
    """The image turned about its centre by a uniform angle of at most `degrees` either way (Sáez Maldonado
    2021, Fig. 10).

    What comes into the corners is the image mirrored at its edges: black ones would tell every angle.
    """

    name: ClassVar[str] = "rotate"
    slots: ClassVar[int] = 1
    probability: Probability = 0.5
    degrees: Annotated[float, between(0, 180)] = 30.0

    def __post_init__(self) -> None:
        check_fields(self, f"views.{self.name}")

    def __call__(self, images: ImageTensor, numbers: Float[Tensor, "image slot"]) -> ImageTensor:
        height, width = images.shape[2:]
        angle = torch.deg2rad(self.degrees * (2 * numbers[:, 0] - 1))  # counter-clockwise
        cosine, sine, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
        # where a place of the view is in the image; both sides are counted from -1 to 1, whatever they are in
        # pixels
        across = torch.stack([cosine, -sine * height / width, zero], dim=1)
        down = torch.stack([sine * width / height, cosine, zero], dim=1)
        # (image, height, width, 2)
        grid = F.affine_grid(torch.stack([across, down], dim=1), [*images.shape], align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


@dataclass(frozen=True)
class Pad:
    """A border of `pixels` zeros, then a random crop of the image's own size: CIFAR's usual view with
    `views.crop=0`. It is the image moved by up to `pixels` whole pixels either way."""

    name: ClassVar[str] = "pad"
    slots: ClassVar[int] = 2
    probability: Probability = 1.0
    pixels: Annotated[int, between(0, 512)] = 4

    def __post_init__(self) -> None:
        check_fields(self, f"views.{self.name}")

    def __call__(self, images: ImageTensor, numbers: Float[Tensor, "image slot"]) -> ImageTensor:
        height, width = images.shape[2:]
        padded = F.pad(images, [self.pixels] * 4)
        top, left = torch.floor(numbers * (2 * self.pixels + 1)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        place = torch.arange(len(images), device=images.device)[:, None, None]
        # (image, height, width, channel) to (image, channel, height, width)
        return padded[place, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


OPERATIONS: dict[str, Callable[..., Operation]] = {"erase": Erase, "rotate": Rotate, "pad": Pad}


def operation(name: str, value: Any, key: str) -> Operation:
    """The operation that a setting describes: a number is its probability, a mapping its settings."""
    settings = value if isinstance(value, Mapping) else {"probability": value}
    return OPERATIONS[name](**check_given(OPERATIONS[name], settings, f"{key}.{name}"))
