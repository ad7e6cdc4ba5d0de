"""Which instances have a label: a share of them drawn, so many of each class, or those that a file lists."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.holdout import draw_labelled
from nearfar.errors import UserError
from nearfar.estimate.read import KINDS, read_columns
from nearfar.modalities import DataSet
from nearfar.modalities.labels import class_numbers

Labels = float | Path


def read_labels(text: str | float | Path) -> Labels:
    """`0.01` (a share), `10` (of each class) or a file."""
    if isinstance(text, str):
        written = text
        try:
            text = float(written)
        except ValueError:
            text = Path(written)
    if isinstance(text, Path):
        if text.suffix.lower() not in KINDS or not text.is_file():
            raise UserError(
                f"--labels was {text}; expected a share such as 0.01, a number of each class such as 10, or a .csv or .parquet file "
                "with the columns path (or index) and label"
            )
        return text
    if not text > 0 or (text >= 1 and text != int(text)):
        raise UserError(f"--labels was {text:g}; expected a share below 1, or a whole number of each class")
    return text


def labelled(whole: DataSet, labels: Labels, draw: int) -> DataSet:
    """The instances whose label may be used, with it."""
    if not isinstance(labels, Path):
        return draw_labelled(whole, labels, draw)
    columns = read_columns(str(labels)).columns
    if "label" not in columns or not {"path", "index"} & set(columns):
        raise UserError(
            f"--labels {labels} has the columns {', '.join(columns)}; expected label, and path or index to say of what"
        )
    places = _by_path(whole, columns, labels) if "path" in columns else _by_index(whole, columns, labels)
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
    if not names and whole.classes and numbers.max() < len(whole.classes):
        names = whole.classes
    order = np.argsort(places, kind="stable")
    part = whole.subset(np.asarray(places)[order])
    return replace(part, labels=numbers[order], classes=names)


def _by_path(whole: DataSet, columns: Mapping[str, Any], file: Path) -> list[int]:
    """A name as the data set has it, or its end where that is unique enough: of files, those below the folder."""
    known = {path: place for place, path in enumerate(whole.paths)}
    asked = [str(path) for path in columns["path"]]
    missing = [path for path in asked if path not in known]
    if missing:
        raise UserError(
            f"--labels {file} names {missing[0]}, which is not in {whole.name} ({len(missing)} of {len(asked)} are not); names are as in "
            f"{whole.paths[0]}"
        )
    return [known[path] for path in asked]


def _by_index(whole: DataSet, columns: Mapping[str, Any], file: Path) -> list[int]:
    asked = np.asarray(columns["index"])
    if whole.quarantine:
        raise UserError(
            f"--labels {file} names rows by index, but {len(whole.quarantine)} of {whole.name} were set aside, so numbers are shifted; "
            "name them by path"
        )
    if asked.dtype.kind not in "iu" or asked.min() < 0 or asked.max() >= len(whole):
        raise UserError(
            f"--labels {file}: index must be whole numbers from 0 to {len(whole) - 1}; it holds {asked.min()} to {asked.max()}"
        )
    return [int(place) for place in asked]
