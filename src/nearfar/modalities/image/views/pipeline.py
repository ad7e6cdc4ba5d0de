"""What the encoder sees: `Views` for training, `PlainImages` for evaluation, both from decoded bytes to
normalised floats.

    Pixels ──draw──▶ Parameters ──render──▶ (image, channel, size, size), one tensor per view

Drawing is a pure function of (seed, epoch, index, view); rendering is the compiled kernel on CPUs and batched
torch elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int32, UInt8
from torch import Tensor

from nearfar.core.abstract import AbstractViews
from nearfar.core.randomness import uniforms
from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.base import PlainView
from nearfar.modalities.image.views import batched, kernel
from nearfar.modalities.image.views.augment import NONE, Augment
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours, lab, rgb, split
from nearfar.modalities.image.views.operations import Operation
from nearfar.modalities.image.views.parameters import Parameters, draw

Image = Float[Tensor, "image channel size size"]

SMALLEST, LARGEST = 2, 4096  # side of a view
MARGIN = 256 / 224  # evaluation shows the central 224 of 256 pixels where the image is large enough


@dataclass(frozen=True)
class Spans:
    """The values of each band that are shown as 0 and 1, where images are not bytes."""

    low: Float[np.ndarray, "channel"]
    high: Float[np.ndarray, "channel"]

    def to_unit(self, data: np.ndarray) -> Float32[np.ndarray, "... channel"]:
        shift, scale = self.low.astype(np.float32), (1 / (self.high - self.low)).astype(np.float32)
        return (data.astype(np.float32) - shift) * scale


def stretched(values: np.ndarray) -> UInt8[np.ndarray, "..."]:
    """Normalised values as bytes for people to look at: two standard deviations either way are black and
    white."""
    return np.rint(np.clip(0.5 + values / 4, 0, 1) * 255).astype(np.uint8)


class _Renderer:
    """Size, statistics and device: all that turning parameters into a tensor needs."""

    def __init__(
        self,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device,
        colours: Colours = "rgb",
        spans: Spans | None = None,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or not SMALLEST <= size <= LARGEST:
            raise UserError(f"image_size is {size!r}; expected a whole number from {SMALLEST} to {LARGEST}.")
        self.size = size
        self.mean = _statistic("mean", mean)
        self.std = _statistic("std", std)
        if len(self.mean) != len(self.std):
            raise UserError(
                f"views.mean has {len(self.mean)} numbers and views.std {len(self.std)}; give one per "
                "channel to each."
            )
        if (self.std <= 0).any():
            raise UserError(f"views.std is {list(std)!r}; expected numbers above 0.")
        if colours == "lab" and len(self.mean) != 3:
            raise UserError(
                f"views.colours is lab but the images have {len(self.mean)} channels; it needs 3."
            )
        self.device, self.colours, self.spans = torch.device(device), colours, spans

    def unit(self, pixels: Pixels) -> Pixels:
        """The images as the kernel takes them: bytes as they are, wide values by their spans."""
        _check(pixels, len(self.mean), self.spans is not None)
        return pixels if self.spans is None else Pixels(self.spans.to_unit(pixels.data), pixels.size)

    def __call__(
        self,
        pixels: Pixels,
        parameters: Parameters,
        window: Int32[np.ndarray, "image 4"],
        kernel_width: int,
        out: Float32[Tensor, "image size size channel"] | None = None,
    ) -> Image:
        in_rgb = self.colours == "rgb"
        mean, std = (self.mean, self.std) if in_rgb else (np.zeros(3), np.ones(3))
        rest = (pixels, parameters, window, self.size, kernel_width, mean, std)
        view = kernel.render(*rest, out) if self.device.type == "cpu" else batched.render(*rest, self.device)
        return view if in_rgb else lab(view)

    def buffers(self, views: int, images: int) -> Iterable[Tensor | None]:
        """Memory for several views one below the other, so that embedding them together copies nothing
        (`embed_views`)."""
        if self.device.type != "cpu":
            return [None] * views
        return torch.empty((views, images, self.size, self.size, len(self.mean)), dtype=torch.float32)

    def changed(self, view: Image, operation: Operation, numbers: Float[np.ndarray, "image slot"]) -> Image:
        """The view with some of its images changed: those whose first number is below the probability. Others
        keep every bit."""
        rows = torch.from_numpy(np.flatnonzero(numbers[:, 0] < operation.probability)).to(view.device)
        if not len(rows):
            return view
        mean, std = (
            torch.from_numpy(values).to(view.device, view.dtype)[:, None, None]
            for values in (self.mean, self.std)
        )
        arguments = torch.from_numpy(numbers[:, 1:]).to(view.device, view.dtype)[rows]
        images = operation(view[rows] * std + mean, arguments).clamp(0, 1)
        return view.index_copy(0, rows, (images - mean) / std)

    def unnormalise(self, view: Image) -> UInt8[np.ndarray, "image size size channel"]:
        values = view.detach().to("cpu", torch.float64)
        if self.spans is not None:
            return stretched(values.permute(0, 2, 3, 1).numpy())
        if self.colours == "lab":
            pixels = rgb(values).permute(0, 2, 3, 1).numpy()
        else:
            pixels = values.permute(0, 2, 3, 1).numpy() * self.std + self.mean
        return np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)


def _check(pixels: Pixels, channels: int, has_spans: bool) -> None:
    """Refuse what the compiled kernel would read past the end of."""
    data, size = pixels.data, pixels.size
    if data.ndim != 4 or data.dtype not in ((np.uint16, np.float32) if has_spans else (np.uint8,)):
        expected = "wide values (uint16 or float32)" if has_spans else "bytes (uint8)"
        raise UserError(
            f"The images are {data.ndim}-dimensional {data.dtype}; expected {expected}, "
            "image x height x width x channel."
        )
    if size.shape != (len(data), 2) or (size < 1).any() or (size > data.shape[1:3]).any():
        raise UserError(
            f"The images' sizes do not fit their pixels {data.shape}; give each its height and width, at "
            "least 1."
        )
    if data.shape[3] != channels:
        raise UserError(
            f"views.mean has {channels} numbers but the images have {data.shape[3]} channels; give one per "
            "channel."
        )


def _statistic(name: str, values: Sequence[float]) -> Float[np.ndarray, "channel"]:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise UserError(f"views.{name} is {values!r}; expected one number per channel.")
    return numbers


class Views(AbstractViews):
    """The training views: view v of image i in epoch e is a pure function of (seed, e, i, v) and the image.

    Immutable, and safe to call from several threads at once. Colour operations pass images without exactly
    three channels by; all others apply to any number of channels. `size`: the side of all views, or of each.
    `key_views`: how many of the first are large crops; the others are small (`AbstractViews`). `aligned`: all
    views draw as the first does, so that they show the same crop. `colours="lab"`: the first view shows
    luminance alone, the second colour alone, or, of three views, the second and third a channel of it each.
    Small crops repeat the channels of the large ones, and aligned ones share a crop for each repetition.
    """

    def __init__(
        self,
        pipelines: Sequence[Augment],
        size: int | Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device = "cpu",
        *,
        aligned: bool = False,
        colours: Colours = "rgb",
        key_views: int | None = None,
        spans: Spans | None = None,
    ) -> None:
        if not pipelines:
            raise UserError("views is empty; give the settings of at least one view.")
        if colours == "lab" and (key_views or len(pipelines)) not in LAB_CHANNELS:
            raise UserError(
                f"views.colours is lab with {len(pipelines)} views; it has three channels and shows "
                "luminance and colour in 2 or each channel in one of 3."
            )
        also = [operation.name for augment in pipelines for operation in augment.also]
        if colours == "lab" and also:
            raise UserError(
                f"views.{also[0]} was given with views.colours=lab; it changes colours as they are, in rgb."
            )
        self.pipelines, self.aligned, self.count = tuple(pipelines), aligned, len(pipelines)
        self.key_views = key_views
        self.sizes = tuple(size) if isinstance(size, Sequence) else (size,) * self.count
        renderers = {side: _Renderer(side, mean, std, device, colours, spans) for side in {*self.sizes}}
        self._renderers = tuple(renderers[side] for side in self.sizes)

    def __call__(
        self, pixels: Pixels, seed: int, epoch: int, index: Int[np.ndarray, "image"]
    ) -> tuple[Image, ...]:
        pixels = self._renderers[0].unit(pixels)
        if np.shape(index) != (len(pixels.data),):
            raise UserError(
                f"index has shape {np.shape(index)}; expected one number for each of the {len(pixels.data)} "
                "images."
            )
        large = self.key_views or self.count
        draws = [view - view % large if self.aligned else view for view in range(self.count)]
        views = [
            self._render(pixels, draw(augment, pixels.size, seed, epoch, index, source), view, out)
            for view, (augment, source, out) in enumerate(
                zip(self.pipelines, draws, self._buffers(len(pixels.data)), strict=True)
            )
        ]
        for view, augment in enumerate(self.pipelines):
            for operation in augment.also:
                numbers = uniforms(seed, epoch, index, draws[view], 1 + operation.slots, operation.name)
                views[view] = self._renderers[view].changed(views[view], operation, numbers)
        if self._renderers[0].colours == "rgb":
            return tuple(views)
        return tuple(split(image, large)[view % large] for view, image in enumerate(views))

    def _render(self, pixels: Pixels, parameters: Parameters, view: int, out: Tensor | None) -> Image:
        size = self.sizes[view]
        window = np.tile(np.array([size, size, 0, 0], dtype=np.int32), (len(pixels.data), 1))
        return self._renderers[view](pixels, parameters, window, self.pipelines[view].kernel_width(size), out)

    def _buffers(self, images: int) -> list[Tensor | None]:
        """Memory for all views, those of one size one below the other."""
        buffers = {
            renderer: iter(renderer.buffers(self._renderers.count(renderer), images))
            for renderer in {*self._renderers}
        }
        return [next(buffers[renderer]) for renderer in self._renderers]

    def unnormalise(self, view: Image) -> UInt8[np.ndarray, "image size size channel"]:
        """A view as bytes for people to look at."""
        return self._renderers[0].unnormalise(view)


class PlainImages(PlainView):
    """The evaluation view: no randomness, the image's centre.

    The shorter side is resized to `size`, or to 256/224 of it where the image has that many pixels, and the
    central size × size pixels are shown. An image of exactly size × size is shown as it is.
    """

    def __init__(
        self,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device = "cpu",
        colours: Colours = "rgb",
        spans: Spans | None = None,
    ) -> None:
        self._renderer = _Renderer(size, mean, std, device, colours, spans)

    def __repr__(self) -> str:
        renderer = self._renderer
        return f"PlainImages({renderer.size}, {renderer.mean.tolist()}, {renderer.std.tolist()}, {renderer.colours!r})"

    def as_views(self, view: Image, count: int) -> tuple[Image, ...]:
        return (view,) * count if self._renderer.colours == "rgb" else split(view, max(count, 2))[:count]

    def __call__(
        self, pixels: Pixels, seed: int = 0, epoch: int = 0, index: Int[np.ndarray, "image"] | None = None
    ) -> tuple[Image]:
        pixels = self._renderer.unit(pixels)
        full_box = np.concatenate([np.zeros_like(pixels.size), pixels.size], axis=1).astype(np.int32)
        index_of_all = np.zeros(len(pixels.data), dtype=np.int64)
        parameters = replace(draw(NONE, pixels.size, 0, 0, index_of_all, 0), box=full_box)
        window = _central_window(pixels.size, self._renderer.size)
        return (self._renderer(pixels, parameters, window, NONE.kernel_width(self._renderer.size)),)

    def unnormalise(self, view: Image) -> UInt8[np.ndarray, "image size size channel"]:
        """A view as bytes for people to look at."""
        return self._renderer.unnormalise(view)


def _central_window(extent: Int[np.ndarray, "image 2"], size: int) -> Int32[np.ndarray, "image 4"]:
    """Rows, columns of the resized image, top and left of its centre, rounded as torchvision rounds."""
    shorter = extent.min(axis=1)
    enlarged = int(size * MARGIN)
    target = np.where(shorter >= enlarged, enlarged, size)
    resized = extent.astype(np.int64) * target[:, None] // shorter[:, None]
    corner = np.rint((resized - size) / 2)
    return np.concatenate([resized, corner], axis=1).astype(np.int32)


def statistics(images: Iterable[Pixels]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in [0, 1], over the images' true area.

    Counted exactly, byte value by byte value, so neither order nor batching changes a digit. A channel that
    never varies gets the deviation 1: normalising then only shifts it.
    """
    counts = np.zeros((0, 256), dtype=np.int64)
    for pixels in images:
        channels = pixels.data.shape[3]
        if len(counts) == 0:
            counts = np.zeros((channels, 256), dtype=np.int64)
        for area in _true_areas(pixels):
            counts += np.stack([np.bincount(area[..., c].ravel(), minlength=256) for c in range(channels)])
    if counts.sum() == 0:
        raise UserError("views.mean cannot be measured; the data hold no pixel.")
    share = counts / counts.sum(axis=1, keepdims=True)
    level = np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def wide_statistics(images: Iterable[Pixels]) -> tuple[Spans, tuple[float, ...], tuple[float, ...]]:
    """The smallest and largest value of each band, and mean and standard deviation in units of that span, over
    the images' true area. A band that never varies has a span of one."""
    counts, means, squares, lows, highs = [], [], [], [], []
    for pixels in images:
        for area in _true_areas(pixels):
            values = area.reshape(-1, area.shape[-1]).astype(np.float64)
            counts.append(len(values))
            means.append(values.mean(axis=0))
            squares.append(((values - means[-1]) ** 2).sum(axis=0))
            lows.append(values.min(axis=0))
            highs.append(values.max(axis=0))
    if not counts:
        raise UserError("views.mean cannot be measured; the data hold no pixel.")
    weight = np.array(counts)[:, None]
    mean = (weight * np.array(means)).sum(axis=0) / weight.sum()
    # of all values: within the areas, and of their means (Chan et al. 1979)
    deviations = np.array(squares).sum(axis=0) + (weight * (np.array(means) - mean) ** 2).sum(axis=0)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    high = np.where(high > low, high, low + 1)
    std = np.sqrt(deviations / weight.sum()) / (high - low)
    unit_mean = (mean - low) / (high - low)
    return Spans(low, high), tuple(unit_mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _true_areas(pixels: Pixels) -> list[UInt8[np.ndarray, "... channel"]]:
    if (pixels.size == pixels.data.shape[1:3]).all():
        return [pixels.data]
    return [image[:height, :width] for image, (height, width) in zip(pixels.data, pixels.size, strict=True)]
