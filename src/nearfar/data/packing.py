"""`nearfar pack`: anything that can be opened, as shards that are trained on without loading them.

A shard is a fixed part of a fixed order of the source, and appears whole by one rename, with the list of what
could not be used in its footer. So a process that was killed left whole shards and nothing else of meaning:
the same command makes those that lack, then the index and the manifest.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.config.fields import MAX_WORKERS
from nearfar.core.randomness import order, windowed_order
from nearfar.data.open import Spec, locate
from nearfar.data.packed import INDEX, MANIFEST, QUARANTINE, PackManifest, find_packed
from nearfar.data.records import check_share, content_digest, fingerprint, write_quarantine
from nearfar.data.shards import (
    PackedRow,
    Refused,
    ShardSchema,
    read_index,
    shard_of,
    write_index,
    write_shard,
)
from nearfar.data.source import AbstractSource, Limits
from nearfar.errors import UserError, check_whole
from nearfar.modalities import MODALITIES, DataSet, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Blocks, Unreadable, Unusable
from nearfar.modalities.files import Labels
from nearfar.system.files import as_path, write_atomic
from nearfar.system.prefetch import prefetch
from nearfar.system.untrusted import read_json


@dataclass(frozen=True)
class PackContents:
    """Instances yet to be packed. The source has bytes, or what else `decode` takes."""

    name: str
    modality: Modality
    source: AbstractSource
    decode: Callable[[Any], Decoded]
    quarantine: tuple[tuple[str, str], ...] = ()  # instances that were unusable when the data were opened

    @cached_property
    def names(self) -> Sequence[str]:
        return self.source.names()

    @cached_property
    def labelled(self) -> Labels:
        return self.source.labels(np.arange(len(self.names)))

    @property
    def mark(self) -> str:
        """Changes with the data."""
        return hashlib.sha256(self.source.marks()).hexdigest()

    def order(self, seed: int) -> np.ndarray:
        """A shuffle; within a window of row groups, where the source is read by those."""
        blocks = self.source.blocks()
        if blocks is None:
            return order(seed, 0, len(self.names))
        block = np.searchsorted(blocks.starts, np.arange(len(self.names)), side="right")
        return windowed_order(seed, 0, block, blocks.window)


def contents_of(data: Spec, labels: Any, options: Mapping[str, Any]) -> PackContents:
    """The contents of `data`: encoded bytes where it has them; arrays, torch `Dataset`s and packed folders
    are opened as for training and converted one by one."""
    located = locate(data, labels)
    modality = located.modality
    if not modality.reader.columns:
        raise UserError(
            f"{located.name} holds {modality.plural}; pack writes "
            f"{' and '.join(m.plural for m in MODALITIES.values() if m.reader.columns)}"
        )
    checked = modality.reader.options(**options)
    if located.source is not None and located.source.nbytes():
        return PackContents(located.name, modality, located.source, located.decoder(modality, checked))

    def decode(content: Any) -> Decoded:
        decoded = modality.reader.convert(content, checked)
        if decoded is None:
            raise Unusable(f"an instance of type {type(content).__name__} cannot be packed")
        return decoded

    opened = located.open_with(checked, Limits(max_bad_share=1.0))
    source = OpenedSource(opened, modality.reader.first_content)
    return PackContents(located.name, modality, source, decode, opened.quarantine)


class OpenedSource(AbstractSource):
    """The instances of an opened data set."""

    def __init__(self, data: DataSet, first_content: Callable[[Any], Any]) -> None:
        self.root, self.ignored = data.name, data.ignored
        self._data, self._first_content = data, first_content

    def names(self) -> Sequence[str]:
        return self._data.paths

    def read_item(self, number: int) -> Any:
        try:
            return self._first_content(self._data.store.take(self._data.rows[number : number + 1]))
        except Unreadable as reason:
            raise Unusable(str(reason.__cause__)) from reason

    def labels(self, rows: np.ndarray) -> Labels:
        return None if self._data.labels is None else self._data.labels[rows], self._data.classes

    def unlabelled(self) -> str:
        return self._data.unlabelled

    def marks(self) -> bytes:
        return self._data.fingerprint.encode()

    def blocks(self) -> Blocks | None:
        return self._data.blocks


PLAN = "packing.json"
AUTO, SOURCE = "auto", "source"
GROUP_BYTES, SHARD_BYTES = 2**22, 2**26  # approximate sizes of a row group and of a shard
MIN_ROWS, MAX_ROWS = 16, 8192  # of a row group
SAMPLE = 64  # instances from which sizes are estimated
CHUNK = 16  # instances encoded by one thread at a time


@dataclass(frozen=True)
class Plan:
    """Everything that what is written depends on: the same plan gives the same bytes."""

    data: str  # the mark of the source
    instances: int
    image_size: int | None
    encoding: str
    quality: int
    shuffle: bool
    seed: int
    group_rows: int
    shard_rows: int


def pack(
    data: Spec,
    out: str | Path,
    *,
    labels: Any = None,
    image_size: int | None = None,
    encoding: str = AUTO,
    quality: int = 95,
    shuffle: bool = True,
    seed: int = 0,
    max_bad_share: float = 0.05,
    workers: int = 2,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Writes `data` (anything `open_data` takes) as Parquet shards into the folder `out`, which
    `pretrain`, `evaluate` and the other commands take as data. Called again after an interruption, it resumes.

    With `image_size`, images are shrunk as they would be at training with that size. `encoding` is png (the
    same pixels), jpeg (of this `quality`), raw (pixels as they are, quickest to read, any number of
    channels), source (bytes as they are) or auto: png for three channels and raw for others. Rows are written
    in a random order, a function of the seed, so that neighbours are a random sample; `shuffle=False` keeps
    the order of the source.
    """
    contents = contents_of(data, labels, {} if image_size is None else {"image_size": image_size})
    _check(contents, encoding, quality, max_bad_share)
    check_whole("workers", workers, 0, MAX_WORKERS)
    out = as_path("out", out)
    order = contents.order(seed) if shuffle else np.arange(len(contents.names))
    plan = _plan(contents, order, image_size, encoding, quality, shuffle, seed)
    if _prepare(out, plan):
        say(f"{out} is packed already")
        return out
    shards = -(-plan.instances // plan.shard_rows)
    schema = ShardSchema(contents.modality.reader.columns[0], contents.labelled)
    for number in range(shards):
        file = out / f"shard-{number:05d}.parquet"
        part = order[number * plan.shard_rows : (number + 1) * plan.shard_rows]
        if not file.exists():
            write_shard(file, _encoded(contents, plan, part, workers), schema, plan.group_rows)
        say(f"shard {number + 1} of {shards}")
    _finish(out, contents, plan, shards, max_bad_share)
    return out


def _check(contents: PackContents, encoding: str, quality: int, max_bad_share: float) -> None:
    allowed = (AUTO, SOURCE, *contents.modality.reader.encodings)
    if encoding not in allowed:
        raise UserError(
            f"encoding was {encoding!r}; for {contents.modality.plural} expected {', '.join(allowed)}"
        )
    check_whole("quality", quality, 1, 100)
    if not 0 <= max_bad_share <= 1:
        raise UserError(f"max_bad_share was {max_bad_share!r}; expected a share from 0 to 1")
    if not len(contents.names):
        raise UserError(f"data {contents.name!r} hold nothing to be packed")


def _plan(
    contents: PackContents,
    order: np.ndarray,
    image_size: int | None,
    encoding: str,
    quality: int,
    shuffle: bool,
    seed: int,
) -> Plan:
    """Sizes from a few instances of the order, the same ones each time."""
    sizes = []
    for number in order[:SAMPLE]:
        with suppress(Unusable):
            raw = contents.source.read_item(int(number))
            decoded = contents.decode(raw)
            if encoding == AUTO:
                encoding = _default_encoding(contents, decoded.facts)
            sizes.append(len(_bytes(contents, raw, decoded.content, encoding, quality)))
    encoding = (
        encoding if encoding != AUTO else _default_encoding(contents, contents.modality.reader.default_facts)
    )
    mean = max(1.0, float(np.mean(sizes))) if sizes else 2**12
    rows = int(np.clip(2 ** round(np.log2(GROUP_BYTES / mean)), MIN_ROWS, MAX_ROWS))
    groups = max(1, round(SHARD_BYTES / (rows * mean)))
    return Plan(contents.mark, len(order), image_size, encoding, quality, shuffle, seed, rows, groups * rows)


def _default_encoding(contents: PackContents, facts: Any) -> str:
    encodings = contents.modality.reader.encodings
    if not encodings:
        return SOURCE
    return encodings[0] if tuple(facts[2:]) == (3, 8) else encodings[-1]  # of images: colours of 8 bits


def _bytes(contents: PackContents, raw: Any, content: Any, encoding: str, quality: int) -> bytes:
    if encoding != SOURCE:
        return contents.modality.reader.encode(content, encoding, quality)
    if not isinstance(raw, bytes):
        raise UserError(
            f"encoding was source, but {contents.name} has no encoded bytes; expected "
            f"{', '.join((AUTO, *contents.modality.reader.encodings))}"
        )
    return raw


def _encoded(
    contents: PackContents, plan: Plan, part: np.ndarray, workers: int
) -> Iterator[PackedRow | Refused]:
    labels, _ = contents.labelled

    def row(number: int) -> PackedRow | Refused:
        name = str(contents.names[number])
        try:
            raw = contents.source.read_item(number)
            decoded = contents.decode(raw)
        except Unusable as reason:
            return Refused(name, str(reason))
        data = _bytes(contents, raw, decoded.content, plan.encoding, plan.quality)
        label = -1 if labels is None else int(labels[number])
        return PackedRow(name, data, label, content_digest(data), tuple(int(fact) for fact in decoded.facts))

    chunks = (part[start : start + CHUNK] for start in range(0, len(part), CHUNK))
    for rows in prefetch(lambda numbers: [row(int(number)) for number in numbers], chunks, workers):
        yield from rows


def _prepare(out: Path, plan: Plan) -> bool:
    """Makes the folder ready for the plan; True where everything is there already."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        stored = read_json(out / PLAN)
        if stored is None:
            if any(not entry.name.startswith(".") for entry in out.iterdir()):
                raise UserError(f"--out {out} holds other files; name a new folder")
            write_atomic(out / PLAN, json.dumps(asdict(plan), indent=1))
        elif stored != asdict(plan):
            previous = stored if isinstance(stored, dict) else {}
            changes = [
                f"{key}: {previous.get(key)}, now {value}"
                for key, value in asdict(plan).items()
                if previous.get(key) != value
            ]
            raise UserError(
                f"--out {out} was begun with other data or settings ({'; '.join(changes)}); name a new folder"
            )
    except OSError as problem:
        raise UserError(f"--out {out} cannot be written: {problem.strerror}") from None
    return find_packed(str(out)) is not None


def _finish(out: Path, contents: PackContents, plan: Plan, shards: int, max_bad_share: float) -> None:
    """The index, the quarantine list, and last the manifest."""
    files = [out / f"shard-{number:05d}.parquet" for number in range(shards)]
    index = read_index(files)
    bad = sorted(
        [
            *contents.quarantine,
            *((os.path.join(contents.name, name), reason) for name, reason in index.refused),
        ]
    )
    outliers = contents.modality.reader.outliers(index.facts.tolist()) if len(index.facts) else {}
    bad += [
        (os.path.join(contents.name, index.names[place]), reason)
        for place, reason in sorted(outliers.items())
    ]
    write_quarantine(out / QUARANTINE, bad)
    usable = len(index.names) - len(outliers)
    check_share(contents.name, contents.modality.reader.files, usable, bad, max_bad_share)
    labels = None if contents.labelled[0] is None else index.labels
    write_index(out / INDEX, index)
    manifest = PackManifest(
        format=2,
        modality=contents.modality.name,
        column=contents.modality.reader.columns[0],
        source=contents.name,
        encoding=plan.encoding,
        image_size=plan.image_size,
        rows=len(index.names),
        labelled=labels is not None,
        classes=list(contents.labelled[1]),
        unlabelled="" if labels is not None else contents.source.unlabelled(),
        fingerprint=fingerprint(index.names, index.digests, labels),
        left_out=sorted(outliers),
        quarantined=len(bad),
        ignored=dict(contents.source.ignored),
        index=shard_of(out / INDEX, len(index.names)),
        shards=[shard_of(file, rows) for file, rows in zip(files, index.counts, strict=True)],
    )
    write_atomic(out / MANIFEST, manifest.written())
