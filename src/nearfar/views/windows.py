"""What is heard of a recording: a random stretch for training, all of it for evaluation.

A view of sound has two channels: the wave, and 1 where there is sound, 0 in the padding. ConcatFeatures it goes whose it is,
so that an encoder with many rows for each recording can name them: (sound, who).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from nearfar.errors import UserError
from nearfar.randomness import uniforms

Sound = Float[Tensor, "item 2 time"]
Heard = tuple[Sound, Int64[Tensor, "item"]]

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
    """A random stretch of `samples`; a shorter recording is heard whole, at the beginning of the window."""

    samples: int = 2560
    count: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 16 <= self.samples <= 2**24:
            raise UserError(f"views.samples was {self.samples}; it lies from 16 to {2**24}")

    def __call__(self, series: Series, seed: int, epoch: int, index: Int[np.ndarray, "item"]) -> Heard:
        """The stretch of recording i in an epoch is a function of (seed, epoch, i) alone."""
        length = series.length
        spare = np.maximum(length - self.samples, 0)
        start = (uniforms(seed, epoch, index, 0, 1)[:, 0] * (spare + 1)).astype(np.int64)
        place = start[:, None] + np.arange(self.samples)
        real = place < length[:, None]
        wave = np.take_along_axis(levelled(series), np.minimum(place, series.data.shape[1] - 1), axis=1)
        return _sound(wave, real), torch.from_numpy(np.asarray(index, dtype=np.int64))


@dataclass(frozen=True)
class WholeSound:
    """The evaluation's view: each recording from beginning to end."""

    def as_views(self, shown: Sound, count: int) -> tuple[Sound, ...]:
        return (shown,)

    def __call__(
        self,
        series: Series,
        seed: int = 0,
        epoch: int = 0,
        index: Int[np.ndarray, "item"] | None = None,
    ) -> Heard:
        real = np.arange(series.data.shape[1]) < series.length[:, None]
        numbers = np.arange(len(real)) if index is None else np.asarray(index)
        return _sound(levelled(series), real), torch.from_numpy(numbers.astype(np.int64))


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
