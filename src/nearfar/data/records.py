"""Results of full checks, the quarantine list, and fingerprints.

The result of a check is stored as long as no file changes. A file counts as unchanged if path, size, time of
writing and time of change (`st_ctime`) are the same, as for git.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.errors import UserError
from nearfar.system.arrow_reading import read_table_file
from nearfar.system.files import append_line, replace_file, write_atomic
from nearfar.system.untrusted import arrow_path, read_text

VERSION = b"3"
CELL_BYTES = 64  # of a cell as a Python object
MAX_QUARANTINE_BYTES = 2**27
DIGEST_BYTES = 2**16  # of each end of a file, in its digest
_TYPES = {"digest": pa.binary(), "facts": pa.list_(pa.int64()), "nbytes": pa.int64(), "reason": pa.string()}


@dataclass(frozen=True)
class Record:
    """What a full check keeps of a usable instance."""

    digest: bytes
    facts: tuple[int, ...]
    nbytes: int  # of the decoded content


ItemResult = Record | str  # or the reason why an instance is not usable


def record_file(folder: Path, stamp: str, modality: str, options: Mapping[str, Any]) -> Path:
    """Where the check of a source with this stamp, opened with these options, is stored."""
    parts = [VERSION, stamp.encode(), modality.encode(), repr(sorted(options.items())).encode()]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    return folder / f"scan-{name}.parquet"


def read_records(file: Path) -> list[ItemResult] | None:
    """The result for every instance of the source; None without a complete file."""
    if not file.exists():
        return None
    try:
        table = read_table_file(file, cell_bytes=CELL_BYTES)
        if dict(zip(table.schema.names, table.schema.types, strict=True)) != _TYPES:
            return None
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OSError, pa.ArrowException, ValueError):
        return None
    if any((row["digest"] is None) != (row["reason"] is not None) for row in rows):
        return None
    return [
        row["reason"]
        if row["digest"] is None
        else Record(row["digest"], tuple(row["facts"] or ()), row["nbytes"] or 0)
        for row in rows
    ]


def write_records(file: Path, results: Sequence[ItemResult]) -> None:
    """Stores the result of a check, if the folder can be written."""
    rows = [
        (None, None, None, result)
        if isinstance(result, str)
        else (result.digest, list(result.facts), result.nbytes, None)
        for result in results
    ]
    columns = zip(*rows, strict=True) if rows else [[]] * len(_TYPES)
    arrays = {
        name: pa.array(list(column), kind)
        for (name, kind), column in zip(_TYPES.items(), columns, strict=True)
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(file) as new:
            pq.write_table(pa.table(arrays), arrow_path(new))
    except OSError:
        return


def content_digest(data: bytes) -> bytes:
    """sha256 over the length, the first and the last 64 KiB.

    Files up to 128 KiB are covered completely. In larger ones an edit that changes neither the length nor
    either end is not detected; files are not edited or replaced that way.
    """
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    digest.update(data if len(data) <= 2 * DIGEST_BYTES else data[:DIGEST_BYTES] + data[-DIGEST_BYTES:])
    return digest.digest()


def fingerprint(paths: Iterable[str], digests: Iterable[bytes], labels: np.ndarray | None) -> str:
    """Changes when something usable is added, removed, renamed, reordered, edited or relabelled. The location
    of the data and the time of writing play no part."""
    digest = hashlib.sha256()
    for path, content in zip(paths, digests, strict=True):
        digest.update(path.encode() + b"\0" + content)
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return digest.hexdigest()


def unchecked_fingerprint(marks: bytes, labels: np.ndarray | None) -> str:
    """The fingerprint of data whose contents were not read: changes with names, sizes, and labels."""
    digest = hashlib.sha256(b"unscanned" + marks)
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return digest.hexdigest()


def write_quarantine(file: Path, rows: Iterable[tuple[str, str]]) -> None:
    """`path,reason` as CSV, with only the header when everything is usable."""
    try:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([("path", "reason"), *rows])
        write_atomic(file, lines.getvalue())
    except OSError as error:
        raise UserError(f"the quarantine list {str(file)!r} cannot be written: {error.strerror}.") from error


def append_quarantine(file: Path, path: str, reason: str) -> None:
    try:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow((path, reason))
        append_line(file, line.getvalue())
    except OSError as error:
        raise UserError(f"the quarantine list {str(file)!r} cannot be written: {error.strerror}.") from error


def read_quarantine(file: Path | None) -> dict[str, str]:
    """Reasons by path; a line that a kill cut in two is dropped."""
    if file is None:
        return {}
    try:
        lines = io.StringIO(read_text(file, MAX_QUARANTINE_BYTES), newline="")
        return dict([(row[0], row[1]) for row in csv.reader(lines) if len(row) == 2][1:])
    except (OSError, ValueError, csv.Error):
        return {}


def check_share(name: str, unit: str, usable: int, bad: Sequence[tuple[str, str]], allowed: float) -> None:
    """Stops data of which too many (path, reason) are unusable."""
    if not bad and not usable:
        raise UserError(f"data {name!r} holds no {unit}.")
    total = usable + len(bad)
    if usable and len(bad) <= allowed * total:
        return
    limit = "none is left" if not usable else f"the limit is a share of {allowed:g} (max_bad_share)"
    raise UserError(
        f"data {name!r}: {len(bad)} of {total} {unit} cannot be used and {limit}; "
        f"the first is {bad[0][0]!r}: {bad[0][1]}."
    )
