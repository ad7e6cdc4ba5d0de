"""A row-based data format: this file, and a line in `nearfar/data/open.py`:  FORMATS[".jsonl"] =
RowFormat(JsonLines)

    nearfar pretrain simclr table.jsonl --out runs/a        {"x": [0.5, 1.5], "label": "red"} in each line

Lines are found when the file is opened and parsed when they are read. A line that cannot be used is one row
of quarantine.csv."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.folder import stamp_of
from nearfar.data.source import AbstractSource
from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.files import Labels, class_numbers


class JsonLines(AbstractSource):
    """The lines of a file; the modality is that of the array in `x`."""

    def __init__(self, path: Path, spec: str) -> None:
        self.root, self.ignored, self._path = str(path.parent), {}, path
        with path.open("rb") as file:
            lengths = [len(line) for line in file]
        if not lengths:
            raise UserError(f"data {spec!r}: the file has no lines")
        self._ends = np.cumsum(lengths)

    def names(self) -> Sequence[str]:
        return [f"{self._path.name}#{number}" for number in range(len(self._ends))]

    def read_item(self, number: int) -> np.ndarray:
        try:
            return np.asarray(self._row(number)["x"], dtype=np.float32)
        except (ValueError, KeyError, TypeError) as problem:
            raise Unusable(f"not a JSON object with numbers in `x`: {problem}") from problem

    def labels(self, rows: np.ndarray) -> Labels:
        values = [self._row(number).get("label") for number in rows.tolist()]
        if any(value is None for value in values):
            return None, ()
        return class_numbers(np.array(values), f"data {self._path.name!r}")

    def stamp(self) -> str | None:
        return stamp_of([str(self._path)])

    def _row(self, number: int) -> Any:
        start = int(self._ends[number - 1]) if number else 0
        with self._path.open("rb") as file:
            file.seek(start)
            return json.loads(file.read(int(self._ends[number]) - start))
