"""metrics.jsonl: what a run logged, a row of JSON for each logged step. The file is read line by line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.system.files import replace_file
from nearfar.system.untrusted import open_regular_file

MetricsRow = dict[str, Any]
MAX_FILE_BYTES, MAX_ROW_BYTES = 2**32, 2**16
MAX_HELD_BYTES = 2**25  # of the text of rows that are in memory


def read_metrics(path: Path) -> list[MetricsRow]:
    """The rows of metrics.jsonl; of very many training rows every second one is left out, repeatedly."""
    rows: list[tuple[int, int, MetricsRow]] = []  # size of the text, number among the training rows, content
    held_bytes, training, stride = 0, 0, 1
    for line, row in _lines(path):
        is_training = row.get("kind") == "train"
        number = training if is_training else 0
        training += is_training
        if number % stride:
            continue
        rows.append((len(line), number, row))
        held_bytes += len(line)
        if held_bytes > MAX_HELD_BYTES:
            stride *= 2
            rows = [one for one in rows if one[1] % stride == 0]
            held_bytes = sum(size for size, _, _ in rows)
            if held_bytes > 0.75 * MAX_HELD_BYTES:
                raise UserError(
                    f"{path} has more than {held_bytes:,} bytes of rows that are not training steps"
                )
    return [row for _, _, row in rows]


def rewind_metrics(path: Path, step: int) -> None:
    """Forgets rows after `step`: the resumed run will write them again."""
    with replace_file(path) as temporary, open(temporary, "xb") as file:
        for line, row in _lines(path):
            if row["step"] <= step:
                file.write(line.rstrip(b"\n") + b"\n")


def _lines(path: Path) -> Iterator[tuple[bytes, MetricsRow]]:
    """Each line with its row. Lines that a kill cut short, or that are too long, are left out."""
    try:
        with open_regular_file(path, MAX_FILE_BYTES) as file:
            while line := file.readline(MAX_ROW_BYTES):
                try:
                    row = json.loads(line.decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield line, row
    except FileNotFoundError:
        return
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}") from None
