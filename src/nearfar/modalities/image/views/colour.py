"""Luminance and colour apart: CIELAB under D65, what CMC shows to its networks.

    L   how bright, one channel      ab   which colour, two channels, or a (green to red) and b (blue to yellow) apart

Scaled so that photographs have values of about one: L is centred at its middle grey and divided by 25, a and
b by 20.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Colours = Literal["rgb", "lab"]
LAB_CHANNELS = {2: (1, 2), 3: (1, 1, 1)}  # by how many views there are, those of each
MIDDLE, L_SCALE, AB_SCALE = 50.0, 25.0, 20.0
COLOUR_LIGHTNESS = 65.0  # at which ab alone is shown to people

# linear sRGB to XYZ, each row divided by the white point's coordinate, so that white is (1, 1, 1)
_TO_XYZ = (
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)
_KNEE = 6 / 29  # below its cube, the cube root of CIELAB is a straight line

ImageTensor = Float[Tensor, "image channel height width"]


def lab(rgb: ImageTensor) -> ImageTensor:
    """Three channels in [0, 1] (sRGB) as scaled L, a, b."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("ij,njhw->nihw", rgb.new_tensor(_TO_XYZ), linear)
    root = xyz.clamp_min(_KNEE**3) ** (1 / 3)
    x, y, z = torch.where(xyz > _KNEE**3, root, xyz / (3 * _KNEE**2) + 4 / 29).unbind(dim=1)
    lightness = (116 * y - 16 - MIDDLE) / L_SCALE
    return torch.stack([lightness, 500 * (x - y) / AB_SCALE, 200 * (y - z) / AB_SCALE], dim=1)


def rgb(scaled: ImageTensor) -> ImageTensor:
    """The inverse of `lab`, cut to [0, 1]; of one channel alone a grey picture, of ab alone its colours at
    one lightness."""
    zero = torch.zeros_like(scaled[:, :1])
    if scaled.shape[1] == 1:
        scaled = torch.cat([scaled, zero, zero], dim=1)
    elif scaled.shape[1] == 2:
        scaled = torch.cat([zero + (COLOUR_LIGHTNESS - MIDDLE) / L_SCALE, scaled], dim=1)
    lightness, a, b = scaled.unbind(dim=1)
    y = (lightness * L_SCALE + MIDDLE + 16) / 116
    root = torch.stack([y + a * AB_SCALE / 500, y, y - b * AB_SCALE / 200], dim=1)
    xyz = torch.where(root > _KNEE, root**3, 3 * _KNEE**2 * (root - 4 / 29))
    linear = torch.einsum("ij,njhw->nihw", torch.linalg.inv(scaled.new_tensor(_TO_XYZ)), xyz)
    curved = 1.055 * linear.clamp_min(0.0031308) ** (1 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, 12.92 * linear, curved).clamp(0, 1)


def split(image: ImageTensor, views: int = 2) -> tuple[ImageTensor, ...]:
    """The channels of scaled L, a, b that each of CMC's networks receives, one part for each view."""
    parts = image.split(LAB_CHANNELS[views], dim=1)
    formats = [torch.channels_last if part.shape[1] > 1 else torch.contiguous_format for part in parts]
    return tuple(part.contiguous(memory_format=layout) for part, layout in zip(parts, formats, strict=True))
