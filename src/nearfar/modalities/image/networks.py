"""Backbones of images: torchvision's, timm's and small ResNets, by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice, Pretrained, ViewFamily
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.image.data import ImageDescription, Images
from nearfar.modalities.image.pretrained import describe_weights, find_pretrained, read_hf_config
from nearfar.modalities.image.views.settings import large_count, view_channels, view_sizes
from nearfar.parts.encoders import BACKBONES, InputSpec, check_backbone, pictured
from nearfar.parts.encoders.libraries import check_hf_config

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601)


class ImageNetworks(AbstractNetworks):
    names: ClassVar[tuple[str, ...]] = tuple(BACKBONES)
    default = "resnet18"
    small = "resnet8-w16"
    smallest = "resnet8-w16"

    def check(self, name: str, plural: str) -> str:
        return check_backbone(name)

    def config(self, name: str, stored: Any = None) -> dict[str, Any] | None:
        if not name.startswith("hf/"):
            return None
        if stored in (None, "none"):
            return read_hf_config(name)
        if not isinstance(stored, Mapping):
            raise UserError(f"backbone_config was {stored!r}; expected a mapping such as {{model_type: vit}}")
        return check_hf_config(stored, name)

    def pretrained(self, name: str) -> Pretrained:
        return find_pretrained(name)

    def describe_weights(self, file: Path) -> Pretrained:
        return describe_weights(file)

    def start_settings(self, weights: Pretrained, data: DataSet | None) -> dict[str, Any]:
        """Without statistics where the images have other channels."""
        settings = weights.settings()
        if not isinstance(data, Images) or data.channels == len(settings.get("mean", ())):
            return settings
        return {key: value for key, value in settings.items() if key not in ("mean", "std")}

    def inputs(self, network: str, choice: Choice, description: ImageDescription) -> InputSpec:
        channels, sizes = view_channels(choice, description.channels), view_sizes(choice, description.size)
        context = {"instances": description.instances, "key_views": large_count(choice)}
        return pictured(network, channels, description.size, context, sizes, lambda: self.config(network))

    def view_converter(
        self, views: ViewFamily, description: ImageDescription, target: ImageDescription, network_name: str
    ) -> Callable[[Tensor], Tensor]:
        """Converts grey to colour and back, normalisation, and size."""
        ours, theirs = description, target
        if ours.channels != theirs.channels and {ours.channels, theirs.channels} != {1, 3}:
            raise UserError(
                f"{network_name} takes {theirs.channels} channels, but the pictures have {ours.channels}"
            )
        if ours.values != theirs.values:
            raise UserError(
                f"{network_name} takes images of {theirs.values}, but the pictures are {ours.values}"
            )
        (mean, std), (their_mean, their_std) = ours.in_values(), theirs.in_values()
        same = (ours.channels, mean, std) == (theirs.channels, their_mean, their_std)

        def convert(view: Tensor) -> Tensor:
            if not same:
                view = view * _per_channel(std, view) + _per_channel(mean, view)
                if ours.channels < theirs.channels:
                    view = view.expand(-1, theirs.channels, -1, -1)
                elif ours.channels > theirs.channels:
                    view = (view * _per_channel(LUMINANCE, view)).sum(dim=1, keepdim=True)
                view = (view - _per_channel(their_mean, view)) / _per_channel(their_std, view)
            if view.shape[-1] != theirs.size:
                view = functional.interpolate(
                    view, (theirs.size, theirs.size), mode="bilinear", antialias=True, align_corners=False
                )
            return view

        return convert


def _per_channel(numbers: tuple[float, ...], view: Tensor) -> Tensor:
    return torch.tensor(numbers, device=view.device, dtype=view.dtype)[:, None, None]
