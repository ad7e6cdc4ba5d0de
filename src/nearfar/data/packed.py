"""A packed folder, as `nearfar pack` writes it and `pretrain` reads it without loading it.

    DIR/nearfar.json          what is packed, how, and the size and SHA-256 of every file; written last, so a folder that has it is whole
    DIR/index.parquet         name, facts, label and digest of every row, in the order of the shards
    DIR/shard-00000.parquet   the rows: `image` (or `audio`) {bytes, path}, `label`, `digest`, `facts`, in small row groups
    DIR/quarantine.csv        what could not be used, and why

Shards follow the Hugging Face convention, so other tools read them too (but for raw pixels). Opening reads the manifest, the index and
the footers. The digest of a row is compared when its row group is read.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nearfar.data.remote import At, elsewhere, is_url
from nearfar.data.row_groups import RowGroups
from nearfar.data.scan import Decode, Limits, check_share
from nearfar.data.tries import Unreachable, reason
from nearfar.data.unscanned import WhenAsked
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, DataSet, Modality
from nearfar.modalities.base import Collection
from nearfar.modalities.dataset import Blocks
from nearfar.system.parquet_reading import read_table
from nearfar.system.untrusted import MAX_TEXT_BYTES

MANIFEST, INDEX, QUARANTINE = "nearfar.json", "index.parquet", "quarantine.csv"


class Shard(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    file: str = Field(pattern=r"^[\w.-]+$")
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: str


class Manifest(BaseModel):
    """What nearfar.json holds, under `packed`, beside the SHA-256 of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[1]
    modality: str
    column: str
    source: str
    encoding: str
    image_size: int | None
    rows: int = Field(ge=1)
    labelled: bool
    classes: list[str]
    unlabelled: str
    fingerprint: str
    left_out: list[int]  # rows that do not go with the others
    quarantined: int = Field(ge=0)
    ignored: dict[str, int]  # files of the source that were not read, by reason
    index: Shard
    shards: list[Shard]

    def written(self) -> str:
        body = self.model_dump()
        return json.dumps({"packed": body, "sha256": _seal(body)}, indent=1)


def _seal(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class Column(Sequence[str]):
    """Text of Arrow's, which takes no object per row."""

    def __init__(self, held: pa.ChunkedArray) -> None:
        self._held = held.combine_chunks()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return self._held[place].to_pylist()
        return str(self._held[place].as_py())

    def __len__(self) -> int:
        return len(self._held)


@dataclass(frozen=True)
class Packed:
    """A packed folder that was found: nothing but its manifest is read."""

    root: str
    manifest: Manifest
    at: Callable[[str], At]  # a file of it, by name

    @property
    def modality(self) -> Modality:
        if self.manifest.modality not in MODALITIES:
            raise UserError(
                f"{self.root}: {MANIFEST} names {self.manifest.modality!r}, which nobody here knows"
            )
        return MODALITIES[self.manifest.modality]

    def open(self, options: Mapping[str, Any], decode: Decode, limits: Limits) -> DataSet:
        manifest, table = self.manifest, self._index()
        facts = np.stack(
            [table.column(name).to_numpy() for name in table.column_names if name.startswith("fact")], axis=1
        )
        usable = np.ones(len(table), dtype=bool)
        usable[np.asarray(manifest.left_out, dtype=np.int64)] = False
        kept = np.flatnonzero(usable)
        groups = RowGroups([self.at(shard.file) for shard in manifest.shards], manifest.column, digests=True)
        if len(groups) != len(table):
            raise UserError(
                f"data {self.root!r}: the shards hold {len(groups)} rows and the index {len(table)}."
            )
        names: Sequence[str] = Column(table.column("path"))
        read: Callable[[int], bytes] = groups.read
        blocks = groups.blocks
        if len(kept) < len(table):
            names = Column(table.column("path").take(pa.array(kept)))
            read = lambda row: groups.read(int(kept[row]))
            blocks = Blocks(np.searchsorted(kept, blocks.starts), blocks.window)
        check_share(self.root, "rows", len(kept), (), limits.max_bad_share)
        labels = table.column("label").to_numpy()[kept].astype(np.int64) if manifest.labelled else None
        found = Collection(
            name=self.root,
            fingerprint=manifest.fingerprint,
            paths=names,
            facts=facts[kept],
            read=WhenAsked(read, decode, names, self.root, limits, decoded_before=True),
            labelled=(labels, tuple(manifest.classes)),
            groups={},
            quarantine=(),
            ignored=manifest.ignored,
            unlabelled=manifest.unlabelled,
            blocks=blocks,
        )
        return self.modality.reader.collect(found, options)

    def _index(self) -> pa.Table:
        """The index without its digests, if it is the one that was written."""
        held, promised = self.at(INDEX), self.manifest.index
        try:
            data = held.read_all()
            if hashlib.sha256(data).hexdigest() != promised.sha256:
                raise UserError(f"data {self.root!r}: {INDEX} is not the one that was packed; pack it again.")
            names = [name for name in pq.read_schema(pa.BufferReader(data)).names if name != "digest"]
            return read_table(pa.BufferReader(data), held.path, len(data), names)
        except (OSError, pa.ArrowException, KeyError) as problem:
            raise UserError(f"data {self.root!r}: {INDEX} cannot be read: {problem}.") from None


def find_packed(spec: str) -> Packed | None:
    """The packed folder that a path or URL names, if it is one."""
    if is_url(spec):
        system, path = elsewhere(spec)
        at: Callable[[str], At] = lambda name: At(f"{path.rstrip('/')}/{name}", system)
    else:
        at = lambda name: At(f"{spec.rstrip('/') or '/'}/{name}")
    try:
        there = at(MANIFEST).exists()
    except Unreachable as problem:
        raise UserError(f"data {spec!r} cannot be opened: {reason(problem.__cause__ or problem)}.") from None
    return Packed(spec, read_manifest(at(MANIFEST), spec), at) if there else None


def read_manifest(file: At, root: str) -> Manifest:
    try:
        if file.size() > MAX_TEXT_BYTES:
            raise ValueError("it is too long")
        held = json.loads(file.read_all())
        if held["sha256"] != _seal(held["packed"]):
            raise ValueError("its checksum does not match")
        return Manifest(**held["packed"])
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"data {root!r}: {MANIFEST} makes no sense ({where}: {first['msg']}).") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"data {root!r}: {MANIFEST} cannot be read ({problem}).") from None
