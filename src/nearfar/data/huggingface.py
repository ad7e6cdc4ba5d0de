"""Data sets of Hugging Face's `datasets`: objects in Python, and what `save_to_disk` wrote, as `hf:PATH`.

    nf.pretrain("simclr", datasets.load_from_disk("beans/train"), out="runs/beans")
    nearfar pretrain simclr hf:beans/train --out runs/beans

Rows are read from Arrow tables, which are mapped, not loaded. Encoded bytes go to nearfar's own decoders, so
neither the package `datasets` nor any script or pickle is run. A column with the feature `Image` or `Audio`
decides the modality, then the usual names of columns, then a column of text; other tables are numbers.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearfar.data.folder import printable, stamp_of
from nearfar.data.parquet import (
    LABELS,
    AbstractRows,
    Columns,
    class_names_of,
    featured_columns,
    is_group_type,
    is_text,
    row_names,
)
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.dataset import Names, Unusable
from nearfar.modalities.files import file_bytes
from nearfar.system.arrow_reading import CELL_BYTES, map_stream
from nearfar.system.untrusted import check_memory, column_names, read_json

PREFIX = "hf:"
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_CLASSES = {"Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"}


@dataclass(frozen=True)
class ArrowData:
    """The table of a data set, and which of its rows are used, in which order (None: all)."""

    name: str
    table: pa.Table
    features: Mapping[str, Any]  # by column, as `datasets` writes them: {"_type": "Image", …}
    names: Sequence[str]  # of the rows
    rows: np.ndarray | None = None
    files: tuple[str, ...] = ()  # that are mapped; without any, the table is an object of the user
    is_trusted: bool = False  # paths in it are the user's own and may be opened

    def column(self, name: str) -> pa.ChunkedArray:
        column = self.table.column(name)
        return column if self.rows is None else column.take(pa.array(self.rows))

    def label(self, columns: Columns) -> str:
        """The name of the column of labels, whether or not there is one."""
        return columns.label or next((name for name in LABELS if name in self.table.column_names), LABELS[0])

    def content(self, columns: Columns) -> tuple[str, Modality] | None:
        """The column that holds the instances, and their modality; None: a table of numbers."""
        names, modalities = self.table.column_names, list(MODALITIES.values())
        if columns.image is not None:  # names a column of the first modality that has such columns
            return columns.image, next(modality for modality in modalities if modality.reader.columns)
        if featured := featured_columns(names, self.features):
            return featured[0]
        for modality in modalities:
            for name in modality.reader.columns:
                if name in names and _is_encoded(self.table.schema.field(name).type):
                    return name, modality
            for name in modality.reader.text_columns:
                if name in names and _is_text(self.table.schema.field(name).type):
                    return name, modality
        return None


def is_datasets_object(data: Any) -> bool:
    """Whether it is one of the classes of `datasets`, which is not imported for the question."""
    return any(
        kind.__module__.partition(".")[0] == "datasets" and kind.__name__ in _CLASSES
        for kind in type(data).__mro__
    )


def data_of_object(dataset: Any) -> ArrowData:
    """The table of a `datasets.Dataset`."""
    name = type(dataset).__name__
    if name.startswith("Iterable"):
        raise UserError(
            f"data of type {name} have no length; expected a datasets.Dataset (load_dataset without "
            "streaming), or save it and use hf:PATH."
        )
    if isinstance(dataset, Mapping):
        raise UserError(f"data of type {name} hold the splits {', '.join(dataset)}; pass one of them.")
    if dataset.format["type"] == "custom":
        raise UserError(
            f"data {name!r} have a transform (set_transform); pass dataset.with_format(None): nearfar makes "
            "the views."
        )
    if not len(dataset):
        raise UserError(f"data {name!r}: the data set has no rows.")
    indices = dataset._indices
    return ArrowData(
        name,
        dataset.data.table,
        dataset.features.to_dict(),
        numbered_rows(len(dataset)),
        None if indices is None else indices.column(0).to_numpy(),
        is_trusted=True,
    )


def data_of_folder(spec: str) -> ArrowData:
    """The table of a folder that `save_to_disk` wrote: `hf:PATH`."""
    folder = Path(spec.removeprefix(PREFIX))
    if (folder / _SPLITS).is_file():
        stored = read_json(folder / _SPLITS)
        splits = stored.get("splits") if isinstance(stored, dict) else None
        names = [printable(str(split)) for split in splits] if isinstance(splits, list) else []
        raise UserError(
            f"data {spec!r} hold the splits {', '.join(names)}; name one of them, such as "
            f"{PREFIX}{folder / (names[0] if names else 'train')}."
        )
    state = read_json(folder / _STATE)
    if state is None:
        raise UserError(
            f"data {spec!r}: {str(folder / _STATE)!r} cannot be read; expected a folder that "
            "Dataset.save_to_disk wrote, since nothing is downloaded here."
        )
    try:
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError):
        files = []
    if not files or not all(re.fullmatch(r"[\w.-]+", file.name) and file.parent == folder for file in files):
        raise UserError(f"data {spec!r}: {_STATE} names no files of this folder.")
    if len({*files}) < len(files):  # or a few bytes could be as many rows as the memory has
        raise UserError(f"data {spec!r}: {_STATE} names a file twice.")
    tables = [map_stream(file) for file in files]
    if any(table.schema != tables[0].schema for table in tables):
        raise UserError(f"data {spec!r}: the files have different columns.")
    info = read_json(folder / _INFO)
    features = info.get("features") if isinstance(info, dict) else None
    table = pa.concat_tables(tables)
    if not len(table):
        raise UserError(f"data {spec!r} have no rows.")
    names = column_names(table, spec)
    try:  # a column of bits, or of nothing, has more rows than its file has bytes
        check_memory(folder, CELL_BYTES * len(table) * len(names))
    except OSError as problem:
        raise UserError(f"data {spec!r}: their cells take {problem.strerror}.") from None
    return ArrowData(
        spec,
        table,
        features if isinstance(features, dict) else {},
        row_names([printable(file.name) for file in files], [len(part) for part in tables]),
        files=tuple(map(str, files)),
    )


def saved_hint(folder: str, names: Sequence[str]) -> str:
    """How a folder with these files is opened, if `save_to_disk` wrote it."""
    return (
        f"What Dataset.save_to_disk wrote is read as {PREFIX}{folder}."
        if {_STATE, _SPLITS} & {*names}
        else ""
    )


def numbered_rows(count: int) -> Names:
    """`row 17` for every row."""
    return Names(count, lambda place: f"row {place}")


class ArrowRows(AbstractRows):
    """The rows of a data set, by number."""

    ignored: Mapping[str, int] = {}

    def __init__(self, data: ArrowData, column: str, columns: Columns) -> None:
        self.root = data.name.removeprefix(PREFIX)
        self.column, self.label = column, data.label(columns)
        self.class_names = class_names_of(data.features, self.label)
        self._data, self._cells = data, data.table.column(column)
        kind = self._cells.type
        if not (_is_encoded(kind) or _is_text(kind)):
            raise UserError(
                f"data {data.name!r}: the column `{column}` is {kind}; expected encoded bytes, {{bytes, path}} or text."
            )

    def names(self) -> Sequence[str]:
        return self._data.names

    def read_item(self, number: int) -> bytes:
        rows = self._data.rows
        value = self._cells[number if rows is None else int(rows[number])].as_py()
        if isinstance(value, Mapping):
            path, value = value.get("path"), value.get("bytes")
            if value is None and path and self._data.is_trusted:
                return file_bytes(path)
            if value is None and path:
                raise Unusable(
                    f"only a path is stored ({printable(path)}), and paths in files are not followed"
                )
        if value is None:
            raise Unusable(f"empty row: no {self.column} is stored")
        return value.encode() if isinstance(value, str) else bytes(value)

    def _lengths(self) -> np.ndarray:
        """The encoded bytes of every row; 0 where none are stored."""
        cells = self._cells
        if pa.types.is_struct(cells.type):
            cells = pc.struct_field(cells, "bytes")
        lengths = pc.binary_length(cells).fill_null(0).to_numpy().astype("<i8")
        return lengths if self._data.rows is None else lengths[self._data.rows]

    def nbytes(self) -> float:
        return float(self._lengths().sum())

    def marks(self) -> bytes:
        """Over the length of every row. Contents are read when they are used."""
        return hashlib.sha256(self._lengths().tobytes()).digest()

    def parts(self, name: str) -> list[Any]:
        return [self._data.column(name) if name in self._data.table.column_names else None]

    def group_columns(self) -> list[str]:
        return [field.name for field in self._data.table.schema if is_group_type(field.type)]

    def stamp(self) -> str | None:
        if not self._data.files:
            return None
        stamp = stamp_of(self._data.files)
        return stamp and f"{stamp} {self.column} {self.label}"


def _is_encoded(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_encoded(kind.field("bytes").type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: Any) -> bool:
    return is_text(kind) and not pa.types.is_dictionary(kind)
