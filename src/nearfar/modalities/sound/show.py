"""Recordings in reports, and mel-frequency cepstral coefficients as a baseline: the features of speech
recognition before features were learned.

    wave --pre-emphasis--> frames of 25 ms every 10 ms --Hamming, |DFT|^2--> power --triangles on the mel
    scale--> log
         --cosine transform--> the first 13 coefficients

Averaged over time they are the baseline; together with their standard deviations, a second one.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from nearfar.modalities.base import AbstractPresenter, Features, MakeViews
from nearfar.modalities.dataset import Sequences
from nearfar.modalities.showing import spectrogram
from nearfar.modalities.sound.data import Recordings

COEFFICIENTS, TRIANGLES = 13, 40
_EMPHASIS, _FLOOR = 0.97, 1e-10
_WIDTH, _STEP = 0.025, 0.010  # seconds


class SoundPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"mfcc": "MFCC", "mfcc-moments": "MFCC and deviations"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "mfcc": lambda recordings: mfcc_features(recordings),
            "mfcc-moments": lambda recordings: mfcc_features(recordings, moments=True),
        }

    def pictures(self, loaded: Sequences, description: Any) -> list[Image.Image]:
        return [spectrogram(wave[:length]) for wave, length in zip(loaded.data, loaded.length, strict=True)]

    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        waves = view.detach().cpu().numpy()
        return [spectrogram(wave[: max(1, int(present.sum()))]) for wave, present in waves]


def mfcc(wave: Float[np.ndarray, "time"], rate: int) -> Float[np.ndarray, "frame coefficient"]:
    """The coefficients of every complete frame; a recording shorter than one frame is padded."""
    from scipy.fft import dct  # 0.1 CPU seconds, and every command imports this module

    width, step = round(_WIDTH * rate), round(_STEP * rate)
    emphasised = np.append(wave[:1], wave[1:] - _EMPHASIS * wave[:-1]).astype(np.float64)
    emphasised = np.pad(emphasised, (0, max(0, width - len(emphasised))))
    frames = np.lib.stride_tricks.sliding_window_view(emphasised, width)[::step] * np.hamming(width)
    bins = 1 << (width - 1).bit_length()
    power = np.abs(np.fft.rfft(frames, bins)) ** 2 / bins
    return dct(np.log(power @ triangles(rate, bins).T + _FLOOR), norm="ortho", axis=1)[:, :COEFFICIENTS]


def triangles(rate: int, bins: int) -> Float[np.ndarray, "triangle frequency"]:
    """Weights that rise from one centre's neighbour to it and fall to the next, centres evenly spaced in mel
    = 2595 log10(1 + hertz / 700), from 20 Hz to half the sample rate."""
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
    """Means over time of each recording's coefficients; with `moments`, their standard deviations too."""
    rows = []
    for number in range(len(recordings)):
        waves = recordings.load(np.array([number]))
        coefficients = mfcc(waves.data[0, : waves.length[0]], recordings.rate)
        means = coefficients.mean(axis=0)
        rows.append(np.concatenate([means, coefficients.std(axis=0)]) if moments else means)
    return torch.from_numpy(np.stack(rows).astype(np.float32))
