"""Recordings: one channel of samples each.

A set has one sample rate, the most common among its recordings. Recordings with another rate go to the
quarantine list, because a network that counts samples would hear them at another pitch.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Int64

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Collection, Decoded, Description
from nearfar.modalities.dataset import DataSet, RowStore, Unusable, padded, unlike_most
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Recordings(DataSet):
    """An opened set of recordings: `load` returns `Sequences` of numbers in [-1, 1)."""

    modality: ClassVar[str] = "sound"
    unit: ClassVar[str] = "recordings"
    per_instance: ClassVar[tuple[str, ...]] = (*DataSet.per_instance, "lengths")

    rate: int  # samples per second
    lengths: Int64[np.ndarray, "item"]  # in samples


@dataclass(frozen=True)
class SoundDescription(Description):
    rate: int  # samples per second

    def check_alike(self, data: Recordings, run_name: str) -> None:
        if data.rate != self.rate:
            raise UserError(
                f"{data.name} is sampled at {data.rate} Hz but {run_name} was trained on {self.rate} Hz"
            )


class SoundReader(AbstractReader):
    description_type = SoundDescription
    suffixes = (".wav", ".flac")
    unread: ClassVar[Mapping[str, str]] = {
        ".mp3": "MP3",
        ".ogg": "Ogg",
        ".opus": "Opus",
        ".m4a": "AAC",
        ".aac": "AAC",
        ".wma": "WMA",
        ".aiff": "AIFF",
    }
    converted_to = "WAV or FLAC"
    files = "recordings"
    columns = ("audio",)
    fact_ranges = (range(1, 2**31), range(1, MAX_SAMPLES + 1))
    feature = "Audio"

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        recording = decode_sound(raw)
        return Decoded(recording.wave, (recording.rate, len(recording.wave)), recording.wave.nbytes)

    def outliers(self, facts: Sequence[tuple[int, int]]) -> dict[int, str]:
        return unlike_most(
            [rate for rate, _ in facts],
            lambda rate, usual: f"sampled at {rate} Hz; most of the set is at {usual} Hz",
        )

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Recordings:
        common = collection.common()
        common["fingerprint"] = _with_groups(collection.fingerprint, collection.groups)
        facts = np.asarray(collection.facts).astype(np.int64)
        store = RowStore(collection.content_at, padded)
        return Recordings(**common, store=store, rate=int(facts[0, 0]), lengths=facts[:, 1])

    def describe(self, data: Recordings, size: int | None) -> SoundDescription:
        return SoundDescription(data.fingerprint, len(data), data.rate)

    def example_description(self, instances: int) -> SoundDescription:
        return SoundDescription("", instances, 8000)


def _with_groups(fingerprint: str, groups: Mapping[str, np.ndarray]) -> str:
    """A fingerprint that also changes when a recording changes its group."""
    digest = hashlib.sha256(fingerprint.encode())
    for name, numbers in sorted(groups.items()):
        digest.update(name.encode() + b"\0" + numbers.astype("<i8").tobytes())
    return digest.hexdigest()
