"""Which instances have a label: a random share, a number of each class, or those that a file lists."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.training import draw_labelled
from nearfar.errors import UserError
from nearfar.estimate.read import KINDS, read_columns
from nearfar.modalities import DataSet
from nearfar.modalities.files import class_numbers
from nearfar.system.untrusted import NOT_REGULAR

LabelChoice = float | Path  # a share below 1, a number of each class, or a file


def read_labels(text: str | float | Path) -> LabelChoice:
    """Reads `0.01` (a share), `10` (of each class) or a file name."""
    if isinstance(text, str):
        word = text
        try:
            text = float(word)
        except ValueError:
            text = Path(word)
    if isinstance(text, Path):
        is_table = text.suffix.lower() in KINDS
        if is_table and text.exists() and not text.is_file():
            raise UserError(f"--labels was {text}, which {'is a folder' if text.is_dir() else NOT_REGULAR}")
        if not is_table or not text.exists():
            raise UserError(
                f"--labels was {text}; expected a share such as 0.01, a number of each class such as 10, or "
                "a .csv or .parquet file with the columns path (or index) and label"
            )
        label_columns(text)  # a mistake in it is reported before any stage is trained
        return text
    if not text > 0 or (text >= 1 and text != int(text)):
        raise UserError(f"--labels was {text:g}; expected a share below 1, or a whole number of each class")
    return text


def choose_labels(data: DataSet, labels: LabelChoice, draw: int) -> DataSet:
    """The labelled instances, with their labels. `draw`: the number of the random draw."""
    if not isinstance(labels, Path):
        return draw_labelled(data, labels, draw)
    columns = label_columns(labels)
    places = _by_path(data, columns, labels) if "path" in columns else _by_index(data, columns, labels)
    if len(set(places)) < len(places):
        raise UserError(
            f"--labels {labels} names {len(places) - len(set(places))} instances twice; name each once"
        )
    empty = sum(value is None or not str(value).strip() for value in columns["label"])
    if empty:
        raise UserError(f"--labels {labels} has {empty} rows without a label; leave those rows out")
    numbers, names = class_numbers(np.asarray(list(columns["label"])), f"--labels {labels}")
    if numbers is None:
        raise UserError(f"--labels {labels} holds no labels")
    if not names and data.classes and numbers.max() < len(data.classes):
        names = data.classes
    order = np.argsort(places, kind="stable")
    part = data.subset(np.asarray(places)[order])
    return replace(part, labels=numbers[order], classes=names)


def label_columns(file: Path) -> Mapping[str, Any]:
    """The columns of a file of labels: `label`, and `path` or `index`."""
    columns = read_columns(str(file)).columns
    if "label" not in columns or not {"path", "index"} & set(columns):
        raise UserError(
            f"--labels {file} has the columns {', '.join(columns)}; expected label, and path or index to "
            "identify the instance"
        )
    return columns


def _by_path(data: DataSet, columns: Mapping[str, Any], file: Path) -> list[int]:
    """Positions of the instances that a file names."""
    positions = {path: place for place, path in enumerate(data.paths)}
    names = [str(path) for path in columns["path"]]
    missing = [name for name in names if name not in positions]
    if missing:
        raise UserError(
            f"--labels {file} names {missing[0]}, which is not in {data.name} ({len(missing)} of "
            f"{len(names)} are not); names look like {data.paths[0]}"
        )
    return [positions[name] for name in names]


def _by_index(data: DataSet, columns: Mapping[str, Any], file: Path) -> list[int]:
    rows = np.asarray(columns["index"])
    if data.quarantine:
        raise UserError(
            f"--labels {file} names rows by index, but {len(data.quarantine)} of {data.name} are in "
            "quarantine, which shifts the numbers; use the column path"
        )
    if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(data):
        raise UserError(
            f"--labels {file}: index must be whole numbers from 0 to {len(data) - 1}; it holds {rows.min()} "
            f"to {rows.max()}"
        )
    return [int(row) for row in rows]
