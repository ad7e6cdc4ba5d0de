"""Views on any device: the same pipeline as a few batched tensor operations.

Crop and resize are one product per axis with a per-sample interpolation matrix, blur likewise; an operation
that only some samples undergo runs on those rows. Which rows is known on the host, so nothing waits for the
device.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from nearfar.core.types import Pixels
from nearfar.modalities.image.views.colour import ImageTensor
from nearfar.modalities.image.views.parameters import (
    BRIGHTNESS,
    CONTRAST,
    GREYSCALE,
    HUE,
    SATURATION,
    Parameters,
)

Factor = Float[Tensor, "image 1 1 1"]

_LUMA = (0.2989, 0.587, 0.114)  # torchvision's
_NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0], dtype=np.float32)


@torch.no_grad()
def render(
    pixels: Pixels,
    parameters: Parameters,
    window: Int32[np.ndarray, "image 4"],
    size: int,
    kernel_width: int,
    mean: Float[np.ndarray, "channel"],
    std: Float[np.ndarray, "channel"],
    device: torch.device,
) -> Float[Tensor, "image channel size size"]:
    """The views as a channels-last float32 tensor on `device`; arguments as for the compiled kernel."""
    with _full_precision(device):
        raw = torch.from_numpy(np.require(pixels.data, requirements="W")).to(device)
        data = raw.permute(0, 3, 1, 2).float() / (255 if raw.dtype == torch.uint8 else 1)
        box, target = (torch.from_numpy(a).to(device) for a in (parameters.box, window))
        flip = torch.from_numpy(parameters.flip).to(device)
        rows = _interpolation(box[:, 0], box[:, 2], target[:, 0], target[:, 2], size, data.shape[2])
        columns = _interpolation(box[:, 1], box[:, 3], target[:, 1], target[:, 3], size, data.shape[3])
        columns = torch.where(flip[:, None, None], columns.flip(1), columns)
        view = _separable(data, rows, columns)
        view = _tones(view, parameters)
        view = _blurred(view, parameters.sigma, kernel_width)
        view = _solarised(view, parameters.solarise)
        shift, scale = (torch.from_numpy(a).to(device, torch.float32)[:, None, None] for a in (mean, std))
        return ((view - shift) / scale).contiguous(memory_format=torch.channels_last)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Half precision, which a caller may have switched on, would move pixels by more than 1e-3."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def _separable(
    images: ImageTensor, rows: Float[Tensor, "image out height"], columns: Float[Tensor, "image out width"]
) -> Float[Tensor, "image channel out out"]:
    return rows[:, None] @ images @ columns[:, None].mT


def _interpolation(
    start: Tensor, length: Tensor, total: Tensor, offset: Tensor, size: int, extent: int
) -> Float[Tensor, "image size extent"]:
    """The triangle filter taking pixels [start, start + length) to `total`, for `size` outputs from `offset`
    on."""
    ratio = (length / total)[:, None, None]
    output = torch.arange(size, device=start.device)[None, :, None] + offset[:, None, None]
    source = torch.arange(extent, device=start.device)[None, None, :] - start[:, None, None]
    distance = (source + 0.5 - ratio * (output + 0.5)).abs() / ratio.clamp(min=1)
    inside = (source >= 0) & (source < length[:, None, None])
    weight = (1 - distance).clamp(min=0) * inside
    return weight / weight.sum(-1, keepdim=True)


def _tones(view: ImageTensor, parameters: Parameters) -> ImageTensor:
    """Colour jitter and greyscale in each sample's order; what needs colour passes others than RGB by."""
    colour = view.shape[1] == 3
    active = np.concatenate([parameters.factors != _NEUTRAL, parameters.greyscale[:, None]], axis=1)
    factors = np.concatenate([parameters.factors, parameters.factors[:, :1]], axis=1)
    for place in parameters.order.T:
        for op, function in _TONES.items():
            if not colour and op not in (BRIGHTNESS, CONTRAST):
                continue
            rows = np.flatnonzero((place == op) & active[:, op])
            view = _on_rows(view, rows, factors[rows, op], function)
    return view


def _on_rows(
    view: ImageTensor,
    rows: np.ndarray,
    factor: np.ndarray,
    function: Callable[[ImageTensor, Factor], ImageTensor],
) -> ImageTensor:
    """`function(images, factor)` on some rows, the others as they are."""
    if len(rows) == 0:
        return view
    index = torch.from_numpy(rows).to(view.device)
    values = torch.from_numpy(factor).to(view.device)[:, None, None, None]
    return view.index_copy(0, index, function(view[index], values))


def _luma(view: ImageTensor) -> Float[Tensor, "image 1 height width"]:
    if view.shape[1] != 3:
        return view.mean(1, keepdim=True)
    weight = torch.tensor(_LUMA, device=view.device)[:, None, None]
    return (view * weight).sum(1, keepdim=True)


def _brightened(view: ImageTensor, factor: Factor) -> ImageTensor:
    return (view * factor).clamp(0, 1)


def _contrasted(view: ImageTensor, factor: Factor) -> ImageTensor:
    # of colours the mean grey, of any other bands the mean of each
    mean = (_luma(view) if view.shape[1] == 3 else view).mean((2, 3), keepdim=True)
    return (view * factor + mean * (1 - factor)).clamp(0, 1)


def _saturated(view: ImageTensor, factor: Factor) -> ImageTensor:
    return (view * factor + _luma(view) * (1 - factor)).clamp(0, 1)


def _greyed(view: ImageTensor, factor: Factor) -> ImageTensor:
    return _luma(view).expand_as(view)


def _hue_turned(view: ImageTensor, shift: Factor) -> ImageTensor:
    """Turn the hue by `shift` of a circle: a channel is V - C · clip(min(k, 4 - k), 0, 1), k = (n + H) mod 6.

    V is the largest channel, C the largest minus the smallest, H the hue in sixths, n = 5, 3, 1.
    """
    red, green, blue = view.split(1, dim=1)
    top = view.amax(1, keepdim=True)
    chroma = top - view.amin(1, keepdim=True)
    safe = chroma.clamp(min=1e-12)
    hue = torch.where(
        top == red,
        (green - blue) / safe,
        torch.where(top == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    offset = torch.tensor([5.0, 3.0, 1.0], device=view.device)[:, None, None]
    k = (offset + hue + 6 * shift).remainder(6)
    return top - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


_TONES: dict[int, Callable[[ImageTensor, Factor], ImageTensor]] = {
    BRIGHTNESS: _brightened,
    CONTRAST: _contrasted,
    SATURATION: _saturated,
    HUE: _hue_turned,
    GREYSCALE: _greyed,
}


def _blurred(view: ImageTensor, sigma: np.ndarray, kernel_width: int) -> ImageTensor:
    rows = np.flatnonzero(sigma > 0)

    def blur(images: ImageTensor, sigma: Factor) -> ImageTensor:
        matrix = _blur_matrix(sigma[:, 0, 0], images.shape[-1], kernel_width // 2)
        return _separable(images, matrix, matrix)

    return _on_rows(view, rows, sigma[rows], blur)


def _blur_matrix(sigma: Float[Tensor, "image 1"], size: int, half: int) -> Float[Tensor, "image size size"]:
    """Rows of Gaussian weights, the image mirrored at its border without repeating the border."""
    distance = torch.arange(-half, half + 1, device=sigma.device)
    weight = torch.softmax(-0.5 * (distance / sigma) ** 2, dim=1)  # (image, tap)
    place = torch.arange(size, device=sigma.device)
    source = (place[None, :] + distance[:, None]).abs()
    source = torch.where(source < size, source, 2 * size - 2 - source)  # (tap, size)
    taps = (source[:, :, None] == place).float()
    return torch.einsum("nt,tos->nos", weight, taps)


def _solarised(view: ImageTensor, threshold: np.ndarray) -> ImageTensor:
    rows = np.flatnonzero(threshold <= 1)
    return _on_rows(view, rows, threshold[rows], lambda x, t: torch.where(x >= t, 1 - x, x))
