"""Recordings: .wav files in a folder, or Parquet in the Hugging Face audio convention (`audio` {bytes, path}).

PCM of 8, 16, 24 or 32 bits is decoded by the standard library; several channels are averaged into one. One set has
one sample rate, the most common among its recordings: what was sampled otherwise goes to the quarantine list, because
a network that counts samples would hear it at another pitch.
"""

import hashlib
import io
import os
import wave
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from nearfar.data.containers import Unusable
from nearfar.data.scan import Source, content_digest, fingerprint, write_quarantine
from nearfar.data.sequences import Held, Read, Sequences
from nearfar.errors import UserError

SUFFIXES = (".wav",)
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
                raise Unusable(f"samples of {8 * width} bits; allowed are 8 to 32")
            if frames * channels > _LONGEST:
                raise Unusable(f"too long: {frames:,} samples, allowed are {_LONGEST:,}")
            raw = file.readframes(frames)
    except (wave.Error, EOFError) as error:
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


def open_recordings(
    source: Source,
    name: str,
    cache_bytes: int,
    max_bad_share: float,
    quarantine: Path | None,
    columns: Callable[[np.ndarray], Mapping[str, Int64[np.ndarray, "item"]]] = lambda kept: {},
) -> Sequences:
    """The usable recordings of a source, if enough of them are; `columns` tells groups of the kept ones."""
    found, bad = _scanned(source, cache_bytes)
    rate = _common_rate([item.rate for item in found.values()])
    for number in [number for number, item in found.items() if item.rate != rate]:
        bad[number] = f"sampled at {found.pop(number).rate} Hz; most of the set is at {rate} Hz"
    names = source.names()
    listed = tuple((os.path.join(source.root, names[n]), bad[n]) for n in sorted(bad))
    if quarantine is not None:
        write_quarantine(quarantine, listed)
    _check_share(source.root, len(found), listed, max_bad_share)
    kept = np.array(sorted(found), dtype=np.int64)
    labels, classes = source.labels(kept)
    groups = columns(kept)
    paths = tuple(names[number] for number in kept)
    return Sequences(
        name=name,
        fingerprint=_marked(fingerprint(paths, [found[n].digest for n in kept], labels), groups),
        channels=1,
        labels=labels,
        classes=classes,
        paths=paths,
        store=_store(source, [found[n] for n in kept], kept),  # type: ignore[arg-type]
        rows=np.arange(len(kept)),
        sizes=np.array([(1, found[n].length) for n in kept], dtype=np.int32),
        quarantine=listed,
        ignored=source.ignored,
        rate=rate,
        groups=groups,
    )


@dataclass
class _Usable:
    digest: bytes
    rate: int
    length: int
    wave: np.ndarray | None


def _scanned(source: Source, cache_bytes: int) -> tuple[dict[int, _Usable], dict[int, str]]:
    """What is usable and why the rest is not, by number; waves are kept while all of them fit the cache."""
    found: dict[int, _Usable] = {}
    bad: dict[int, str] = {}
    room = cache_bytes
    for number, item in enumerate(source.items()):
        try:
            data = item.read()
            recording = decode_wav(data)
        except Unusable as reason:
            bad[number] = str(reason)
            continue
        room -= recording.wave.nbytes
        held = recording.wave if room >= 0 else None
        found[number] = _Usable(content_digest(data), recording.rate, len(recording.wave), held)
    return found, bad


def _common_rate(rates: Sequence[int]) -> int:
    counted = Counter(rates)
    return min(counted, key=lambda rate: (-counted[rate], rate)) if counted else 0


def _store(source: Source, usable: Sequence[_Usable], kept: np.ndarray) -> Held | Read:
    waves = [item.wave for item in usable if item.wave is not None]
    if len(waves) == len(usable):
        return Held(waves)
    read, names = source.reader(kept), source.names()

    def again(row: int) -> np.ndarray:
        try:
            return decode_wav(read(row)).wave
        except Unusable as reason:
            raise UserError(
                f"{names[kept[row]]} was usable when the data were opened and no longer is: {reason}."
            ) from reason

    return Read(again)


def _marked(digest: str, groups: Mapping[str, np.ndarray]) -> str:
    """A fingerprint that also changes when a recording changes its group."""
    whole = hashlib.sha256(digest.encode())
    for name, numbers in sorted(groups.items()):
        whole.update(name.encode() + b"\0" + numbers.astype("<i8").tobytes())
    return whole.hexdigest()


def _check_share(root: str, usable: int, bad: Sequence[tuple[str, str]], allowed: float) -> None:
    total = usable + len(bad)
    if usable and len(bad) <= allowed * total:
        return
    if not total:
        raise UserError(f"data {root!r} hold no recordings.")
    limit = "none is left" if not usable else f"the allowed share is {allowed:g} (max_bad_share)"
    raise UserError(
        f"data {root!r}: {len(bad)} of {total} recordings cannot be used and {limit}; "
        f"the first is {bad[0][0]!r}: {bad[0][1]}."
    )
