"""How sources become a `DataSet`: decoded on request, checked by a pass over the same reader.

    source --LazyReader--> contents by number --collect--> DataSet

A source of at most `Limits.scan_bytes` is checked when it is opened: every instance is decoded once, because
a header does not tell whether the file behind it is complete. Contents that fit the cache are kept, so small
sets are decoded once. A larger source is opened by names and sizes. An instance that then turns out to be
unusable is replaced by the next one of the set (`DataSet.load_usable`), so what is seen does not depend on
when that is found out; `check_all` reads everything before an evaluation covers every instance.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.records import (
    ItemResult,
    Record,
    append_quarantine,
    check_share,
    content_digest,
    fingerprint,
    read_quarantine,
    read_records,
    record_file,
    unchecked_fingerprint,
    write_quarantine,
    write_records,
)
from nearfar.data.source import AbstractSource, Decode, Item, ItemReader, Limits
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Modality
from nearfar.modalities.base import Collection, Decoded
from nearfar.modalities.dataset import Unreadable, Unusable
from nearfar.system.files import write_atomic
from nearfar.system.prefetch import prefetch
from nearfar.system.untrusted import read_json

AnySet = TypeVar("AnySet", bound=DataSet)
CHUNK_ITEMS, CHUNK_BYTES = 64, 2**18  # instances examined by one thread at a time
MIN_PARALLEL_BYTES = 2**14  # smaller instances are examined faster by one thread
NAMES = 2**16  # names compared at a time
MAX_TRIES = 16  # instances among which one tells the kind of all


class LazyReader:
    """Contents by number, decoded on request; keeps contents of a checked source in memory while they fit.

    Unusable instances are noted once, listed in the quarantine file and refused from then on; so are those
    that the list of an earlier process names. A single process judges at once whether they are too many.
    Several ranks meet different ones and judge them together in `sync`.
    """

    def __init__(
        self,
        source: AbstractSource,
        decode: Decode,
        limits: Limits,
        *,
        checked: bool = False,
        decoded_before: bool = False,
    ) -> None:
        self.source, self.decode, self.limits = source, decode, limits
        self.names = source.names()
        self.bad: dict[int, str] = {}
        self.checked = checked  # when it was opened
        self._decoded_before = decoded_before  # readable bytes with the right digest can be decoded
        self._read_item: ItemReader | None = None
        self._usable: Int64[np.ndarray, row] = np.zeros(0, dtype=np.int64)
        self._cache: dict[int, Any] = {}
        self._free_bytes = limits.cache_bytes if checked else 0  # of the cache
        self._lock = threading.Lock()
        self._listed: dict[str, str] = {}
        self._unshared: dict[int, str] = {}  # unusable instances that other ranks do not know
        self._shared: dict[int, str] = {}  # those that all ranks know

    def __call__(self, number: int) -> Any:
        with suppress(KeyError):
            return self._cache[number]
        if number in self.bad:
            if len(self.bad) == len(self.names):  # the caller would go to the next one for ever
                self.check_bad_share(self.bad)
            raise Unreadable(number) from Unusable(self.bad[number])
        try:
            decoded = self.decode(self._bytes(number))
        except Unusable as reason:
            raise self._refused(number, reason) from reason
        with self._lock:
            if decoded.nbytes <= self._free_bytes and number not in self._cache:
                self._free_bytes -= decoded.nbytes
                self._cache[number] = decoded.content
        return decoded.content

    def _bytes(self, number: int) -> Any:
        with self._lock:  # access may copy encoded bytes to disk, so it begins when it is needed
            if self._read_item is None:
                rows = self._usable if self.checked else np.arange(len(self.names))
                self._read_item = self.source.random_access(rows) if self.checked else self.source.read_item
        return self._read_item(number)

    def _refused(self, number: int, reason: Unusable) -> Exception:
        if self.checked:
            return UserError(
                f"{self.names[number]} was usable when the data were opened and no longer is: {reason}."
            )
        self.quarantine(number, str(reason))
        return Unreadable(number)

    def path(self, number: int) -> str:
        return os.path.join(self.source.root, self.names[number])

    # ------------------------------------------------------------------------------------- full check

    def check(self, strategy: Strategy) -> list[ItemResult]:
        """Examines every instance: digests and facts of usable ones, reasons of others. Contents are cached
        if all of them fit; ranks examine shares of the source and cache nothing."""
        keep = not strategy.is_distributed

        def examine(number: int, item: Item) -> ItemResult:
            try:
                raw = item.read()
                decoded = self.decode(raw)
            except Unusable as reason:
                return str(reason)
            if keep:
                self._keep(number, decoded)
            data = raw if isinstance(raw, bytes) else np.ascontiguousarray(decoded.content).tobytes()
            return Record(content_digest(data), tuple(decoded.facts), decoded.nbytes)

        mean_bytes = self.source.nbytes() / max(1, len(self.names))
        workers = 0 if mean_bytes < MIN_PARALLEL_BYTES else min(os.cpu_count() or 1, 8)
        results = examine_items(self.source.in_order(), examine, strategy, workers)
        if self._free_bytes < 0:  # from here on contents are cached in the order of requests
            self._free_bytes = self.limits.cache_bytes
        return [result for _, result in sorted(results.items())]

    def _keep(self, number: int, decoded: Decoded) -> None:
        """Caches a content; none at all once they do not fit."""
        with self._lock:
            if self._free_bytes >= 0:
                self._free_bytes -= decoded.nbytes
                self._cache[number] = decoded.content
                if self._free_bytes < 0:
                    self._cache.clear()

    def take_contents(self, rows: Int64[np.ndarray, "row"]) -> list[Any] | None:
        """The contents of the usable rows, if all of them are in memory; they leave the cache."""
        self._usable = rows
        if any(number not in self._cache for number in rows.tolist()):
            return None
        contents = [self._cache.pop(number) for number in rows.tolist()]
        self._cache.clear()
        return contents

    # ------------------------------------------------------------------------- unusable rows on request

    def load_quarantine(self) -> None:
        """Starts with the quarantine list of an earlier process. If those alone are too many, they are tried
        again: they may have been repaired."""
        self._listed = read_quarantine(self.limits.quarantine)
        if self.limits.quarantine is not None:
            write_quarantine(self.limits.quarantine, self._listed.items())
        for start in range(0, len(self.names) if self._listed else 0, NAMES):
            for number, name in enumerate(self.names[start : start + NAMES], start):
                reason = self._listed.get(os.path.join(self.source.root, name))
                if reason is not None:
                    self.bad[number] = reason
        try:
            self.check_bad_share(self.bad)
        except UserError:
            self._forget_repaired()
            self.check_bad_share(self.bad)
        self._unshared = dict(self.bad)

    def _forget_repaired(self) -> None:
        listed, self.bad = self.bad, {}
        for number, reason in listed.items():
            try:
                self.decode(self._bytes(number))
                del self._listed[self.path(number)]
            except Unusable:
                self.bad[number] = reason
        if self.limits.quarantine is not None:
            write_quarantine(self.limits.quarantine, self._listed.items())

    def quarantine(self, number: int, reason: str) -> None:
        """Remembers and lists an unusable instance."""
        with self._lock:
            if number in self.bad:
                return
            self.bad[number] = self._unshared[number] = reason
            path = self.path(number)
            if self.limits.quarantine is not None and path not in self._listed:
                self._listed[path] = reason
                append_quarantine(self.limits.quarantine, path, reason)
            if not self.limits.judged_together or len(self.bad) == len(self.names):
                self.check_bad_share(self.bad)

    def check_bad_share(self, bad: Mapping[int, str]) -> None:
        """Raises `UserError` if the share of bad instances is too large."""
        usable = len(self.names) - len(bad)
        if bad and (not usable or len(bad) > self.limits.max_bad_share * len(self.names)):
            check_share(
                self.source.root, "instances", usable, self.quarantined(bad), self.limits.max_bad_share
            )

    def quarantined(self, bad: Mapping[int, str] | None = None) -> tuple[tuple[str, str], ...]:
        """(path, reason) of unusable instances."""
        reasons = self.bad if bad is None else bad
        return tuple((self.path(number), reason) for number, reason in sorted(reasons.items()))

    def has_unshared_rows(self) -> bool:
        """Whether this rank found unusable instances that other ranks do not know."""
        return bool(self._unshared)

    def sync(self, strategy: Strategy) -> None:
        """All ranks learn which instances each found unusable, rank 0 lists them, and all judge the same."""
        with self._lock:
            news, self._unshared = self._unshared, {}
        for reasons in strategy.all_gather_json(news):
            for number, reason in reasons.items():
                self.quarantine(int(number), reason)
                self._shared[int(number)] = reason
        with self._lock:
            self._unshared = {n: reason for n, reason in self._unshared.items() if n not in self._shared}
        self.check_bad_share(self._shared)  # not `bad`, to which prefetching threads may have added

    def check_rest(self, strategy: Strategy, workers: int) -> None:
        """Reads every instance that was not read yet, in shares of the ranks."""

        def examine(number: int, item: Item) -> ItemResult:
            try:
                raw = item.read()
                if not self._decoded_before:
                    self.decode(raw)
            except Unusable as reason:
                return str(reason)
            return ""

        for number, reason in sorted(
            examine_items(self.source.by_number(), examine, strategy, workers).items()
        ):
            self.quarantine(number, str(reason))


def examine_items(
    items: Iterable[Item], examine: Callable[[int, Item], ItemResult], strategy: Strategy, workers: int
) -> dict[int, ItemResult]:
    """What `examine(number, item)` returns for every instance, but for empty texts; ranks share the work."""

    def shares() -> Iterator[tuple[int, list[Item]]]:
        first = 0
        for place, chunk in enumerate(_chunks(items)):
            if place % strategy.world == strategy.rank:
                yield first, chunk
            first += len(chunk)

    def examine_chunk(share: tuple[int, list[Item]]) -> list[tuple[int, ItemResult]]:
        first, chunk = share
        results = [(number, examine(number, item)) for number, item in enumerate(chunk, first)]
        return [(number, result) for number, result in results if result != ""]

    problem: str | None = None
    rank_results: list[tuple[int, ItemResult]] = []
    try:
        for results in prefetch(examine_chunk, shares(), workers):
            rank_results += results
    except UserError as error:
        if not strategy.is_distributed:
            raise
        problem = str(error)  # the other ranks would wait
    if not strategy.is_distributed:
        return dict(rank_results)
    for text in strategy.all_gather_json(problem):
        if text is not None:
            raise UserError(text)
    encoded = [
        (number, result if isinstance(result, str) else [result.digest.hex(), result.facts, result.nbytes])
        for number, result in rank_results
    ]
    return {
        int(number): result
        if isinstance(result, str)
        else Record(bytes.fromhex(result[0]), tuple(result[1]), result[2])
        for part in strategy.all_gather_json(encoded)
        for number, result in part
    }


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    nbytes = 0
    for item in items:
        chunk.append(item)
        nbytes += item.nbytes
        if len(chunk) >= CHUNK_ITEMS or nbytes >= CHUNK_BYTES:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


# ------------------------------------------------------------------------------------------------ opening


def open_source(
    source: AbstractSource,
    name: str,
    modality: Modality,
    options: Mapping[str, Any],
    decode: Decode,
    limits: Limits,
) -> DataSet:
    """The usable instances of a source, if enough of them are."""
    default_facts = modality.reader.default_facts
    if default_facts is None or source.nbytes() <= limits.scan_bytes:
        return _open_checked(LazyReader(source, decode, limits, checked=True), name, modality, options)
    reader = LazyReader(source, decode, limits)
    check_share(name, modality.reader.files, len(reader.names), (), limits.max_bad_share)
    first = _first_facts(reader) or default_facts
    reader.decode = _uniform_decoder(decode, modality, first)
    kind = np.where(np.array(default_facts) > 0, first, 0)  # sizes differ and are not known yet
    facts = np.broadcast_to(kind, (len(reader.names), len(kind)))
    return open_unchecked(
        reader, name, modality, options, facts, lambda labels: unchecked_fingerprint(source.marks(), labels)
    )


def _first_facts(reader: LazyReader) -> tuple[int, ...] | None:
    """The facts of the first usable instance; None if there is none at the start."""
    for number in range(min(MAX_TRIES, len(reader.names))):
        with suppress(Unusable):
            return tuple(reader.decode(reader.source.read_item(number)).facts)
    return None


def _uniform_decoder(decode: Decode, modality: Modality, first: tuple[int, ...]) -> Decode:
    """Decodes instances of the kind of the first one; others are unusable."""

    def decode_alike(raw: Any) -> Decoded:
        decoded = decode(raw)
        outliers = modality.reader.outliers([first, first, tuple(decoded.facts)])
        if outliers:
            raise Unusable(next(iter(outliers.values())))
        return decoded

    return decode_alike


def _open_checked(reader: LazyReader, name: str, modality: Modality, options: Mapping[str, Any]) -> DataSet:
    limits, source = reader.limits, reader.source
    stamp = source.stamp() if limits.scans is not None else None
    file = record_file(limits.scans, stamp, modality.name, options) if limits.scans and stamp else None
    results = None if file is None else read_records(file)
    if results is None:
        results = reader.check(limits.join())
        if file is not None:
            write_records(file, results)
    records = {number: result for number, result in enumerate(results) if isinstance(result, Record)}
    numbers = list(records)
    outliers = modality.reader.outliers([record.facts for record in records.values()])
    reader.bad = {number: result for number, result in enumerate(results) if isinstance(result, str)}
    reader.bad |= {numbers[place]: reason for place, reason in outliers.items()}
    if limits.quarantine is not None:
        write_quarantine(limits.quarantine, reader.quarantined())
    usable = np.array([number for number in numbers if number not in reader.bad], dtype=np.int64)
    check_share(name, modality.reader.files, len(usable), reader.quarantined(), limits.max_bad_share)
    paths = tuple(reader.names[number] for number in usable.tolist())
    contents = reader.take_contents(usable)
    usable_records = [records[number] for number in usable.tolist()]
    collection = _collection(
        reader,
        name,
        usable,
        lambda labels: fingerprint(paths, (record.digest for record in usable_records), labels),
        paths=paths,
        facts=[record.facts for record in usable_records],
        contents=contents,
        content_at=(lambda place: reader(int(usable[place]))) if contents is None else contents.__getitem__,
        quarantine=reader.quarantined(),
    )
    return modality.reader.collect(collection, options)


def open_unchecked(
    reader: LazyReader,
    name: str,
    modality: Modality,
    options: Mapping[str, Any],
    facts: Int64[np.ndarray, "instance fact"],
    mark: Callable[[np.ndarray | None], str],
) -> DataSet:
    """All instances of a source; those that turn out to be unusable are noted when they are read."""
    rows = np.arange(len(reader.names))
    further = {"paths": reader.names, "facts": facts, "content_at": reader, "unusable_rows": reader}
    collection = _collection(reader, name, rows, mark, **further, blocks=reader.source.blocks())
    reader.load_quarantine()
    return modality.reader.collect(collection, options)


def _collection(
    reader: LazyReader,
    name: str,
    rows: Int64[np.ndarray, "instance"],
    mark: Callable[[np.ndarray | None], str],
    **further: Any,
) -> Collection:
    """These rows with their labels and groups; `mark(labels)` is the fingerprint."""
    source, labelled = reader.source, reader.source.labels(rows)
    return Collection(
        name=name,
        fingerprint=mark(labelled[0]),
        labelled=labelled,
        groups=source.groups(rows),
        ignored=source.ignored,
        unlabelled="" if labelled[0] is not None else source.unlabelled(),
        **further,
    )


def with_quarantine(data: AnySet) -> AnySet:
    """The set with the unusable instances that are known by now."""
    return (
        data
        if data.unusable_rows is None
        else replace(data, quarantine=(*data.quarantine, *data.unusable_rows.quarantined()))
    )


def check_all(
    data: AnySet, folder: Path | None = None, workers: int = 2, strategy: Strategy = SINGLE
) -> AnySet:
    """The set without unusable instances: where it was not checked at opening, everything is read once, by
    several ranks in shares. The result is stored in `folder`."""
    reader = data.unusable_rows
    if reader is None:
        return data
    file = None if folder is None else folder / f"unusable-{data.fingerprint[:32]}.json"
    stored = strategy.broadcast_json(None if file is None else read_json(file))
    count = len(reader.names)
    if isinstance(stored, dict) and all(
        key.isdecimal() and len(key) <= len(str(count)) and int(key) < count for key in stored
    ):
        for number, reason in stored.items():
            reader.quarantine(int(number), str(reason))
    else:
        reader.check_rest(strategy, workers)
        if file is not None and strategy.is_first:
            with suppress(OSError):  # a folder that cannot be written stores nothing
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(file, json.dumps(reader.bad))
    reader.check_bad_share(reader.bad)
    bad = np.isin(data.rows, list(reader.bad))
    return with_quarantine(data.subset(np.flatnonzero(~bad)) if bad.any() else data)
