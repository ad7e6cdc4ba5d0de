"""Every picture is looked at once, when the data are opened: what is usable, and why the rest is not.

The scan decodes each picture in full, because a header does not tell whether the file behind it is complete.
While the decoded pictures fit the cache they are kept, so that for small sets nothing is decoded twice; beyond
it only the index stays and pictures are decoded at each `load`.
"""

import csv
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from nearfar.data.containers import Unusable
from nearfar.data.decode import decode
from nearfar.data.images import Encoded, Images, Ragged, Stacked, Store
from nearfar.data.labels import Labels
from nearfar.data.prefetch import prefetch
from nearfar.errors import UserError

_CHUNK_ITEMS, _CHUNK_BYTES = 64, 2**18
_SAMPLE = 2**16
_SMALL = 2**14  # below this, handing the interpreter lock to and fro costs more than a second thread gains


@dataclass(frozen=True)
class Item:
    """A picture yet to be read; `weight` is about how many bytes it has."""

    weight: int
    read: Callable[[], bytes]


class Source(Protocol):
    """Encoded pictures: a folder, or Parquet files."""

    root: str  # what messages call it
    ignored: int

    def names(self) -> Sequence[str]: ...
    def items(self) -> Iterator[Item]: ...
    def mean_bytes(self) -> float: ...
    def reader(self, kept: np.ndarray) -> Callable[[int], bytes]:
        """Random access to the pictures with these numbers, by place in `kept`."""

    def labels(self, kept: np.ndarray) -> Labels: ...


@dataclass(frozen=True)
class Usable:
    digest: bytes
    size: tuple[int, int]  # (height, width)
    pixels: np.ndarray | None


@dataclass
class Scan:
    """What was found so far. `pictures` is None once they no longer fit."""

    room: int
    kept: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    pictures: list[np.ndarray] | None = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)

    def add(self, number: int, found: Usable | str) -> None:
        if isinstance(found, str):
            self.bad.append((number, found))
            return
        self.kept.append(number)
        self.digests.append(found.digest)
        self.sizes.append(found.size)
        self.room -= 3 * found.size[0] * found.size[1]
        if self.room < 0:
            self.pictures = None
        if self.pictures is not None and found.pixels is not None:
            self.pictures.append(found.pixels)


def open_source(
    source: Source,
    name: str,
    image_size: int | None,
    cache_bytes: int,
    max_bad_share: float,
    quarantine: Path | None,
) -> Images:
    """The usable pictures of a source, if enough of them are."""
    scan = scanned(source, image_size, cache_bytes)
    names = source.names()
    bad = tuple((os.path.join(source.root, names[number]), reason) for number, reason in scan.bad)
    if quarantine is not None:
        write_quarantine(quarantine, bad)
    _check_share(source.root, len(scan.kept), bad, max_bad_share)
    kept = np.array(scan.kept, dtype=np.int64)
    labels, classes = source.labels(kept)
    paths = tuple(names[number] for number in scan.kept)
    return Images(
        name=name,
        fingerprint=fingerprint(paths, scan.digests, labels),
        channels=3,
        labels=labels,
        classes=classes,
        paths=paths,
        store=_store(source, scan, kept, image_size),
        rows=np.arange(len(kept)),
        sizes=np.array(scan.sizes, dtype=np.int32),
        quarantine=bad,
        ignored=source.ignored,
    )


def scanned(source: Source, image_size: int | None, cache_bytes: int) -> Scan:
    scan = Scan(room=cache_bytes)

    def examine(chunk: list[Item]) -> list[Usable | str]:
        return [examined(item, image_size, keep=scan.pictures is not None) for item in chunk]

    workers = 0 if source.mean_bytes() < _SMALL else min(os.cpu_count() or 1, 8)
    number = 0
    for results in prefetch(examine, _chunks(source.items()), workers):
        for found in results:
            scan.add(number, found)
            number += 1
    return scan


def examined(item: Item, image_size: int | None, keep: bool) -> Usable | str:
    """A picture's digest, size and pixels, or the reason why it cannot be used."""
    try:
        data = item.read()
        pixels = decode(data, image_size)
    except Unusable as reason:
        return str(reason)
    return Usable(content_digest(data), (pixels.shape[0], pixels.shape[1]), pixels if keep else None)


def content_digest(data: bytes) -> bytes:
    """sha256 over the length, the first and the last 64 KiB.

    Files up to 128 KiB are covered whole. In larger ones an edit that changes neither the length nor either end
    goes unseen; that is no way in which pictures are edited or replaced.
    """
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    digest.update(data if len(data) <= 2 * _SAMPLE else data[:_SAMPLE] + data[-_SAMPLE:])
    return digest.digest()


def fingerprint(paths: Sequence[str], digests: Sequence[bytes], labels: np.ndarray | None) -> str:
    """Changes when a usable image is added, removed, renamed, reordered, edited or labelled anew.

    Where the data lie and when they were written play no part.
    """
    digest = hashlib.sha256()
    for path, content in zip(paths, digests, strict=True):
        digest.update(path.encode() + b"\0" + content)
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return digest.hexdigest()


def write_quarantine(file: Path, bad: Sequence[tuple[str, str]]) -> None:
    """`path,reason` as CSV, with nothing but the header when all is well."""
    try:
        with open(file, "w", encoding="utf-8", errors="backslashreplace", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows([("path", "reason"), *bad])
    except OSError as error:
        raise UserError(f"the quarantine list {str(file)!r} cannot be written: {error.strerror}.") from error


def _check_share(root: str, usable: int, bad: Sequence[tuple[str, str]], allowed: float) -> None:
    if not bad and not usable:
        raise UserError(f"data {root!r} hold no images.")
    total = usable + len(bad)
    if usable and len(bad) <= allowed * total:
        return
    limit = "none is left" if not usable else f"the allowed share is {allowed:g} (max_bad_share)"
    raise UserError(
        f"data {root!r}: {len(bad)} of {total} images cannot be used and {limit}; "
        f"the first is {bad[0][0]!r}: {bad[0][1]}."
    )


def _store(source: Source, scan: Scan, kept: np.ndarray, image_size: int | None) -> Store:
    if scan.pictures is None:
        names = source.names()
        return Encoded(source.reader(kept), lambda row: names[kept[row]], image_size)
    if len(set(scan.sizes)) > 1:
        return Ragged(scan.pictures)
    array = np.empty((len(kept), *scan.sizes[0], 3), dtype=np.uint8)
    for row in range(len(kept))[
        ::-1
    ]:  # each picture is given up once copied, so that memory is not held twice
        array[row] = scan.pictures.pop()
    return Stacked(array)


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    weight = 0
    for item in items:
        chunk.append(item)
        weight += item.weight
        if len(chunk) >= _CHUNK_ITEMS or weight >= _CHUNK_BYTES:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk
