"""Bytes of a WAV or FLAC file → one channel of samples, by libsndfile, or `Unusable`."""

import io
import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from nearfar.modalities.dataset import Unusable
from nearfar.system.extras import need
from nearfar.system.untrusted import MAX_RATIO, UNCHECKED_BYTES

MAX_SAMPLES = 2**28  # of one recording: nine hours at 8 kHz
SUBTYPES = {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"}


@dataclass(frozen=True)
class Recording:
    wave: Float32[np.ndarray, "time"]
    rate: int  # samples per second


def is_sound(data: bytes) -> bool:
    """Whether the first bytes are those of a WAV or FLAC file."""
    return data[:4] == b"fLaC" or (data[:4] == b"RIFF" and data[8:12] == b"WAVE")


def decode_sound(data: bytes) -> Recording:
    """A WAV or FLAC file as numbers, PCM in [-1, 1); several channels are averaged into one."""
    if not is_sound(data):  # libsndfile knows forty formats; only the decoders of these two are ever run
        raise Unusable("not a WAV or FLAC file")
    soundfile = need("soundfile")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            frames, channels, rate = file.frames, file.channels, file.samplerate
            if file.subtype not in SUBTYPES:
                raise Unusable(f"unsupported encoding ({file.subtype}); expected PCM or floats")
            if data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 > len(data):
                _check_complete(file.extra_info)
            _check_length(frames, channels, len(data))
            samples = file.read(frames, dtype="float64", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError, MemoryError) as error:
        # the library's message begins with the address of the buffer
        raise Unusable(f"corrupt: {str(error).rpartition(': ')[2].rstrip('.')}") from error
    if len(samples) != frames:
        raise Unusable(f"truncated: {len(samples)} of {frames} samples")
    if file.subtype in ("FLOAT", "DOUBLE") and not np.isfinite(samples).all():
        raise Unusable("corrupt: some samples are not finite")
    wave = samples[:, 0] if channels == 1 else samples.mean(axis=1)
    return Recording(wave.astype(np.float32), int(rate))


def _check_complete(log: str) -> None:
    """libsndfile reads a shortened WAV file up to its end without an error; its log has the difference."""
    short = re.search(r"^data : (\d+) \(should be (\d+)\)", log, re.MULTILINE)
    if short is not None and int(short[1]) > int(short[2]):
        raise Unusable(f"truncated: {short[2]} of {short[1]} bytes of sound")


def _check_length(frames: int, channels: int, encoded: int) -> None:
    """Refuses what is empty or too long; a FLAC header may claim any length."""
    if frames == 0:
        raise Unusable("empty: no samples")
    samples = frames * channels
    if samples > MAX_SAMPLES or 8 * samples > max(UNCHECKED_BYTES, MAX_RATIO * encoded):
        raise Unusable(f"too long: {frames:,} samples; the limit is {MAX_SAMPLES:,}")
