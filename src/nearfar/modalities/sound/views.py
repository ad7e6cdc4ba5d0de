"""What is heard of a recording: a random stretch for training, all of it for evaluation.

A view of sound has two channels: the wave, and 1 where there is sound, 0 in the padding.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.randomness import uniforms
from nearfar.errors import UserError

Sound = Float[Tensor, "item 2 time"]

LOUDNESS = 0.5  # root mean square of a recording; the encoder's first layer expects numbers of this order
_SILENCE = 1e-5  # below this a recording is not made louder


class Series(Protocol):
    """Sequences padded at their ends, and how much of each is real (`nearfar.data.Series` is one)."""

    @property
    def data(self) -> np.ndarray: ...
    @property
    def length(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Window:
    """`count` random stretches of `samples`; a shorter recording is heard whole, at the beginning of the window."""

    samples: int = 2560
    count: int = 1
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not 16 <= self.samples <= 2**24:
            raise UserError(f"views.samples was {self.samples}; it must be from 16 to {2**24}")
        if not 1 <= self.count <= 16:
            raise UserError(f"views.count was {self.count}; expected a whole number from 1 to 16")

    def __call__(
        self, series: Series, seed: int, epoch: int, index: Int[np.ndarray, "item"]
    ) -> tuple[Sound, ...]:
        """Stretch v of recording i in an epoch is a function of (seed, epoch, i, v) alone."""
        even = levelled(series)
        return tuple(
            self._stretch(series, even, uniforms(seed, epoch, index, view, 1)[:, 0])
            for view in range(self.count)
        )

    def _stretch(self, series: Series, even: np.ndarray, draw: np.ndarray) -> Sound:
        length = series.length
        spare = np.maximum(length - self.samples, 0)
        start = (draw * (spare + 1)).astype(np.int64)
        place = start[:, None] + np.arange(self.samples)
        real = place < length[:, None]
        return _sound(np.take_along_axis(even, np.minimum(place, series.data.shape[1] - 1), axis=1), real)


@dataclass(frozen=True)
class WholeSound:
    """The evaluation's view: each recording from beginning to end."""

    def as_views(self, shown: Sound, count: int) -> tuple[Sound, ...]:
        return (shown,) * count

    def __call__(
        self,
        series: Series,
        seed: int = 0,
        epoch: int = 0,
        index: Int[np.ndarray, "item"] | None = None,
    ) -> tuple[Sound]:
        real = np.arange(series.data.shape[1]) < series.length[:, None]
        return (_sound(levelled(series), real),)


def levelled(series: Series) -> Float[np.ndarray, "item time"]:
    """Every recording around zero and equally loud over its true length: how near the microphone was tells nothing
    of what was said."""
    real = np.arange(series.data.shape[1]) < series.length[:, None]
    data = series.data.astype(np.float64)
    count = series.length[:, None]
    centred = np.where(real, data - np.where(real, data, 0).sum(1, keepdims=True) / count, 0)
    loudness = np.sqrt((centred**2).sum(1, keepdims=True) / count)
    return centred * (LOUDNESS / np.where(loudness < _SILENCE, LOUDNESS, loudness))


def _sound(wave: np.ndarray, real: np.ndarray) -> Sound:
    return torch.from_numpy(np.stack([np.where(real, wave, 0), real], axis=1).astype(np.float32))
