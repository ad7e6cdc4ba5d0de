"""Mel-frequency cepstral coefficients: what speech recognition used before anything was learned, as a baseline.

    wave --pre-emphasis--> frames of 25 ms every 10 ms --Hamming, |DFT|^2--> power --triangles on the mel scale--> log
         --cosine transform--> the first 13 coefficients

Averaged over time they are the recording's baseline features; with their standard deviations beside them, a second one.
"""

from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from scipy.fft import dct
from torch import Tensor

COEFFICIENTS, TRIANGLES = 13, 40
_EMPHASIS, _FLOOR = 0.97, 1e-10
_WIDTH, _STEP = 0.025, 0.010  # seconds


class Recordings(Protocol):
    """What is asked of an opened set (`nearfar.modalities.sound.modality.Recordings` is one)."""

    @property
    def rate(self) -> int: ...
    def __len__(self) -> int: ...
    def load(self, index: np.ndarray, /) -> "Waves": ...


class Waves(Protocol):
    @property
    def data(self) -> np.ndarray: ...
    @property
    def length(self) -> np.ndarray: ...


def mfcc(wave: Float[np.ndarray, "time"], rate: int) -> Float[np.ndarray, "frame coefficient"]:
    """The coefficients of every whole frame; a recording shorter than one is padded to it."""
    width, step = round(_WIDTH * rate), round(_STEP * rate)
    sharp = np.append(wave[:1], wave[1:] - _EMPHASIS * wave[:-1]).astype(np.float64)
    sharp = np.pad(sharp, (0, max(0, width - len(sharp))))
    frames = np.lib.stride_tricks.sliding_window_view(sharp, width)[::step] * np.hamming(width)
    bins = 1 << (width - 1).bit_length()
    power = np.abs(np.fft.rfft(frames, bins)) ** 2 / bins
    return dct(np.log(power @ triangles(rate, bins).T + _FLOOR), norm="ortho", axis=1)[:, :COEFFICIENTS]


def triangles(rate: int, bins: int) -> Float[np.ndarray, "triangle frequency"]:
    """Weights that rise from one centre's neighbour to it and fall to the next, centres evenly spaced in mel =
    2595 log10(1 + hertz / 700), from 20 Hz to half the sample rate."""
    mel = np.linspace(_mel(20.0), _mel(rate / 2), TRIANGLES + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    frequency = np.arange(bins // 2 + 1) * rate / bins
    low, centre, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    return np.clip(
        np.minimum((frequency - low) / (centre - low), (high - frequency) / (high - centre)), 0, None
    )


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def mfcc_features(recordings: Recordings, *, moments: bool = False) -> Float[Tensor, "item dim"]:
    """Means over time of each recording's coefficients, `moments`: and standard deviations."""
    rows = []
    for number in range(len(recordings)):
        series = recordings.load(np.array([number]))
        found = mfcc(series.data[0, : series.length[0]], recordings.rate)
        rows.append(
            np.concatenate([found.mean(axis=0), found.std(axis=0)]) if moments else found.mean(axis=0)
        )
    return torch.from_numpy(np.stack(rows).astype(np.float32))
