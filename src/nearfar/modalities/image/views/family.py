"""The views of images by name: a pipeline, how many views it makes, how they are paired, and changes to the pipeline."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch

from nearfar.config.schema import convert
from nearfar.errors import UserError
from nearfar.modalities.base import AbstractViewFamily, Choice, PlainView
from nearfar.modalities.image.views.augment import PIPELINES, pipelines
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours
from nearfar.modalities.image.views.pipeline import MARGIN, Plain, Views
from nearfar.modalities.image.views.portable import source

METHOD_KEYS = (
    "count",
    "symmetric",
    "aligned",
    "colours",
)  # of the views' section, settings that are not the pipeline's


class Described(Protocol):
    """What views need to know of images (`ImageDescription`)."""

    @property
    def channels(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


class ImageViews(AbstractViewFamily):
    names: ClassVar[tuple[str, ...]] = tuple(PIPELINES)
    default = "simclr"
    resizable = True

    def check(self, choice: Choice) -> dict[str, Any]:
        count = choice.get("count", 2)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 16:
            raise UserError(f"views.count was {count!r}; expected a whole number from 1 to 16")
        flags = {key: choice.get(key, default) for key, default in (("symmetric", True), ("aligned", False))}
        for key, value in flags.items():
            if not isinstance(value, bool):
                raise UserError(f"views.{key} was {value!r}; expected true or false")
        colours = convert(choice.get("colours", "rgb"), Colours, "views.colours")
        changes = augmentation(choice)
        pipelines(choice["name"], 32, changes)
        return {"name": choice["name"], "count": count, **flags, "colours": colours, **changes}

    def conflict(self, choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        views, role = choices["views"], choices["encoders"]["name"]
        network_per_view = parts["encoders"].network_per_view
        if views["colours"] != "lab" or (network_per_view and views["count"] in LAB_CHANNELS):
            return None
        return (
            f"views.colours was lab with encoders={role} and views.count={views['count']}: its three channels are shown as luminance and "
            "colour in 2 views or one by one in 3, and views with other channels need networks of their own; use encoders=per-view "
            "views.count=2, or 3"
        )

    def training(self, choice: Choice, description: Described, device: torch.device) -> Views:
        first, second = pipelines(choice["name"], description.size, augmentation(choice))
        # beyond two, views are more draws of the second pipeline
        every = [first, *[second] * (choice["count"] - 1)]
        return Views(
            every,
            description.size,
            description.mean,
            description.std,
            device,
            aligned=choice["aligned"],
            colours=choice["colours"],
        )

    def plain(self, choice: Choice, description: Described, device: torch.device) -> PlainView:
        return Plain(description.size, description.mean, description.std, device, choice["colours"])

    def portable(self, choice: Choice, description: Described) -> tuple[dict[str, Any], str]:
        size = description.size
        settings = {
            "size": size,
            "mean": list(description.mean),
            "std": list(description.std),
            "colours": choice["colours"],
        }
        steps = [
            f"a picture whose shorter side is above {2 * size} pixels is shrunk to that while it is decoded (bicubic)",
            "bytes are divided by 255",
            f"the shorter side is resized to {size}, or, where it has {int(size * MARGIN)} or more, to that (bilinear, antialiased)",
            f"the central {size} x {size} pixels are kept",
            "sRGB to scaled CIELAB (load.py has it)"
            if choice["colours"] == "lab"
            else "mean is subtracted and std divided by, channel by channel",
        ]
        return {"channels": description.channels, **settings, "steps": steps}, source(choice["colours"])


def augmentation(views: Choice) -> dict[str, Any]:
    """The settings of the views' section that change its pipeline."""
    return {key: value for key, value in views.items() if key != "name" and key not in METHOD_KEYS}


def view_channels(views: Choice, channels: int) -> tuple[int, ...]:
    """The number of channels of each view of images with `channels`."""
    if views["colours"] == "rgb":
        return (channels,) * views["count"]
    if channels != 3:
        raise UserError(
            f"views.colours was {views['colours']} but the images have {channels} channels; it needs colour images"
        )
    return LAB_CHANNELS[views["count"]]
