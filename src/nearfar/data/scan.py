"""Every file or row is looked at once, when the data are opened: what is usable, and why the rest is not.

The scan decodes each in full, because a header does not tell whether the file behind it is complete. While what was
decoded fits the cache it is kept, so that for small sets nothing is decoded twice; beyond it only the index stays and
instances are decoded at each `load`. This is the one way in for every modality: what differs is `decode`.
"""

import csv
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.kept import read_scan, scan_file, write_scan
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Modality
from nearfar.modalities.base import Collection, Decoded
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.labels import Labels
from nearfar.system.files import write_atomic
from nearfar.system.prefetch import prefetch

_CHUNK_ITEMS, _CHUNK_BYTES = 64, 2**18
_SAMPLE = 2**16
_SMALL = 2**14  # below this, handing the interpreter lock to and fro costs more than a second thread gains


@dataclass(frozen=True)
class Item:
    """Something yet to be read; `weight` is about how many bytes it has."""

    weight: int
    read: Callable[[], Any]


class Source(Protocol):
    """Things yet to be decoded: the files of a folder, the rows of Parquet files, the items of a torch `Dataset`."""

    root: str  # what messages call it
    ignored: Mapping[str, int]  # files that are not read, by reason

    def names(self) -> Sequence[str]: ...
    def items(self) -> Iterator[Item]: ...
    def mean_bytes(self) -> float: ...
    def reader(self, kept: np.ndarray) -> Callable[[int], Any]:
        """Random access to those with these numbers, by place in `kept`."""

    def labels(self, kept: np.ndarray) -> Labels: ...
    def groups(self, kept: np.ndarray) -> Mapping[str, np.ndarray]: ...
    def unlabelled(self) -> str:
        """Why there are no labels, where there are none."""

    def stamp(self) -> str | None:
        """Changes when one of its files may have; None where nobody can tell."""


Decode = Callable[[Any], Decoded]


@dataclass(frozen=True)
class Limits:
    """How much may be held in memory or decoded at opening, what share may be unusable, and where the list of that goes."""

    cache_bytes: int = 2**31
    max_bad_share: float = 0.05
    quarantine: Path | None = None
    scans: Path | None = None  # a folder in which scans are kept
    judged_together: bool = False  # by several ranks, when they meet, where nothing is decoded at opening
    scan_bytes: int = 2**31  # beyond so many encoded bytes nothing is decoded before it is used
    meet: Callable[[], Strategy] = lambda: SINGLE  # who share a scan, asked when one begins


@dataclass(frozen=True)
class Usable:
    digest: bytes
    facts: Any
    weight: int
    content: Any


@dataclass
class Scan:
    """What was found so far. `held` is None once it no longer fits."""

    room: int
    kept: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    facts: list[Any] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    held: list[Any] | None = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, found: Usable | str) -> None:
        if isinstance(found, str):
            self.bad[number] = found
            return
        self.kept.append(number)
        self.digests.append(found.digest)
        self.facts.append(found.facts)
        self.weights.append(found.weight)
        self.room -= found.weight
        if self.room < 0:
            self.held = None
        if self.held is not None:
            self.held.append(found.content)

    def rows(self) -> list[dict[str, Any]]:
        """What `data.kept` keeps: a row for everything that was looked at, in its order."""
        found: dict[int, dict[str, Any]] = {
            number: {"digest": digest, "facts": list(facts), "weight": weight, "reason": None}
            for number, digest, facts, weight in zip(
                self.kept, self.digests, self.facts, self.weights, strict=True
            )
        }
        nothing = {"digest": None, "facts": None, "weight": None}
        found |= {number: {**nothing, "reason": reason} for number, reason in self.bad.items()}
        return [found[number] for number in sorted(found)]

    def drop(self, odd: Mapping[int, str]) -> None:
        """Sets aside what does not go with the others, by place among the kept."""
        self.bad |= {self.kept[place]: reason for place, reason in odd.items()}
        lists: list[list[Any]] = [self.kept, self.digests, self.facts, self.weights]
        lists += [] if self.held is None else [self.held]
        for place in sorted(odd, reverse=True):
            for each in lists:
                del each[place]


def open_source(
    source: Source, name: str, modality: Modality, options: Mapping[str, Any], decode: Decode, limits: Limits
) -> DataSet:
    """The usable part of a source, if enough of it is."""
    scan = _kept_or_scanned(source, modality, options, decode, limits)
    scan.drop(modality.reader.outliers(scan.facts))
    names = source.names()
    bad = tuple((os.path.join(source.root, names[n]), reason) for n, reason in sorted(scan.bad.items()))
    if limits.quarantine is not None:
        write_quarantine(limits.quarantine, bad)
    check_share(name, modality.reader.files, len(scan.kept), bad, limits.max_bad_share)
    kept = np.array(scan.kept, dtype=np.int64)
    labelled = source.labels(kept)
    paths = tuple(names[number] for number in scan.kept)
    found = Collection(
        name=name,
        fingerprint=fingerprint(paths, scan.digests, labelled[0]),
        paths=paths,
        facts=scan.facts,
        contents=scan.held,
        read=_again(source, kept, paths, decode, limits.cache_bytes)
        if scan.held is None
        else scan.held.__getitem__,
        labelled=labelled,
        groups=source.groups(kept),
        quarantine=bad,
        ignored=source.ignored,
        unlabelled="" if labelled[0] is not None else source.unlabelled(),
    )
    return modality.reader.collect(found, options)


def _kept_or_scanned(
    source: Source, modality: Modality, options: Mapping[str, Any], decode: Decode, limits: Limits
) -> Scan:
    """The scan that was kept of the same files, with nothing decoded yet; or a new one, which is then kept."""
    stamp = source.stamp() if limits.scans is not None else None
    if limits.scans is None or stamp is None:
        return scanned(source, decode, limits.cache_bytes, limits.meet())
    file = scan_file(limits.scans, stamp, modality.name, options)
    known = read_scan(file)
    if known is None:
        scan = scanned(source, decode, limits.cache_bytes, limits.meet())
        write_scan(file, scan.rows())
        return scan
    scan = Scan(room=0, held=None)
    for number, row in enumerate(known):
        usable = Usable(row["digest"], tuple(row["facts"] or ()), row["weight"] or 0, None)
        scan.add(number, usable if row["reason"] is None else row["reason"])
    return scan


def scanned(source: Source, decode: Decode, cache_bytes: int, strategy: Strategy = SINGLE) -> Scan:
    if strategy.is_distributed:
        return _shared(source, decode, strategy)
    scan = Scan(room=cache_bytes)

    def examine(chunk: list[Item]) -> list[Usable | str]:
        return [examined(item, decode, keep=scan.held is not None) for item in chunk]

    number = 0
    for results in prefetch(examine, _chunks(source.items()), _workers(source)):
        for found in results:
            scan.add(number, found)
            number += 1
    return scan


def _workers(source: Source) -> int:
    return 0 if source.mean_bytes() < _SMALL else min(os.cpu_count() or 1, 8)


def _shared(source: Source, decode: Decode, strategy: Strategy) -> Scan:
    """The same by several ranks, each of which looks at a share of the chunks. Nothing of what was decoded is held, since nobody has all
    of it: it is decoded again when it is asked for."""

    def numbered() -> Iterator[tuple[int, list[Item]]]:
        number = 0
        for place, chunk in enumerate(_chunks(source.items())):
            if place % strategy.world == strategy.rank:
                yield number, chunk
            number += len(chunk)

    def examine(part: tuple[int, list[Item]]) -> list[tuple[int, Any]]:
        found = ((part[0] + k, examined(item, decode, keep=False)) for k, item in enumerate(part[1]))
        return [
            (number, one if isinstance(one, str) else (one.digest.hex(), list(one.facts), one.weight))
            for number, one in found
        ]

    mine: list[tuple[int, Any]] = []
    problem = None
    try:
        for results in prefetch(examine, numbered(), _workers(source)):
            mine += results
    except UserError as error:  # which the others would wait for in vain
        problem = str(error)
    said = strategy.all_gather_json({"problem": problem, "found": mine})
    for each in said:
        if each["problem"] is not None:
            raise UserError(each["problem"])
    scan = Scan(room=0, held=None)
    for number, one in sorted((row for each in said for row in each["found"]), key=lambda row: row[0]):
        scan.add(
            number,
            one if isinstance(one, str) else Usable(bytes.fromhex(one[0]), tuple(one[1]), one[2], None),
        )
    return scan


def examined(item: Item, decode: Decode, keep: bool) -> Usable | str:
    """Digest, facts and content of a file or row, or the reason why it cannot be used."""
    try:
        raw = item.read()
        found = decode(raw)
    except Unusable as reason:
        return str(reason)
    seen = raw if isinstance(raw, bytes) else np.ascontiguousarray(found.content).tobytes()
    return Usable(content_digest(seen), found.facts, found.nbytes, found.content if keep else None)


def _again(
    source: Source, kept: np.ndarray, paths: Sequence[str], decode: Decode, room: int
) -> Callable[[int], Any]:
    """Contents by place, decoded when first asked for, and remembered while they fit into `room` bytes."""
    read: Callable[[int], Any] | None = None
    remembered: dict[int, Any] = {}
    lock = threading.Lock()

    def content(place: int) -> Any:
        nonlocal read, room
        if place in remembered:
            return remembered[place]
        with lock:
            read = read or source.reader(
                kept
            )  # which may copy encoded bytes to disk: not before it is needed
        try:
            found = decode(read(place))
        except Unusable as reason:
            raise UserError(
                f"{paths[place]} was usable when the data were opened and no longer is: {reason}."
            ) from reason
        with lock:
            if found.nbytes <= room and place not in remembered:
                room -= found.nbytes
                remembered[place] = found.content
        return found.content

    return content


def content_digest(data: bytes) -> bytes:
    """sha256 over the length, the first and the last 64 KiB.

    Files up to 128 KiB are covered whole. In larger ones an edit that changes neither the length nor either end
    goes unseen; that is no way in which files are edited or replaced.
    """
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    digest.update(data if len(data) <= 2 * _SAMPLE else data[:_SAMPLE] + data[-_SAMPLE:])
    return digest.digest()


def fingerprint(paths: Sequence[str], digests: Sequence[bytes], labels: np.ndarray | None) -> str:
    """Changes when something usable is added, removed, renamed, reordered, edited or labelled anew.

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
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([("path", "reason"), *bad])
        write_atomic(file, lines.getvalue())
    except OSError as error:
        raise UserError(f"the quarantine list {str(file)!r} cannot be written: {error.strerror}.") from error


def check_share(root: str, unit: str, usable: int, bad: Sequence[tuple[str, str]], allowed: float) -> None:
    if not bad and not usable:
        raise UserError(f"data {root!r} hold no {unit}.")
    total = usable + len(bad)
    if usable and len(bad) <= allowed * total:
        return
    limit = "none is left" if not usable else f"the limit is a share of {allowed:g} (max_bad_share)"
    raise UserError(
        f"data {root!r}: {len(bad)} of {total} {unit} cannot be used and {limit}; "
        f"the first is {bad[0][0]!r}: {bad[0][1]}."
    )


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
