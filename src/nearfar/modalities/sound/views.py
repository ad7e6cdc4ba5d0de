"""Views of recordings: random stretches for training, whole recordings for evaluation.

A view has two channels: the wave, and 1 where there is sound, 0 in the padding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import check_whole
from nearfar.modalities.base import PlainView
from nearfar.modalities.dataset import Sequences
from nearfar.modalities.sound.data import SoundDescription

Sound = Float[Tensor, "item 2 time"]

LOUDNESS = 0.5  # root mean square of a recording; the encoder's first layer expects numbers of this order
MIN_LOUDNESS = 1e-5  # below it a recording is not made louder


@dataclass(frozen=True)
class Window(AbstractViewSettings):
    """`count` random stretches of `samples`; a shorter recording is heard whole."""

    samples: int = 2560
    count: int = 1
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_whole("views.samples", self.samples, 16, 2**24)
        check_whole("views.count", self.count, 1, 16)

    def training(self, description: SoundDescription, device: torch.device) -> "SoundWindows":
        return SoundWindows(self.samples, self.count)

    def plain_view(self, description: SoundDescription, device: torch.device) -> "WholeSound":
        return WholeSound()


@dataclass(frozen=True)
class SoundWindows(AbstractViews):
    """`count` stretches of `samples` of each recording."""

    samples: int
    count: int

    def __call__(
        self, sequences: Sequences, seed: int, epoch: int, index: Int[np.ndarray, "item"]
    ) -> tuple[Sound, ...]:
        """Stretch v of recording i in an epoch is a function of (seed, epoch, i, v) alone."""
        waves = levelled(sequences)
        return tuple(
            self._stretch(sequences, waves, uniforms(seed, epoch, index, view, 1)[:, 0])
            for view in range(self.count)
        )

    def _stretch(self, sequences: Sequences, waves: np.ndarray, draw: np.ndarray) -> Sound:
        length = sequences.length
        spare = np.maximum(length - self.samples, 0)
        start = (draw * (spare + 1)).astype(np.int64)
        place = start[:, None] + np.arange(self.samples)
        present = place < length[:, None]
        return _sound(
            np.take_along_axis(waves, np.minimum(place, sequences.data.shape[1] - 1), axis=1), present
        )


@dataclass(frozen=True)
class WholeSound(PlainView):
    """The view of evaluation: each recording from beginning to end."""

    def __call__(
        self,
        sequences: Sequences,
        seed: int = 0,
        epoch: int = 0,
        index: Int[np.ndarray, "item"] | None = None,
    ) -> tuple[Sound]:
        return (_sound(levelled(sequences), sequences.present()),)


def levelled(sequences: Sequences) -> Float[np.ndarray, "item time"]:
    """Every recording with mean zero and the same loudness over its true length: the distance to the
    microphone carries no information about the words."""
    present = sequences.present()
    data = sequences.data.astype(np.float64)
    count = sequences.length[:, None]
    centred = np.where(present, data - np.where(present, data, 0).sum(1, keepdims=True) / count, 0)
    loudness = np.sqrt((centred**2).sum(1, keepdims=True) / count)
    return centred * (LOUDNESS / np.where(loudness < MIN_LOUDNESS, LOUDNESS, loudness))


def _sound(wave: np.ndarray, present: np.ndarray) -> Sound:
    return torch.from_numpy(np.stack([np.where(present, wave, 0), present], axis=1).astype(np.float32))
