"""Sets opened without decoding them: names and sizes first, contents when they are asked for, quarantine as it goes.

Whether an instance can be used is found out when it is first asked for. What is seen does not depend on when: the next one of the
set stands in for it (`DataSet.settled`), always. Everything is looked at before something is said of every instance: `examined`.
"""

import csv
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.scan import Decode, Limits, Source, check_share, write_quarantine
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Modality
from nearfar.modalities.base import Collection
from nearfar.modalities.dataset import Blocks, Unreadable, Unusable
from nearfar.system.files import write_atomic
from nearfar.system.prefetch import prefetch
from nearfar.system.untrusted import read_json

AnySet = TypeVar("AnySet", bound=DataSet)
_TOGETHER = 256  # instances examined at a time
_NAMES = 2**16  # names looked through at a time


@runtime_checkable
class Direct(Source, Protocol):
    """A source whose things can be read one by one, by number, before any is decoded."""

    def weight(self) -> float:
        """Bytes of all of them, encoded."""

    def marks(self) -> bytes:
        """Changes with names, sizes and whatever else is known without reading everything."""

    def direct(self) -> tuple[Callable[[int], bytes], Blocks | None]:
        """Reading by number, and which are read together."""


class WhenAsked:
    """Contents by place, decoded at each request. What turns out to be unusable is noted once and refused from then on, and so is what
    the quarantine list of an earlier process names. Whether that is too much a process alone judges at once; of several, each meets
    another part of it, so they judge what all have found, when they `meet`."""

    def __init__(
        self,
        read: Callable[[int], Any],
        decode: Decode,
        names: Sequence[str],
        root: str,
        limits: Limits,
        decoded_before: bool = False,  # then bytes that can be read and are those of then can be decoded too
    ) -> None:
        self._read, self._decode, self._names, self._root, self._limits = read, decode, names, root, limits
        self._decoded_before = decoded_before
        self.bad: dict[int, str] = {}
        self._lock = threading.Lock()
        self._listed = _begun(limits.quarantine)
        self._recall()
        self._news = dict(self.bad)  # what other ranks were not told yet
        self._told: dict[int, str] = {}  # what all ranks know

    def __call__(self, place: int) -> Any:
        return self._tried(place, lambda: self._decode(self._read(place)).content)

    def look(self, places: np.ndarray) -> None:
        """Finds out which of these can be used."""
        for place in places.tolist():
            with suppress(Unreadable):
                self._tried(place, partial(self._read, place)) if self._decoded_before else self(place)

    def _tried(self, place: int, make: Callable[[], Any]) -> Any:
        if place in self.bad:
            raise Unreadable(place) from Unusable(self.bad[place])
        try:
            return make()
        except Unusable as reason:
            self.note(place, str(reason))
            raise Unreadable(place) from reason

    def quarantine(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of what is known to be unusable by now."""
        return tuple((self._path(place), why) for place, why in sorted(self.bad.items()))

    def note(self, place: int, reason: str) -> None:
        with self._lock:
            if place in self.bad:
                return
            self.bad[place] = self._news[place] = reason
            path = self._path(place)
            if self._limits.quarantine is not None and path not in self._listed:
                self._listed[path] = reason
                _append(self._limits.quarantine, path, reason)
            # where nothing is left, whoever asks for the next one would ask without end
            if not self._limits.judged_together or len(self.bad) == len(self._names):
                self.judge(self.bad)

    def judge(self, bad: Mapping[int, str]) -> None:
        """Stops where these are too many."""
        usable = len(self._names) - len(bad)
        if bad and (not usable or len(bad) > self._limits.max_bad_share * len(self._names)):
            listed = [(self._path(place), why) for place, why in sorted(bad.items())]
            check_share(self._root, "instances", usable, listed, self._limits.max_bad_share)

    def meet(self, strategy: Strategy) -> None:
        """All ranks learn what each has found, rank 0 lists it, and all judge the same."""
        with self._lock:
            news, self._news = self._news, {}
        if strategy.first_reason("found" if news else None) is None:
            return
        for found in strategy.all_gather_json(news):
            for place, reason in found.items():
                self.note(int(place), reason)
                self._told[int(place)] = reason
        with self._lock:
            self._news = {place: why for place, why in self._news.items() if place not in self._told}
        self.judge(self._told)  # and not `bad`, to which threads that work ahead may have added

    def _path(self, place: int) -> str:
        return os.path.join(self._root, self._names[place])

    def _recall(self) -> None:
        """Begins with what the list names. If that alone were too much, it is looked at again: somebody may have mended it."""
        for start in range(0, len(self._names) if self._listed else 0, _NAMES):
            for place, name in enumerate(self._names[start : start + _NAMES], start):
                reason = self._listed.get(os.path.join(self._root, name))
                if reason is not None:
                    self.bad[place] = reason
        try:
            self.judge(self.bad)
        except UserError:
            self._forget_mended()
            self.judge(self.bad)

    def _forget_mended(self) -> None:
        known, self.bad = self.bad, {}
        for place, reason in known.items():
            try:
                self._decode(self._read(place))
                del self._listed[self._path(place)]
            except Unusable:
                self.bad[place] = reason
        if self._limits.quarantine is not None:
            write_quarantine(self._limits.quarantine, list(self._listed.items()))


def _append(file: Path, path: str, reason: str) -> None:
    try:
        with open(file, "a", encoding="utf-8", errors="backslashreplace") as lines:
            csv.writer(lines, lineterminator="\n").writerow((path, reason))
    except OSError as error:
        raise UserError(f"the quarantine list {str(file)!r} cannot be written: {error.strerror}.") from error


def _begun(file: Path | None) -> dict[str, str]:
    """Whom the list of an earlier process names, and why; a line that a kill left in two is dropped."""
    if file is None:
        return {}
    rows: list[tuple[str, str]] = []
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            rows = [(row[0], row[1]) for row in csv.reader(lines) if len(row) == 2][1:]
    except (OSError, ValueError, csv.Error):
        rows = []
    write_quarantine(file, rows)
    return dict(rows)


def is_unscanned(source: Source, modality: Modality, limits: Limits) -> bool:
    """Whether a source is too large to be decoded before anything is learned from it: a matter of its bytes alone."""
    return (
        modality.reader.default_facts is not None
        and isinstance(source, Direct)
        and source.weight() > limits.scan_bytes
    )


def open_unscanned(
    source: Direct, name: str, modality: Modality, options: Mapping[str, Any], decode: Decode, limits: Limits
) -> DataSet:
    names = source.names()
    every = np.arange(len(names), dtype=np.int64)
    labelled = source.labels(every)
    read, blocks = source.direct()
    mark = hashlib.sha256(b"unscanned" + source.marks())
    mark.update(b"unlabelled" if labelled[0] is None else labelled[0].astype("<i8").tobytes())
    found = Collection(
        name=name,
        fingerprint=mark.hexdigest(),
        paths=names,
        facts=np.broadcast_to(
            np.asarray(modality.reader.default_facts, dtype=np.int64),
            (len(names), len(modality.reader.default_facts or ())),
        ),
        read=WhenAsked(read, decode, names, source.root, limits),
        labelled=labelled,
        groups=source.groups(every),
        quarantine=(),
        ignored=source.ignored,
        unlabelled="" if labelled[0] is not None else source.unlabelled(),
        blocks=blocks,
    )
    return modality.reader.collect(found, options)


def found_so_far(data: AnySet) -> AnySet:
    """The set with what is known by now of those that cannot be used."""
    asked = when_asked(data)
    return data if asked is None else replace(data, quarantine=(*data.quarantine, *asked.quarantine()))


def examined(data: AnySet, kept: Path | None = None, workers: int = 2, strategy: Strategy = SINGLE) -> AnySet:
    """The set without those that cannot be used: everything is read once, where that was not done at opening, by several ranks in
    shares, and what was found is remembered in the folder `kept`."""
    asked = when_asked(data)
    if asked is None:
        return data
    file = None if kept is None else kept / f"examined-{data.fingerprint[:32]}.json"
    known = None if file is None else read_json(file)
    known = strategy.broadcast_json(known)
    if isinstance(known, dict):
        for row, reason in known.items():
            asked.note(int(row), str(reason))
    else:
        starts = range(strategy.rank * _TOGETHER, len(data), strategy.world * _TOGETHER)
        for _ in prefetch(asked.look, (data.rows[start : start + _TOGETHER] for start in starts), workers):
            pass
        for bad in strategy.all_gather_json(asked.bad):
            for row, reason in bad.items():
                asked.note(int(row), str(reason))
    asked.judge(asked.bad)
    if file is not None and known is None and strategy.is_first:
        with suppress(OSError):  # where nothing can be written, nothing is remembered
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(asked.bad))
    bad = np.isin(data.rows, list(asked.bad))
    return found_so_far(data.subset(np.flatnonzero(~bad)) if bad.any() else data)


def when_asked(data: DataSet) -> WhenAsked | None:
    store = getattr(data.store, "store", data.store)  # below one that changes what another gives
    read = getattr(store, "read", None)
    return read if isinstance(read, WhenAsked) else None
