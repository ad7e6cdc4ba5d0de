"""Pictures of arrays, sound and text, and the plain views of a data set in order."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from nearfar.modalities.base import AbstractPresenter, Features, MakeViews
from nearfar.modalities.dataset import Instances
from nearfar.system.prefetch import prefetch

SIDE = 96  # of a drawn picture
_LINE, _COLUMNS = 12, 16  # height of a line of text, letters that fit in it


def plain_views(data: Instances, plain_view: MakeViews, batch_size: int, workers: int) -> Iterator[Tensor]:
    """The plain view of the instances in order, a batch at a time, made ahead by `workers` threads."""

    def view(index: Int[np.ndarray, "instance"]) -> Tensor:
        return plain_view(data.load(index), 0, 0, index)[0]

    numbers = np.arange(len(data), dtype=np.int64)
    batches = (numbers[start : start + batch_size] for start in range(0, len(data), batch_size))
    return prefetch(view, batches, workers)


def coloured(array: UInt8[np.ndarray, "height width channel"]) -> Image.Image:
    """An RGB picture of any number of channels: one or two as their grey mean, more by the first three."""
    if array.shape[-1] < 3:
        grey = array.mean(axis=-1, keepdims=True).round().astype(np.uint8)
        array = np.repeat(grey, 3, axis=-1)
    return Image.fromarray(np.ascontiguousarray(array[..., :3]), "RGB")


def heat(values: Float[np.ndarray, "row column"]) -> Image.Image:
    """Numbers as grey levels, the lowest black and the highest white; the first row at the bottom."""
    finite = np.where(np.isfinite(values), values, np.nanmin(np.where(np.isfinite(values), values, np.nan)))
    low, high = float(finite.min()), float(finite.max())
    grey = np.rint(255 * (finite - low) / max(high - low, 1e-12)).astype(np.uint8)[::-1]
    return Image.fromarray(np.ascontiguousarray(grey), "L").convert("RGB").resize((SIDE, SIDE))


def spectrogram(wave: Float[np.ndarray, "time"]) -> Image.Image:
    """How loud each pitch is over time, in decibels down to 60 below the loudest."""
    width = int(min(256, max(16, len(wave) // 8)))
    padded = np.pad(wave.astype(np.float64), (0, max(0, width - len(wave))))
    step = max(1, (len(padded) - width) // SIDE)
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[::step] * np.hanning(width)
    power = np.abs(np.fft.rfft(frames, axis=1)).T ** 2
    level = 10 * np.log10(power / max(float(power.max()), 1e-20) + 1e-6)
    return heat(level)


def page_of(text: str) -> Image.Image:
    """The first lines of a text, wrapped, black on white."""
    page = Image.new("RGB", (SIDE, SIDE), "white")
    lines = [text[start : start + _COLUMNS] for start in range(0, len(text), _COLUMNS)]
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default()
    for place, line in enumerate(lines[: SIDE // _LINE]):
        printable = line.encode("latin-1", "replace").decode("latin-1").replace("\n", " ")
        draw.text((1, place * _LINE), printable, fill="black", font=font)
    return page


class NumbersPresenter(AbstractPresenter):
    """Numbers as grey levels, as the plain view shows them; the same numbers are the baseline."""

    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers themselves"}

    def __init__(self, plain_view: Callable[[Any, torch.device], MakeViews]) -> None:
        self._plain_view = plain_view

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "numbers": lambda data: torch.cat(
                [view.cpu().flatten(1) for view in plain_views(data, plain_view, 4096, 0)]
            )
        }

    def pictures(self, loaded: np.ndarray, description: Any) -> list[Image.Image]:
        view = self._plain_view(description, torch.device("cpu"))
        return self.view_pictures(None, view(loaded, 0, 0, np.arange(len(loaded)))[0], description)

    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        return [heat(np.atleast_2d(numbers.T)) for numbers in view.detach().cpu().numpy()]
