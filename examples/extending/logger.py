"""A logger: this file, and no line elsewhere.

nf.pretrain("simclr", "photos/", "runs/a", loggers=[CsvLogger("losses.csv")])

As a setting, `logger=csv`, it is a class with a line of LOGGERS in `nearfar/train/loggers.py`, and a name in LOGGERS
of `nearfar/config/fields.py`."""

import csv
from pathlib import Path
from typing import Any

import nearfar as nf


class CsvLogger(nf.Logger):
    """Writes step, loss and learning rate of every logged step as comma-separated values."""

    COLUMNS = ("step", "loss", "lr")

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def log(self, row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([row[column] for column in self.COLUMNS])
