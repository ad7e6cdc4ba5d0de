"""The views of images as settings: a named pipeline, how many views there are, how they are paired, and
changes to the pipeline."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nearfar.core.abstract import AbstractViewSettings
from nearfar.errors import UserError, check_whole
from nearfar.modalities.image.views.augment import PIPELINES, SMALL_CROPS, pipelines, small_crops
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours
from nearfar.modalities.image.views.pipeline import LARGEST, MARGIN, SMALLEST, PlainImages, Views

if TYPE_CHECKING:
    from nearfar.modalities.image.data import ImageDescription


MAX_VIEWS = 16


def read_crops(text: str) -> tuple[tuple[int, int], ...]:
    """`2x32,4x16` as ((2, 32), (4, 16)): how many crops of how many pixels a side, the largest first."""
    groups = [re.fullmatch(r"(\d{1,2})x(\d{1,4})", part.strip()) for part in re.split("[,+]", text)]
    crops = tuple((int(group[1]), int(group[2])) for group in groups if group)
    sizes = [size for _, size in crops]
    if (
        len(crops) < len(groups)
        or sizes != sorted({*sizes}, reverse=True)
        or not all(SMALLEST <= size <= LARGEST for size in sizes)
        or not all(count for count, _ in crops)
        or sum(count for count, _ in crops) > MAX_VIEWS
    ):
        raise UserError(
            f"views.crops was {text!r}; expected crops such as 2x32,4x16 (or 2x32+4x16): how many of how many "
            f"pixels a side, the largest first, up to {MAX_VIEWS} of {SMALLEST} to {LARGEST} pixels"
        )
    return crops


@dataclass(frozen=True)
class PipelineViews(AbstractViewSettings):
    """`count` views by one pipeline.

    `symmetric`: every ordered pair of views is contrasted, otherwise the first with each other one.
    `aligned`: all views share one crop. `colours`: rgb, or lab, of which each view shows some channels.
    `crops`: views of several sizes, as in `2x32,4x16`: two crops of 32 pixels a side and four of 16, in place
    of `count` views of the image size. The largest crops are keys; all others are anchors only.
    `changes`: settings of `Augment` that differ from the pipeline's, as in `{"blur": 0.1, "second":
    {"solarise": 0.2}, "small": {"crop_scale": [0.1, 0.3]}}`.
    """

    pipeline: ClassVar[str]
    further = "changes"

    count: int = 2
    symmetric: bool = True
    aligned: bool = False
    colours: Colours = "rgb"
    crops: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        check_whole("views.count", self.count, 1, MAX_VIEWS)
        pipelines(self.pipeline, 32, self.changes)
        small_crops(self.pipeline, 32, self.changes)
        crops = read_crops(self.crops) if self.crops else ()
        if crops:
            total = sum(count for count, _ in crops)
            if self.count not in (1, 2, total):  # 1 and 2: those of recipes
                raise UserError(
                    f"views.count was {self.count} with views.crops={self.crops}, which are {total} views; leave "
                    "views.count out"
                )
            object.__setattr__(self, "count", total)
        if SMALL_CROPS in self.changes and len(crops) < 2:
            raise UserError(
                f"views.{SMALL_CROPS} was given without small crops; set views.crops, e.g. 2x32,4x16"
            )

    @property
    def key_views(self) -> int | None:  # type: ignore[override]
        """How many large crops there are; None: all views have one size."""
        return read_crops(self.crops)[0][0] if self.crops else None

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        views, role = choices["views"], choices["encoders"]["name"]
        if views["colours"] != "lab":
            return None
        large = large_count(views)
        if not parts["encoders"].network_per_view or large not in LAB_CHANNELS:
            return (
                f"views.colours was lab with encoders={role} and {large} views of full size: its three "
                "channels are shown as luminance and colour in 2 views or one by one in 3, and views with other "
                "channels need networks of their own; use encoders=per-view views.count=2, or 3"
            )
        if views["count"] > large and choices["encoders"].get("keep") == "first":
            return (
                f"views.crops was {views['crops']} with views.colours=lab and encoders.keep=first, whose first "
                "network would see the channels of all; use encoders.keep=all"
            )
        return None

    def training(self, description: "ImageDescription", device: torch.device) -> Views:
        sizes, large = view_sizes(self.section(), description.size), self.key_views or self.count
        first, second = pipelines(self.pipeline, sizes[0], self.changes)
        small = small_crops(self.pipeline, sizes[0], self.changes)
        # beyond two, views are more draws of the second pipeline
        every = [first, *[second] * (large - 1), *[small] * (self.count - large)]
        return Views(
            every,
            sizes,
            description.mean,
            description.std,
            device,
            aligned=self.aligned,
            colours=self.colours,
            key_views=self.key_views,
            spans=description.spans(),
        )

    def plain_view(self, description: "ImageDescription", device: torch.device) -> PlainImages:
        statistics = description.size, description.mean, description.std
        return PlainImages(*statistics, device, self.colours, description.spans())

    def remark(self, description: "ImageDescription") -> str | None:
        if description.channels == 3 or (description.channels == 1 and description.values == "uint8"):
            return None
        pair = pipelines(self.pipeline, view_sizes(self.section(), description.size)[0], self.changes)
        if not any(view.greyscale or view.jitter * (view.saturation + view.hue) for view in pair):
            return None
        bands = "1 band" if description.channels == 1 else f"{description.channels} bands"
        return (
            f"images of {bands}: saturation, hue and greyscale need three bands and are left out; brightness "
            "and contrast change each band"
        )

    def portable(self, description: "ImageDescription") -> tuple[dict[str, Any], str]:
        # imports torchvision, which takes a second
        from nearfar.modalities.image.views.portable import source

        size = description.size
        settings = {
            "size": size,
            "mean": list(description.mean),
            "std": list(description.std),
            "colours": self.colours,
            "values": description.values,
            "low": list(description.low),
            "high": list(description.high),
        }
        steps = [
            f"a picture whose shorter side is above {2 * size} pixels is shrunk to that while it is decoded (bicubic)"
            if description.values == "uint8"
            else f"bands whose shorter side is above {2 * size} pixels are shrunk to that (bicubic), which load.py "
            "leaves to the caller",
            "bytes are divided by 255"
            if description.values == "uint8"
            else f"{description.values} values become 0 to 1, band by band: {_listed_spans(description)}",
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


_KINDS = (SimCLRViews, SmallSimCLRViews, BYOLViews, SmallBYOLViews, MoCoViews, InstDiscViews, CMCViews)
IMAGE_VIEWS: dict[str, type[PipelineViews]] = {
    kind.pipeline: kind for kind in (*_KINDS, CropFlipViews, UnchangedViews)
}
assert set(IMAGE_VIEWS) == set(PIPELINES)


def _listed_spans(description: "ImageDescription") -> str:
    """`0 to 4095, 12 to 980`: the values of each band that are 0 and 1."""
    pairs = zip(description.low, description.high, strict=True)
    return ", ".join(f"{low:g} to {high:g}" for low, high in pairs)


def view_channels(views: Mapping[str, Any], channels: int) -> tuple[int, ...]:
    """The number of channels of each view of images with `channels`."""
    count = views["count"]
    if views["colours"] == "rgb":
        return (channels,) * count
    if channels != 3:
        raise UserError(
            f"views.colours was {views['colours']} but the images have {channels} channels; it needs colour "
            "images"
        )
    large = large_count(views)
    return tuple(LAB_CHANNELS[large][view % large] for view in range(count))


def view_sizes(views: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """The side of each view of images that are shown at `size` pixels."""
    crops = read_crops(views["crops"]) if views["crops"] else ((views["count"], size),)
    return tuple(side for count, side in crops for _ in range(count))


def large_count(views: Mapping[str, Any]) -> int:
    """The number of views of full size."""
    return read_crops(views["crops"])[0][0] if views["crops"] else views["count"]
