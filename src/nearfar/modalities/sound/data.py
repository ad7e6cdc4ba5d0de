"""Recordings: one channel of samples each.

A set has one sample rate, the most common among its recordings. Recordings with another rate go to the
quarantine list, because a network that counts samples would hear them at another pitch.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Collection, Decoded, Description
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.sequences import SequenceStore
from nearfar.modalities.sound.decode import decode_sound


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
    feature = "Audio"

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        recording = decode_sound(raw)
        return Decoded(recording.wave, (recording.rate, len(recording.wave)), recording.wave.nbytes)

    def outliers(self, facts: Sequence[tuple[int, int]]) -> dict[int, str]:
        counts = Counter(rate for rate, _ in facts)
        usual = min(counts, key=lambda rate: (-counts[rate], rate), default=0)
        return {
            place: f"sampled at {rate} Hz; most of the set is at {usual} Hz"
            for place, (rate, _) in enumerate(facts)
            if rate != usual
        }

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Recordings:
        common = collection.common()
        common["fingerprint"] = _with_groups(collection.fingerprint, collection.groups)
        facts = np.asarray(collection.facts).astype(np.int64)
        store = SequenceStore(collection.read)
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
