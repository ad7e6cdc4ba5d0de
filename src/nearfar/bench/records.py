"""Results of a benchmark in a file, a JSON object in each line, so that the same command resumes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from nearfar.errors import UserError
from nearfar.system.files import append_line, write_atomic
from nearfar.system.untrusted import parse_json, read_text

RecordType = TypeVar("RecordType")


def read_records(path: Path | None, kind: type[RecordType]) -> list[RecordType]:
    """The records in a file; none if the file is missing. A last line that a kill cut short is removed."""
    if path is None or not path.exists():
        return []
    try:
        *lines, last = read_text(path).split("\n")
    except (OSError, ValueError) as problem:
        raise UserError(f"--record {path} cannot be read ({problem})") from None
    adapter = TypeAdapter(kind)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(adapter.validate_python(parse_json(line)))
        except (ValidationError, ValueError, RecursionError):
            raise UserError(
                f"--record {path} has no {kind.__name__} in line {number}; use another file, or remove the line"
            ) from None
    if last:
        write_atomic(path, "".join(f"{line}\n" for line in lines))
    return records


def append_record(path: Path | None, record: Any) -> None:
    """Appends a dataclass to the file, where there is one."""
    if path is not None:
        append_line(path, json.dumps(asdict(record)))
