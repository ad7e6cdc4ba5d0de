"""The Parquet files of a packed folder: encoded bytes with name, label, digest and facts."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.data.packed import PackedFile
from nearfar.data.row_groups import DIGEST
from nearfar.errors import UserError, error_reason
from nearfar.modalities.files import Labels
from nearfar.system.arrow_reading import read_table_file
from nearfar.system.files import replace_file
from nearfar.system.untrusted import arrow_path, open_regular_file

_METADATA_KEY = b"nearfar"  # key of our own metadata in a footer
_MAX_FACTS = 8


@dataclass(frozen=True)
class PackedRow:
    name: str
    data: bytes
    label: int
    digest: bytes
    facts: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """An instance that is not usable, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class ShardSchema:
    """The names of a shard's columns, and its classes."""

    column: str
    labelled: Labels

    def metadata(self) -> dict[bytes, bytes]:
        """As the Hugging Face convention has it."""
        features: dict[str, Any] = {self.column: {"_type": self.column.capitalize()}}
        if self.labelled[1]:
            features["label"] = {"names": list(self.labelled[1]), "_type": "ClassLabel"}
        return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}

    def table(self, rows: list[PackedRow]) -> pa.Table:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns: dict[str, pa.Array] = {
            self.column: pa.array([{"bytes": row.data, "path": row.name} for row in rows], kind),
            DIGEST: pa.array([row.digest for row in rows], pa.binary()),
        }
        if self.labelled[0] is not None:
            columns["label"] = pa.array([row.label for row in rows], pa.int64())
        for place in range(len(rows[0].facts) if rows else 0):
            columns[f"fact{place}"] = pa.array([row.facts[place] for row in rows], pa.int64())
        return pa.table(columns).replace_schema_metadata(self.metadata())


def write_shard(
    file: Path, rows: Iterable[PackedRow | Refused], schema: ShardSchema, group_rows: int
) -> None:
    """A shard, whole or not at all. One of which nothing can be used has no columns."""
    refused: list[Refused] = []
    group: list[PackedRow] = []
    writer: Any = None
    try:
        with replace_file(file) as new:
            try:
                for row in rows:
                    if isinstance(row, Refused):
                        refused.append(row)
                        continue
                    group.append(row)
                    if len(group) == group_rows:
                        writer = _write(writer, new, schema.table(group))
                        group = []
                if group or writer is None:
                    writer = _write(writer, new, schema.table(group))
                reasons = [[row.name, row.reason] for row in refused]
                writer.add_key_value_metadata({_METADATA_KEY: json.dumps(reasons).encode()})
            finally:
                if writer is not None:
                    writer.close()
    except (OSError, pa.ArrowException) as problem:
        raise UserError(
            f"{str(file)!r} cannot be written: {error_reason(problem)}; rerun the command to resume"
        ) from None


def _write(writer: Any, file: Path, table: pa.Table) -> Any:
    # contents are compressed already, or would only be slower to read
    writer = writer or pq.ParquetWriter(
        arrow_path(file), table.schema, compression="none", use_dictionary=False, write_statistics=False
    )
    writer.write_table(table, row_group_size=max(1, len(table)))
    return writer


@dataclass
class PackIndex:
    """Names, digests, facts and labels of the rows of all shards."""

    names: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)
    label_parts: list[np.ndarray] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # rows of each shard
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def facts(self) -> np.ndarray:
        parts = [part for part in self.parts if len(part)]
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.int64)

    @property
    def labels(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype=np.int64), *self.label_parts])


def read_index(files: Iterable[Path]) -> PackIndex:
    index = PackIndex()
    for file in files:
        try:
            with pq.ParquetFile(arrow_path(file)) as opened:
                refused = (opened.metadata.metadata or {})[_METADATA_KEY]
                names = opened.schema_arrow.names
                facts = [f"fact{place}" for place in range(_MAX_FACTS) if f"fact{place}" in names]
                content = next(
                    name for name in names if pa.types.is_struct(opened.schema_arrow.field(name).type)
                )
                columns = [f"{content}.path", DIGEST, *facts, *(["label"] if "label" in names else [])]
            table = read_table_file(file, columns)
            paths = table.column(content).combine_chunks()
            index.names += pa.compute.struct_field(paths, "path").to_pylist()
        except (OSError, pa.ArrowException, KeyError, StopIteration) as problem:
            raise UserError(
                f"{str(file)!r} is not a shard of this pack ({error_reason(problem)}); remove it"
            ) from None
        index.refused += [(name, reason) for name, reason in json.loads(refused)]
        index.digests += table.column(DIGEST).to_pylist()
        index.counts.append(len(table))
        if facts:
            index.parts.append(np.stack([table.column(name).to_numpy() for name in facts], axis=1))
        if "label" in names:
            index.label_parts.append(table.column("label").to_numpy().astype(np.int64))
    return index


def write_index(file: Path, index: PackIndex) -> None:
    columns: dict[str, Any] = {
        "path": pa.array(index.names, pa.string()),
        DIGEST: pa.array(index.digests, pa.binary()),
    }
    if index.label_parts:
        columns["label"] = pa.array(index.labels)
    facts = index.facts
    columns |= {f"fact{place}": pa.array(facts[:, place]) for place in range(facts.shape[1])}
    try:
        with replace_file(file) as new:
            pq.write_table(pa.table(columns), arrow_path(new), compression="zstd")
    except (OSError, pa.ArrowException) as problem:
        raise UserError(
            f"{str(file)!r} cannot be written: {error_reason(problem)}; rerun the command to resume"
        ) from None


def shard_of(file: Path, rows: int) -> PackedFile:
    """A file as the manifest names it."""
    with open_regular_file(file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return PackedFile(file=file.name, rows=rows, bytes=file.stat().st_size, sha256=digest)
