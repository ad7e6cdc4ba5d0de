"""Backbones of images: torchvision's, timm's and small ResNets, by name."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice, ViewFamily
from nearfar.modalities.image.data import ImageDescription
from nearfar.modalities.image.views.settings import large_count, view_channels, view_sizes
from nearfar.parts.encoders import BACKBONES, InputSpec, check_backbone, pictured

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601)


class ImageNetworks(AbstractNetworks):
    names: ClassVar[tuple[str, ...]] = tuple(BACKBONES)
    default = "resnet18"
    small = "resnet8-w16"
    smallest = "resnet8-w16"

    def check(self, name: str, plural: str) -> str:
        return check_backbone(name)

    def inputs(self, network: str, choice: Choice, description: ImageDescription) -> InputSpec:
        channels, sizes = view_channels(choice, description.channels), view_sizes(choice, description.size)
        context = {"instances": description.instances, "key_views": large_count(choice)}
        return pictured(network, channels, description.size, context, sizes)

    def view_converter(
        self, views: ViewFamily, description: ImageDescription, target: ImageDescription, network_name: str
    ) -> Callable[[Tensor], Tensor]:
        """Converts grey to colour and back, normalisation, and size."""
        ours, theirs = description, target
        if ours.channels != theirs.channels and {ours.channels, theirs.channels} != {1, 3}:
            raise UserError(
                f"{network_name} takes {theirs.channels} channels, but the pictures have {ours.channels}"
            )
        same = (ours.channels, ours.mean, ours.std) == (theirs.channels, theirs.mean, theirs.std)

        def convert(view: Tensor) -> Tensor:
            if not same:
                view = view * _per_channel(ours.std, view) + _per_channel(ours.mean, view)
                if ours.channels < theirs.channels:
                    view = view.expand(-1, theirs.channels, -1, -1)
                elif ours.channels > theirs.channels:
                    view = (view * _per_channel(LUMINANCE, view)).sum(dim=1, keepdim=True)
                view = (view - _per_channel(theirs.mean, view)) / _per_channel(theirs.std, view)
            if view.shape[-1] != theirs.size:
                view = functional.interpolate(
                    view, (theirs.size, theirs.size), mode="bilinear", antialias=True, align_corners=False
                )
            return view

        return convert


def _per_channel(numbers: tuple[float, ...], view: Tensor) -> Tensor:
    return torch.tensor(numbers, device=view.device, dtype=view.dtype)[:, None, None]
