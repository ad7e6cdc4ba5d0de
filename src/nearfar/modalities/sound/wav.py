"""PCM .wav files of 8, 16, 24 or 32 bits, by the standard library; several channels are averaged into one."""

import io
import wave
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from nearfar.modalities.dataset import Unusable

_LONGEST = 2**28  # samples of one recording: nine hours at 8 kHz


@dataclass(frozen=True)
class Recording:
    wave: Float32[np.ndarray, "time"]
    rate: int


def decode_wav(data: bytes) -> Recording:
    """A PCM wav file as numbers in [-1, 1), channels averaged."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.getnframes()
            if width > 4:
                raise Unusable(f"samples of {8 * width} bits; expected 8 to 32")
            if frames * channels > _LONGEST:
                raise Unusable(f"too long: {frames:,} samples; the limit is {_LONGEST:,}")
            raw = file.readframes(frames)
    except Unusable:
        raise
    except Exception as error:  # the reader fails on damaged bytes in more ways than it documents
        raise Unusable(f"not a PCM wav file: {str(error) or 'it ends in its header'}") from error
    if frames == 0:
        raise Unusable("empty: no sample is stored")
    if len(raw) != frames * channels * width:
        raise Unusable(
            f"truncated: {len(raw)} bytes of sound where {frames * channels * width} were announced"
        )
    samples = _samples(raw, width).reshape(frames, channels)
    return Recording(samples.mean(axis=1).astype(np.float32), rate)


def _samples(raw: bytes, width: int) -> np.ndarray:
    """Samples of `width` bytes as numbers in [-1, 1): 8 bits are unsigned, all others signed, low byte first."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128
    if width == 3:
        # three bytes as the upper ones of four: the sign comes out right, the scale is that of 32 bits
        four = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        four[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return four.view("<i4").ravel() / 2.0**31
    return np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)
