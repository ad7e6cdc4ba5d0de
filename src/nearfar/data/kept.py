"""A scan that is kept: what is usable of a source, as long as none of its files changes.

A file counts as the same if path, size and time of writing are (as it does for make, rsync and git). Then its decoding, which
told whether it can be used and how large it is, need not be done again; contents are decoded when they are asked for.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.errors import UserError
from nearfar.system.files import replace_file
from nearfar.system.parquet_reading import read_table_file
from nearfar.system.untrusted import arrow_path

VERSION = b"1"
_CELL_BYTES = 64  # of a cell as an object of Python
_KINDS = {"digest": pa.binary(), "facts": pa.list_(pa.int64()), "weight": pa.int64(), "reason": pa.string()}


def scan_file(folder: Path, stamp: str, modality: str, options: Mapping[str, Any]) -> Path:
    """Where the scan of a source with this stamp, opened in this way, is kept."""
    way = repr(sorted(options.items())).encode()
    name = hashlib.sha256(b"\0".join([VERSION, stamp.encode(), modality.encode(), way])).hexdigest()
    return folder / f"scan-{name[:32]}.parquet"


def read_scan(file: Path) -> list[dict[str, Any]] | None:
    """A row for every file or row of the source: `digest`, `facts` and `weight`, or the `reason` why it is not used."""
    if not file.exists():
        return None
    try:
        table = read_table_file(file, cell_bytes=_CELL_BYTES)
        if dict(zip(table.schema.names, table.schema.types, strict=True)) != _KINDS:
            return None
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OSError, pa.ArrowException, ValueError, UserError):
        return None
    whole = all((row["digest"] is None) == (row["reason"] is not None) for row in rows)
    return rows if whole else None


def write_scan(file: Path, rows: list[dict[str, Any]]) -> None:
    """Keeps a scan; where nothing can be written, nothing is kept."""
    kinds = {
        "digest": pa.binary(),
        "facts": pa.list_(pa.int64()),
        "weight": pa.int64(),
        "reason": pa.string(),
    }
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(file) as fresh:
            pq.write_table(table, arrow_path(fresh))
    except OSError:
        return
