"""The views of images as settings: a named pipeline, how many views there are, how they are paired, and
changes to the pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nearfar.core.abstract import AbstractViewSettings
from nearfar.errors import UserError
from nearfar.modalities.image.views.augment import PIPELINES, pipelines
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours
from nearfar.modalities.image.views.pipeline import MARGIN, PlainImages, Views

if TYPE_CHECKING:
    from nearfar.modalities.image.data import ImageDescription


@dataclass(frozen=True)
class PipelineViews(AbstractViewSettings):
    """`count` views by one pipeline.

    `symmetric`: every ordered pair of views is contrasted, otherwise the first with each other one.
    `aligned`: all views share one crop. `colours`: rgb, or lab, of which each view shows some channels.
    `changes`: settings of `Augment` that differ from the pipeline's, as in `{"blur": 0.1, "second":
    {"solarise": 0.2}}`.
    """

    pipeline: ClassVar[str]
    further = "changes"

    count: int = 2
    symmetric: bool = True
    aligned: bool = False
    colours: Colours = "rgb"
    changes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 16:
            raise UserError(f"views.count was {self.count!r}; expected a whole number from 1 to 16")
        pipelines(self.pipeline, 32, self.changes)

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        views, role = choices["views"], choices["encoders"]["name"]
        network_per_view = parts["encoders"].network_per_view
        if views["colours"] != "lab" or (network_per_view and views["count"] in LAB_CHANNELS):
            return None
        return (
            f"views.colours was lab with encoders={role} and views.count={views['count']}: its three "
            "channels are shown as luminance and colour in 2 views or one by one in 3, and views with other "
            "channels need networks of their own; use encoders=per-view views.count=2, or 3"
        )

    def training(self, description: "ImageDescription", device: torch.device) -> Views:
        first, second = pipelines(self.pipeline, description.size, self.changes)
        # beyond two, views are more draws of the second pipeline
        every = [first, *[second] * (self.count - 1)]
        statistics = (description.size, description.mean, description.std)
        return Views(every, *statistics, device, aligned=self.aligned, colours=self.colours)

    def plain_view(self, description: "ImageDescription", device: torch.device) -> PlainImages:
        return PlainImages(description.size, description.mean, description.std, device, self.colours)

    def portable(self, description: "ImageDescription") -> tuple[dict[str, Any], str]:
        # imports torchvision, which takes a second
        from nearfar.modalities.image.views.portable import source

        size = description.size
        settings = {
            "size": size,
            "mean": list(description.mean),
            "std": list(description.std),
            "colours": self.colours,
        }
        steps = [
            f"a picture whose shorter side is above {2 * size} pixels is shrunk to that while it is decoded (bicubic)",
            "bytes are divided by 255",
            f"the shorter side is resized to {size}, or, where it has {int(size * MARGIN)} or more, to that "
            "(bilinear, antialiased)",
            f"the central {size} x {size} pixels are kept",
            "sRGB to scaled CIELAB (load.py has it)"
            if self.colours == "lab"
            else "mean is subtracted and std divided by, channel by channel",
        ]
        return {"channels": description.channels, **settings, "steps": steps}, source(self.colours)


class SimCLRViews(PipelineViews):
    pipeline = "simclr"


class SmallSimCLRViews(PipelineViews):
    pipeline = "simclr-small"


class BYOLViews(PipelineViews):
    pipeline = "byol"


class SmallBYOLViews(PipelineViews):
    pipeline = "byol-small"


class MoCoViews(PipelineViews):
    pipeline = "moco"


class InstDiscViews(PipelineViews):
    pipeline = "instdisc"


class CMCViews(PipelineViews):
    pipeline = "cmc"


class CropFlipViews(PipelineViews):
    pipeline = "crop-flip"


class UnchangedViews(PipelineViews):
    pipeline = "none"


_CLASSES: tuple[type[PipelineViews], ...] = (
    SimCLRViews,
    SmallSimCLRViews,
    BYOLViews,
    SmallBYOLViews,
    MoCoViews,
    InstDiscViews,
    CMCViews,
    CropFlipViews,
    UnchangedViews,
)
IMAGE_VIEWS = {kind.pipeline: kind for kind in _CLASSES}
assert set(IMAGE_VIEWS) == set(PIPELINES)


def view_channels(views: Mapping[str, Any], channels: int) -> tuple[int, ...]:
    """The number of channels of each view of images with `channels`."""
    if views["colours"] == "rgb":
        return (channels,) * views["count"]
    if channels != 3:
        raise UserError(
            f"views.colours was {views['colours']} but the images have {channels} channels; it needs colour "
            "images"
        )
    return LAB_CHANNELS[views["count"]]
