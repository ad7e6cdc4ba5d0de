"""The plain view of a picture by torch and torchvision alone: the source that is exported with weights.

The same filter and the same rounding as `PlainImages`, which the tests compare it with.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as pictures

from nearfar.modalities.image.decode import opaque
from nearfar.modalities.image.views.colour import AB_SCALE, L_SCALE, MIDDLE, lab


def shrunk(image: Any, size: int) -> Any:
    """A PIL image as nearfar decodes it: an image much larger than needed is shrunk, bicubically, while it is opened."""
    width, height = image.size
    scale = min(1.0, 2 * size / min(width, height), 8 * size / max(width, height))
    if scale == 1.0:
        return image
    small = max(1, round(width * scale)), max(1, round(height * scale))
    drafted = image.draft(image.mode, small)  # JPEG alone has one
    return opaque(image).resize(small, 3, box=drafted[1] if drafted else None, reducing_gap=3.0)


def plain_view(
    image: Any,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    colours: str = "rgb",
    low: Sequence[float] = (),
    high: Sequence[float] = (),
) -> Tensor:
    """A picture as the encoder is shown it, (1, channel, size, size): a PIL image, or a tensor of bytes (channel, height, width).
    Where `low` and `high` are given, a tensor of the bands' own values, which become 0 and 1 there.

    The shorter side is resized to `size`, or to 256/224 of it where the picture has that many pixels (bilinear, antialiased,
    on floats); of that the central size × size; then (x - mean) / std in each channel. The picture is upright: a turn that
    EXIF asks for comes before.
    """
    tensor = image if isinstance(image, Tensor) else pictures.pil_to_tensor(opaque(shrunk(image, size)))
    if low:
        lowest, highest = (torch.tensor(list(values)).view(1, -1, 1, 1) for values in (low, high))
        view = (tensor[None].float() - lowest) / (highest - lowest)
    else:
        view = tensor[None].float() / 255
    height, width = view.shape[2:]
    shorter, enlarged = min(height, width), int(size * 256 / 224)
    target = enlarged if shorter >= enlarged else size
    rows, columns = height * target // shorter, width * target // shorter
    if (rows, columns) != (height, width):
        view = pictures.resize(view, [rows, columns], antialias=True)
    top, left = round((rows - size) / 2), round((columns - size) / 2)
    view = view[:, :, top : top + size, left : left + size]
    if colours == "lab":
        return lab(view)
    shift, scale = (torch.tensor(list(values)).view(1, -1, 1, 1) for values in (mean, std))
    return (view - shift) / scale


def source(colours: str) -> str:
    """What defines `plain_view` in a file of its own, after torch, Tensor and torchvision's functions as `pictures`."""
    if colours != "lab":
        return "\n\n".join(inspect.getsource(function) for function in (opaque, shrunk, plain_view))
    from nearfar.modalities.image.views import colour

    constants = f"MIDDLE, L_SCALE, AB_SCALE = {MIDDLE}, {L_SCALE}, {AB_SCALE}\n_TO_XYZ = {colour._TO_XYZ}\n_KNEE = {colour._KNEE!r}\n"
    return "\n\n".join(
        [constants, *(inspect.getsource(function) for function in (lab, opaque, shrunk, plain_view))]
    )
