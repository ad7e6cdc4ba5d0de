"""A packed folder, as `nearfar pack` writes it and `pretrain` reads it without loading it.

    DIR/nearfar.json          what is packed, how, and the size and SHA-256 of every file; written last, so a folder that has it is whole
    DIR/index.parquet         name, facts, label and digest of every row, in the order of the shards
    DIR/shard-00000.parquet   the rows: `image` (or `audio`) {bytes, path}, `label`, `digest`, `facts`, in small row groups
    DIR/quarantine.csv        what could not be used, and why

Shards follow the Hugging Face convention, so other tools read them too (but for raw pixels). Opening reads
the manifest, the index and the footers. The digest of a row is compared when its row group is read.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nearfar.data.lazy import LazyReader, open_unchecked
from nearfar.data.records import check_share
from nearfar.data.remote import RemoteFile, Unreachable, is_url, open_filesystem
from nearfar.data.row_groups import RowGroups
from nearfar.data.source import AbstractSource, Decode, Limits
from nearfar.errors import UserError, error_reason
from nearfar.modalities import MODALITIES, DataSet, Modality
from nearfar.modalities.dataset import Blocks, Names
from nearfar.modalities.files import MAX_CLASSES, Labels
from nearfar.system.arrow_reading import read_table
from nearfar.system.untrusted import MAX_TEXT_BYTES, check_memory, parse_json

MANIFEST, INDEX, QUARANTINE = "nearfar.json", "index.parquet", "quarantine.csv"


class PackedFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    file: str = Field(pattern=r"^[\w.-]+$")
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: str


class PackManifest(BaseModel):
    """The content of nearfar.json, under `packed`; its SHA-256 is stored with it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[2]
    modality: str
    column: str
    source: str
    encoding: str
    image_size: int | None = Field(ge=1)
    rows: int = Field(ge=1)
    labelled: bool
    classes: list[str]
    unlabelled: str
    fingerprint: str
    left_out: list[int]  # rows that do not go with the others
    quarantined: int = Field(ge=0)
    ignored: dict[str, int]  # files of the source that were not read, by reason
    index: PackedFile
    shards: list[PackedFile]

    def written(self) -> str:
        body = self.model_dump()
        return json.dumps({"packed": body, "sha256": _digest(body)}, indent=1)


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Packed:
    """A packed folder that was found: nothing but its manifest is read."""

    root: str
    manifest: PackManifest
    at: Callable[[str], RemoteFile]  # a file of it, by name

    @property
    def modality(self) -> Modality:
        modality = MODALITIES.get(self.manifest.modality)
        if modality is None or not modality.reader.fact_ranges:
            raise UserError(f"{self.root}: unknown modality {self.manifest.modality!r} in {MANIFEST}")
        return modality

    def open(self, options: Mapping[str, Any], decode: Decode, limits: Limits) -> DataSet:
        table = self._index()
        source = PackedSource(self, table)
        check_share(self.root, "rows", len(source.rows), (), limits.max_bad_share)
        reader = LazyReader(source, decode, limits, decoded_before=True)
        facts = np.stack([table.column(name).to_numpy() for name in self._fact_ranges], axis=1)[source.rows]
        mark = self.manifest.fingerprint
        return open_unchecked(reader, self.root, self.modality, options, facts, lambda labels: mark)

    @property
    def _fact_ranges(self) -> dict[str, Sequence[int]]:
        """The values that each column of facts may have."""
        return {f"fact{place}": values for place, values in enumerate(self.modality.reader.fact_ranges)}

    def _index(self) -> pa.Table:
        """The columns of the index that are used, if it is the one that was written and they are valid."""
        file = self.at(INDEX)
        try:
            check_memory(file.path, size := file.size())
            data = file.read_all() if size == self.manifest.index.bytes else b""
            if hashlib.sha256(data).hexdigest() != self.manifest.index.sha256:
                raise UserError(f"data {self.root!r}: {INDEX} is not the one that was packed; pack it again.")
            labels = len(self.manifest.classes) or MAX_CLASSES
            ranges = self._fact_ranges | ({"label": range(-1, labels)} if self.manifest.labelled else {})
            table = read_table(pa.BufferReader(data), file.path, len(data), ["path", *ranges])
            column_types = {"path": pa.string()} | dict.fromkeys(ranges, pa.int64())
            if {field.name: field.type for field in table.schema} != column_types:
                raise ValueError(f"its columns are not {', '.join(column_types)}")
            for name in column_types:
                if table.column(name).null_count:
                    raise ValueError(f"a row has no {name}")
            for name, allowed in ranges.items():
                wrong = [n for n in pc.unique(table.column(name)).to_pylist() if n not in allowed]
                if wrong:
                    raise ValueError(f"{name} was {wrong[0]}")
            return table
        except UserError:
            raise
        except (OSError, ValueError, pa.ArrowException) as problem:
            raise UserError(f"data {self.root!r}: {INDEX} cannot be read: {problem}.") from None


class PackedSource(AbstractSource):
    """The rows of the shards, without those that were left out when they were packed."""

    def __init__(self, packed: Packed, table: pa.Table) -> None:
        manifest = packed.manifest
        self.root, self.ignored, self._manifest = packed.root, manifest.ignored, manifest
        files = [packed.at(shard.file) for shard in manifest.shards]
        self._groups = RowGroups(files, manifest.column, digests=True)
        if not len(self._groups) == len(table) == manifest.rows:
            raise UserError(
                f"data {self.root!r}: the shards hold {len(self._groups)} rows, the index {len(table)} and "
                f"{MANIFEST} {manifest.rows}."
            )
        if not all(0 <= row < len(table) for row in manifest.left_out):
            raise UserError(f"data {self.root!r}: {MANIFEST} names rows that there are not.")
        usable = np.ones(len(table), dtype=bool)
        usable[np.asarray(manifest.left_out, dtype=np.int64)] = False
        self.rows = np.flatnonzero(usable)
        self._names = table.column("path").take(pa.array(self.rows)).combine_chunks()
        self._labels = table.column("label").to_numpy() if manifest.labelled else None

    def names(self) -> Sequence[str]:
        return Names(len(self._names), lambda place: str(self._names[place].as_py()))

    def read_item(self, number: int) -> bytes:
        return self._groups.read_row(int(self.rows[number]))

    def blocks(self) -> Blocks:
        blocks = self._groups.blocks
        return Blocks(np.searchsorted(self.rows, blocks.starts), blocks.window)

    def labels(self, rows: np.ndarray) -> Labels:
        if self._labels is None:
            return None, ()
        return self._labels[self.rows[rows]], tuple(self._manifest.classes)

    def unlabelled(self) -> str:
        return self._manifest.unlabelled


def find_packed(spec: str) -> Packed | None:
    """The packed folder that a path or URL names, if it is one."""
    if is_url(spec):
        system, path = open_filesystem(spec)
        at: Callable[[str], RemoteFile] = lambda name: RemoteFile(f"{path.rstrip('/')}/{name}", system)
    else:
        at = lambda name: RemoteFile(f"{spec.rstrip('/') or '/'}/{name}")
    try:
        exists = at(MANIFEST).exists()
    except Unreachable as problem:
        raise UserError(
            f"data {spec!r} cannot be opened: {error_reason(problem.__cause__ or problem)}."
        ) from None
    return Packed(spec, read_manifest(at(MANIFEST), spec), at) if exists else None


def read_manifest(file: RemoteFile, root: str) -> PackManifest:
    try:
        if file.size() > MAX_TEXT_BYTES:
            raise ValueError("it is too long")
        content = parse_json(file.read_all().decode())
        if content["sha256"] != _digest(content["packed"]):
            raise ValueError("its checksum does not match")
        return PackManifest(**content["packed"])
    except ValidationError as problem:
        first = problem.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(f"data {root!r}: {MANIFEST} makes no sense ({field}: {first['msg']}).") from None
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"data {root!r}: {MANIFEST} cannot be read ({problem}).") from None
