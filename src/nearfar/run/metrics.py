"""metrics.jsonl: what a run logged, a row of JSON for each logged step."""

import json
from pathlib import Path
from typing import Any

from nearfar.system.files import write_atomic
from nearfar.system.untrusted import check_regular

Row = dict[str, Any]


def read_metrics(path: Path) -> list[Row]:
    """The rows of metrics.jsonl; a line that a kill cut short is left out."""
    try:
        check_regular(path)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def rewind_metrics(path: Path, step: int) -> None:
    """Forgets rows after `step`: the resumed run will write them again."""
    rows = [row for row in read_metrics(path) if row["step"] <= step]
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
