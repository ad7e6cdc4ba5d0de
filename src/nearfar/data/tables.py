"""Arrays in files: tables of numbers and categories (CSV, and Parquet without a column of images or sound; a
column `label` holds classes) and .npz."""

import json
from collections.abc import Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import pyarrow as pa

from nearfar.data.parquet import is_text, label_values
from nearfar.errors import UserError, error_reason
from nearfar.modalities import MODALITIES
from nearfar.modalities.base import Arrays
from nearfar.modalities.files import Labels, arrow_table, class_numbers, parse_names
from nearfar.system.arrow_reading import text_labels
from nearfar.system.untrusted import check_data_file, column_names, npz_arrays, zip_members

SUFFIXES = (".csv",)
LABEL = "label"
MAX_LEVELS = 1000  # of a category


def table(path: Path, name: str, label: str | None = None) -> Arrays:
    """The columns of numbers of a file (see `columns_as_rows`)."""
    check_data_file(path, name)
    return columns_as_rows(arrow_table(path, name), name, path.name, label)


def frame(data: Any, name: str) -> pa.Table:
    """The columns of a pandas or polars frame, or of any table that Arrow can take over, without an index."""
    try:
        columns = pa.table(data)
        column_names(columns, name)
        metadata = json.loads((columns.schema.metadata or {}).get(b"pandas", b"{}"))
        columns = pa.table({title: _without_views(columns.column(title)) for title in columns.column_names})
    except UserError:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"data {name!r} cannot be read as a table: {error_reason(error)}.") from error
    index = [one for one in metadata.get("index_columns", ()) if one in columns.column_names]
    return columns.drop_columns(index)


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with the classic layouts of strings and bytes: polars has views, which Arrow rarely computes
    with."""
    if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.large_string()))
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, pa.dictionary(column.type.index_type, pa.large_string()))
    kind = _classic(column.type)
    return column if kind == column.type else column.cast(kind)


def _classic(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_classic(field.type)) for field in kind])
    return kind


def columns_as_rows(
    columns: pa.Table, name: str, file: str, label: str | None, classes: tuple[str, ...] = ()
) -> Arrays:
    """The columns of numbers and categories (words) side by side; a column of anything else is an error."""
    names = column_names(columns, name)
    numbers: list[np.ndarray] = []
    levels: list[tuple[str, ...]] = []
    labelled: Labels = (None, ())
    if not columns.num_rows:
        raise UserError(f"data {name!r}: the table holds no rows of numbers.")
    if label is not None and label not in names:
        raise UserError(f"label_column was {label!r}; the columns of {name} are {', '.join(names[:20])}.")
    for column in names:
        if column == (label or LABEL):
            labelled = _labels(columns.column(column), name, column, classes)
            continue
        kind = columns.schema.field(column).type
        if columns.column(column).null_count:
            raise UserError(
                f"data {name!r}: {columns.column(column).null_count} rows have nothing in column {column!r}; "
                "fill or drop them."
            )
        if is_text(kind):
            codes, level_names = _categories(columns.column(column), name, column)
            numbers.append(codes)
            levels.append(level_names)
            continue
        levels.append(())
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            encoded = ", ".join(
                f"`{key}`" for modality in MODALITIES.values() for key in modality.reader.columns
            )
            raise UserError(
                f"data {name!r}: the column `{column}` is {kind}; expected columns of numbers or words with "
                f"classes in `label`, or encoded instances in a column {encoded}."
            )
        # large whole numbers are rounded, as floats of a file are
        numbers.append(columns.column(column).cast(pa.float64(), safe=False).to_numpy())
    if not numbers:
        raise UserError(f"data {name!r}: the table holds no rows of numbers.")
    rows = np.stack(numbers, axis=1)
    paths = tuple(f"{file}#{row}" for row in range(len(rows)))
    return Arrays(rows, labelled, paths, tuple(levels) if any(levels) else ())


def _categories(column: Any, name: str, title: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's level, and the levels in sorted order."""
    texts = text_labels(column, f"data {name!r}", title)
    level_names, codes = np.unique(texts, return_inverse=True)
    if len(level_names) > min(MAX_LEVELS, max(2, len(codes) // 2)):
        raise UserError(
            f"data {name!r}: the column `{title}` has {len(level_names):,} different words in {len(codes):,} rows; "
            f"expected categories, at most {MAX_LEVELS:,} and each in two rows on average. Drop the column, or "
            "name it label_column."
        )
    return codes.astype(np.float64), tuple(map(str, level_names))


def _labels(column: Any, name: str, title: str, classes: tuple[str, ...]) -> Labels:
    if column.null_count:
        raise UserError(
            f"data {name!r}: {column.null_count} rows have no `{title}`; give every row one, or none."
        )
    return class_numbers(label_values(column, name, title), f"data {name!r}", classes)


def npz(path: Path, name: str, keys: Iterable[str]) -> tuple[str, Arrays]:
    """The first of the `keys` that an .npz file holds, that array, optional `labels` and their names,
    `classes`; object arrays (which are pickles) are refused, not loaded."""
    names = tuple(keys)
    arrays, members = npz_arrays(path, (*names, "labels", "classes"))
    key = next((key for key in names if key in arrays), None)
    if key is None:
        raise UserError(
            f"data {name!r} have no array {', '.join(f'`{key}`' for key in names[:-1])} or `{names[-1]}` "
            f"(the file holds: {', '.join(sorted(members)) or 'nothing'})."
        )
    labelled: Labels = (None, ())
    if "labels" in arrays:
        source = f"data {name!r}"
        classes = parse_names(arrays["classes"], source) if "classes" in arrays else ()
        labelled = class_numbers(arrays["labels"], source, classes)
    rows = len(np.atleast_1d(arrays[key]))
    return key, Arrays(arrays[key], labelled, tuple(f"{path.name}#{row}" for row in range(rows)))


def npy(path: Path, name: str) -> np.ndarray:
    """The array of an .npy file, which is mapped, not read."""
    check_data_file(path, name)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError) as error:  # numpy parses the header as Python
        raise UserError(f"data {name!r} cannot be read as .npy: {error_reason(error)}.") from error


def npz_keys(path: Path) -> list[str]:
    """The names of the arrays, without reading them; none if the file is another archive."""
    try:
        return [member.filename.removesuffix(".npy") for member in zip_members(path)]
    except OSError:
        return []
