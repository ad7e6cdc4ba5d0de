"""What several modalities read: labels as users write them, encoded files, and columns of Parquet or CSV tables."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from nearfar.errors import UserError, error_reason
from nearfar.modalities.dataset import Unusable
from nearfar.system.arrow_reading import read_table_file
from nearfar.system.extras import need
from nearfar.system.untrusted import arrow_path, column_names, read_bytes

MAX_CLASSES = 1_000_000

Labels = tuple[Int64[np.ndarray, "image"] | None, tuple[str, ...]]


def class_numbers(values: np.ndarray, source: str, names: Sequence[str] = ()) -> Labels:
    """(class number of each image, class names); (None, ()) when every label is "unknown" (-1).

    Strings become classes in sorted order. Integers are class numbers already and are kept as they are, so
    that a test set lacking a class still agrees with its training set; without `names` they have none, and
    none are made up: "3" of one set and "3" of another would look like the same class.
    """
    if values.ndim != 1:
        raise UserError(
            f"{source}: labels have shape {values.shape}; expected one class number or name per image."
        )
    if values.dtype.kind in "US":
        class_names, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), tuple(_text(name) for name in class_names)
    if values.dtype.kind not in "iub":
        raise UserError(
            f"{source}: labels are {values.dtype}; expected integers (class numbers) or strings (class "
            "names)."
        )
    if len(values) == 0 or (values.dtype.kind == "i" and (values == -1).all()):
        return None, ()
    return _checked(values, source, names), tuple(names)


def _checked(values: np.ndarray, source: str, names: Sequence[str]) -> np.ndarray:
    count = len(names) or MAX_CLASSES
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if len(wrong):
        raise UserError(
            f"{source}: the label of image {wrong[0]} is {values[wrong[0]]}; expected class numbers "
            f"from 0 to {count - 1} (or -1 for all images, meaning unlabelled)."
        )
    return values.astype(np.int64)


def parse_names(names: np.ndarray, source: str) -> tuple[str, ...]:
    """The class names an .npz file gives in `classes`: name i is that of class number i."""
    if names.ndim != 1 or names.dtype.kind not in "US" or len(set(names.tolist())) < len(names):
        raise UserError(
            f"{source}: classes are {names.dtype} of shape {names.shape}; expected a list of different "
            "strings, the name of class 0 first."
        )
    return tuple(_text(name) for name in names)


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def set_fields(
    name: str, unit: str, labelled: Labels, paths: Sequence[str], digest: Any, unlabelled: str
) -> dict[str, Any]:
    """The fields of a data set of whole content: its name and fingerprint, labels, paths and rows. `digest`
    (of hashlib) has seen the content; `unlabelled` says why there are no labels, where there are none."""
    labels, classes = labelled
    if labels is not None and len(labels) != len(paths):
        raise UserError(
            f"data {name!r}: {len(paths)} {unit} but {len(labels)} labels; expected one for each."
        )
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return {
        "name": name,
        "fingerprint": digest.hexdigest(),
        "labels": labels,
        "classes": classes,
        "paths": tuple(paths),
        "rows": np.arange(len(paths)),
        "unlabelled": "" if labels is not None else unlabelled,
    }


MAX_BYTES = 400_000_000  # of one file: what an uncompressed picture of the largest size may take, twice
CELL_BYTES = 64  # of a cell as a Python object


def arrow_table(path: Path, spec: str, names: Collection[str] | None = None, cell_bytes: int = 8) -> Any:
    """The columns of these names (None: all) of a Parquet or CSV file, in its order, as an Arrow table."""
    arrow = need("pyarrow")
    try:
        if path.suffix.lower() == ".parquet":
            schema = need("pyarrow.parquet").read_schema(arrow_path(path))
            columns = [name for name in schema.names if names is None or name in names]
            table = read_table_file(path, columns, cell_bytes)
        else:
            table = need("pyarrow.csv").read_csv(arrow_path(path))
        return table.select([name for name in column_names(table, spec) if names is None or name in names])
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise UserError(f"data {spec!r} cannot be read as a table: {error_reason(problem)}.") from problem


def read_table(path: Path, spec: str, names: Collection[str] | None) -> dict[str, list[Any]]:
    """The same as Python objects."""
    table = arrow_table(path, spec, names, CELL_BYTES)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def file_bytes(path: str) -> bytes:
    """A regular file's bytes; anything else (a pipe would block for ever) is unusable."""
    try:
        if os.path.isdir(path):
            # a folder counts as a file only when it could not be listed; the error has the reason
            os.listdir(path)
        return read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise Unusable(f"unreadable: {error.strerror}") from error
