"""MFCC against a slow transform written from the definitions."""

import math

import numpy as np
import pytest

from nearfar.modalities.dataset import padded
from nearfar.modalities.sound.show import mfcc, mfcc_features, triangles


def slow_mfcc(wave: np.ndarray, rate: int) -> np.ndarray:
    """Every sum written out: emphasis, window, discrete Fourier transform, triangles, cosine transform."""
    width, step = round(0.025 * rate), round(0.010 * rate)
    bins = 1
    while bins < width:
        bins *= 2
    sharp = [wave[0]] + [wave[t] - 0.97 * wave[t - 1] for t in range(1, len(wave))]
    centres = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(
            2595 * math.log10(1 + 20 / 700), 2595 * math.log10(1 + rate / 2 / 700), 42)]  # fmt: skip
    rows = []
    for start in range(0, len(wave) - width + 1, step):
        frame = [
            sharp[start + n] * (0.54 - 0.46 * math.cos(2 * math.pi * n / (width - 1))) for n in range(width)
        ]
        power = []
        for f in range(bins // 2 + 1):
            turn = np.exp(-2j * np.pi * f * np.arange(width) / bins)
            power.append(abs(sum(x * w for x, w in zip(frame, turn, strict=True))) ** 2 / bins)
        logs = []
        for j in range(40):
            low, centre, high = centres[j : j + 3]
            total = 0.0
            for f, p in enumerate(power):
                hertz = f * rate / bins
                if low < hertz <= centre:
                    total += p * (hertz - low) / (centre - low)
                elif centre < hertz < high:
                    total += p * (high - hertz) / (high - centre)
            logs.append(math.log(total + 1e-10))
        rows.append([
                math.sqrt((1 if q == 0 else 2) / 40)
                * sum(logs[j] * math.cos(math.pi * q * (j + 0.5) / 40) for j in range(40))
                for q in range(13)
        ])  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize("rate", [2000, 8000])
def test_mfcc_is_the_slow_transform(rate: int) -> None:
    wave = np.random.default_rng(rate).normal(size=round(0.05 * rate)) * 0.1
    assert mfcc(wave, rate) == pytest.approx(slow_mfcc(wave, rate), abs=1e-8)


def test_a_tone_is_loudest_in_the_triangle_around_it() -> None:
    weights = triangles(8000, 256)
    tone = np.abs(np.fft.rfft(np.sin(2 * np.pi * 1000 * np.arange(256) / 8000) * np.hamming(256))) ** 2
    loudest = int((weights @ tone).argmax())
    peak = int(weights[loudest].argmax()) * 8000 / 256
    assert abs(peak - 1000) < 60


class Two:
    rate = 8000

    def __init__(self, waves: list[np.ndarray]) -> None:
        self.waves = waves

    def __len__(self) -> int:
        return len(self.waves)

    def load(self, index: np.ndarray) -> object:
        return padded([self.waves[i] for i in index])


def test_features_are_means_then_deviations_over_the_true_length_also_of_a_very_short_recording() -> None:
    generator = np.random.default_rng(0)
    waves = [generator.normal(size=n).astype(np.float32) for n in (900, 50)]
    features = mfcc_features(Two(waves), moments=True).numpy()  # type: ignore[arg-type]
    assert features.shape == (2, 26)
    long = mfcc(waves[0], 8000)
    assert features[0] == pytest.approx(np.concatenate([long.mean(0), long.std(0)]), rel=1e-4, abs=1e-4)
    assert features[1, 13:] == pytest.approx(np.zeros(13))
    assert np.isfinite(features).all()
