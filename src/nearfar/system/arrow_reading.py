"""Parquet files decoded in bounded batches that are counted, so that a small file cannot fill the memory.

Footers and page headers give the sizes of encoded values. Dictionaries and run lengths expand afterwards: one
value of 100 MiB in 400 rows is a file of 4 kB. So reading stops once the decoded bytes exceed the limit in
`nearfar.system.untrusted`.

    content_batches   encoded pictures and sounds, one row at a time
    read_table        tables; text stays dictionary-encoded until its expanded size is counted

pyarrow aborts the process when Python code accesses the metadata of a damaged column chunk, while reading
that chunk raises an error. So the footer is used for row groups only, and for nested columns once they were
scanned.
"""

import os
import struct
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet

from nearfar.errors import UserError, error_reason
from nearfar.system.untrusted import (
    MAX_RATIO,
    UNCHECKED_BYTES,
    arrow_path,
    check_memory,
    check_regular,
    check_unpacked,
)

BATCH_BYTES = 2**24  # of the fixed-width values in a batch of a table
MAX_BATCH_ROWS = 2**12
CELL_BYTES = 8  # the least that a cell of a table takes
LONGEST_LABEL = 1024  # characters: an array of labels takes as many for every row as the longest has
_COMPACT_ROWS = 2**12  # one-row batches joined into one chunk


class DecodedBytes:
    """Counts decoded bytes; more than `limit` of them end in `message`."""

    def __init__(self, limit: int, message: str) -> None:
        self._limit, self._message, self._count = limit, message, 0

    @classmethod
    def of_file(cls, path: str, packed: int) -> "DecodedBytes":
        """The count for a file of `packed` bytes."""
        limit = max(UNCHECKED_BYTES, MAX_RATIO * packed)
        expected = f"expected {MAX_RATIO} times as many, or {UNCHECKED_BYTES:,}"
        return cls(
            limit, f"{path!r} would decompress from {packed:,} to more than {limit:,} bytes; {expected}"
        )

    def add(self, count: int) -> None:
        self._count += max(0, count)
        if self._count > self._limit:
            raise UserError(self._message)


def check_footer(metadata: Any, path: str, packed: int) -> None:
    """Stops a file whose pages unpack to a large multiple of it by its own account, before any is read."""
    groups = range(metadata.num_row_groups)
    check_unpacked(path, packed, sum(max(0, metadata.row_group(group).total_byte_size) for group in groups))


def content_leaf(schema: Any, column: str, path: str) -> str:
    """The path of the binary leaf that holds a column's encoded bytes; a sentence where there is none."""
    if column not in schema.names:
        raise UserError(f"{path!r} has no `{column}` column (its columns: {', '.join(schema.names[:20])}).")
    if any(name.startswith(f"{column}.") for name in schema.names) or schema.names.count(column) > 1:
        raise UserError(f"{path!r} has several columns called `{column}`; expected one.")
    kind, leaf = schema.field(column).type, column
    if arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, leaf = kind.field("bytes").type, f"{column}.bytes"
    if not (arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)):
        raise UserError(
            f"{path!r}: the `{column}` column is {kind}; expected a struct with binary `bytes`, or binary."
        )
    return leaf


def content_batches(file: Any, group: int, leaves: list[str], counter: DecodedBytes) -> Iterator[Any]:
    """The rows of a row group, each a batch: a batch of several would hold a repeated value several times."""
    for batch in file.iter_batches(1, row_groups=[group], columns=leaves, use_threads=False):
        counter.add(batch.nbytes)
        yield batch


def read_table_file(
    path: str | os.PathLike[str], names: Collection[str] | None = None, cell_bytes: int = CELL_BYTES
) -> Any:
    """`read_table` of a local file."""
    try:
        size = check_regular(path)
    except OSError as error:
        raise UserError(f"{os.fspath(path)!r} cannot be read as Parquet: {error.strerror}.") from error
    return read_table(arrow_path(path), os.fspath(path), size, names, cell_bytes)


def read_table(
    source: Any, path: str, size: int, names: Collection[str] | None = None, cell_bytes: int = CELL_BYTES
) -> Any:
    """The Arrow table of the columns (or leaves) of these names (None: all), without dictionary types.

    `source` is what `pyarrow.parquet.ParquetFile` takes. `cell_bytes` is the least that a cell will take
    where the table is used.
    """
    with parquet.ParquetFile(source) as file:
        check_footer(file.metadata, path, size)
        leaves = _leaves(file.schema, names)
        _check_nested(file, leaves, DecodedBytes.of_file(path, size), cell_bytes)
    text = [leaf.path for _, leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    try:
        with parquet.ParquetFile(source, read_dictionary=text) as file:
            return _expanded_table(
                file, leaves, names, DecodedBytes.of_file(path, size), cell_bytes, _batch_rows(leaves)
            )
    except (arrow.ArrowException, OSError):
        # Delta encodings cannot be read as dictionaries, and an array of text holds 2 GiB at most.
        with parquet.ParquetFile(source) as file:
            return _expanded_table(
                file, leaves, names, DecodedBytes.of_file(path, size), cell_bytes, 1 if text else None
            )


def text_labels(column: Any, location: str, name: str) -> np.ndarray:
    """An Arrow column of short texts, or of a dictionary of them, as a numpy array."""
    longest = longest_text(column)
    if longest > LONGEST_LABEL:
        raise UserError(
            f"{location}: a value of `{name}` has {longest:,} bytes; expected labels of at most "
            f"{LONGEST_LABEL:,}."
        )
    try:
        # numpy has 4 bytes for a character, and np.unique a sorted copy; a list of them is between
        check_memory(name, 3 * len(column) * 4 * max(1, longest))
    except OSError as problem:
        raise UserError(f"{location}: the texts of `{name}` take {problem.strerror}.") from None
    return np.array(column.to_pylist(), dtype=np.str_)


def longest_text(column: Any) -> int:
    """Bytes of the longest text in an Arrow column; a dictionary is not expanded."""
    kind = column.type
    if arrow.types.is_dictionary(kind):
        return max((longest_text(chunk.dictionary) for chunk in column.chunks), default=0)
    if arrow.types.is_string_view(kind):
        column = column.cast(arrow.large_string())
    return int(compute.max(compute.binary_length(column)).as_py() or 0)


def _leaves(schema: Any, names: Collection[str] | None) -> list[tuple[int, Any]]:
    """(number, leaf) of the leaves below these names, as pyarrow chooses them."""
    every = [(number, schema.column(number)) for number in range(len(schema))]
    if names is None:
        return every
    selected = {*names}  # there may be as many names as leaves
    return [
        (number, leaf)
        for number, leaf in every
        if any(start in selected for start in accumulate(leaf.path.split("."), "{}.{}".format))
    ]


def _check_nested(file: Any, leaves: list[tuple[int, Any]], counter: DecodedBytes, cell_bytes: int) -> None:
    """Stops lists of too many values: a row of a list column may hold any number of them."""
    nested = [(number, leaf) for number, leaf in leaves if leaf.max_repetition_level]
    if not nested:
        return
    file.scan_contents(columns=[leaf.path for _, leaf in nested])
    for group in range(file.metadata.num_row_groups):
        metadata = file.metadata.row_group(group)
        for number, leaf in nested:
            counter.add(metadata.column(number).num_values * max(cell_bytes, leaf.length or 0))


def _batch_rows(leaves: list[tuple[int, Any]]) -> int:
    width = sum(max(CELL_BYTES, leaf.length or 0) for _, leaf in leaves)
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, width)))


def _expanded_table(
    file: Any,
    leaves: list[tuple[int, Any]],
    names: Collection[str] | None,
    counter: DecodedBytes,
    cell_bytes: int,
    rows: int | None,
) -> Any:
    """A table of batches that were counted as if every dictionary was expanded, and then are expanded."""
    tables: list[Any] = []
    batches: list[Any] = []
    schema = None
    columns = None if names is None else list(names)
    for batch in file.iter_batches(rows or _batch_rows(leaves), columns=columns, use_threads=False):
        counter.add(sum(_expanded_bytes(column, cell_bytes) for column in batch.columns))
        arrays = [column.cast(_dense_type(column.type)) for column in batch.columns]
        kinds = [array.type for array in arrays]
        schema = schema or arrow.schema(
            list(zip(batch.schema.names, kinds, strict=True)), batch.schema.metadata
        )
        expanded = arrow.RecordBatch.from_arrays(arrays, schema=schema)
        expanded.validate(
            full=True
        )  # text may be anything but UTF-8, and lists may point beyond their values
        batches.append(expanded)
        if rows == 1 and len(batches) == _COMPACT_ROWS:
            tables.append(arrow.Table.from_batches(batches).combine_chunks())
            batches = []
    if schema is None:  # no rows
        titles = file.schema_arrow.names
        selected_columns = [
            title
            for title in titles
            if columns is None or any(f"{name}.".startswith(f"{title}.") for name in columns)
        ]
        return file.schema_arrow.empty_table().select(selected_columns)
    return arrow.concat_tables([*tables, arrow.Table.from_batches(batches, schema)])


def _expanded_bytes(array: Any, cell_bytes: int) -> int:
    """Bytes of an Arrow array without dictionaries; a cell takes at least `cell_bytes`."""
    kind, cells = array.type, cell_bytes * len(array)
    if arrow.types.is_struct(kind):
        return sum(_expanded_bytes(part, cell_bytes) for part in array.flatten())
    if arrow.types.is_map(kind):
        return cells + _expanded_bytes(array.keys, cell_bytes) + _expanded_bytes(array.items, cell_bytes)
    if arrow.types.is_nested(kind):
        return cells + _expanded_bytes(array.flatten(), cell_bytes)
    if arrow.types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return max(cells, len(array) * (kind.value_type.bit_width // 8))
        lengths = compute.binary_length(array.dictionary).cast(arrow.int64())
        return cells + int(compute.sum(lengths.take(array.indices)).as_py() or 0)
    return cells + int(array.nbytes) if _is_text(kind) else max(cells, int(array.nbytes))


def _is_text(kind: Any) -> bool:
    types = arrow.types
    return any(
        is_kind(kind)
        for is_kind in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _dense_type(kind: Any) -> Any:
    """An Arrow type with the values' types in the place of dictionaries."""
    if arrow.types.is_dictionary(kind):
        return kind.value_type
    if arrow.types.is_struct(kind):
        return arrow.struct([_dense_field(kind.field(place)) for place in range(kind.num_fields)])
    if arrow.types.is_map(kind):
        return arrow.map_(_dense_type(kind.key_type), _dense_type(kind.item_type))
    if arrow.types.is_fixed_size_list(kind):
        return arrow.list_(_dense_field(kind.value_field), kind.list_size)
    if arrow.types.is_list(kind):
        return arrow.list_(_dense_field(kind.value_field))
    if arrow.types.is_large_list(kind):
        return arrow.large_list(_dense_field(kind.value_field))
    return kind


def _dense_field(field: Any) -> Any:
    return field.with_type(_dense_type(field.type))


# --------------------------------------------------------------------------------------- Arrow streams


# numbers of fields of Message (its kind and its header), DictionaryBatch and RecordBatch, in Message.fbs
_KIND, _HEADER, _ROWS_OF_DICTIONARY, _COMPRESSION = 1, 2, 1, 3
_DICTIONARY = 2  # the kind of a batch of dictionary values


def map_stream(path: Path) -> Any:
    """The table of an Arrow stream; its columns are those bytes of the file, read when they are used.

    A compressed stream is refused before anything is unpacked: its batches have no separate limit. Every
    offset is checked, so that damaged ones cannot lead outside of the file.
    """
    try:
        for metadata in _batches(path):
            if _is_compressed(metadata):
                raise UserError(
                    f"{str(path)!r} is a compressed Arrow stream; expected one as save_to_disk writes it"
                )
        with arrow.memory_map(arrow_path(path)) as source, arrow.ipc.open_stream(source) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (arrow.ArrowException, OSError, EOFError, struct.error, IndexError, UnicodeDecodeError) as problem:
        raise UserError(
            f"{str(path)!r} cannot be read as an Arrow stream: {error_reason(problem)}."
        ) from None
    return table


def _batches(path: Path) -> Iterator[bytes]:
    """The metadata of every batch of rows and of dictionary values."""
    with arrow.memory_map(arrow_path(path)) as source:
        for message in arrow.ipc.MessageReader.open_stream(source):
            if message.type != "schema":
                yield message.metadata.to_pybytes()


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a batch names a compression. Arrow has verified the flatbuffer."""
    message = struct.unpack_from("<I", metadata)[0]
    batch = _inner_table(metadata, message, _HEADER)
    kind = _field(metadata, message, _KIND)
    if kind is not None and metadata[kind] == _DICTIONARY:
        batch = _inner_table(metadata, batch, _ROWS_OF_DICTIONARY)
    return _field(metadata, batch, _COMPRESSION) is not None


def _inner_table(metadata: bytes, table: int, number: int) -> int:
    """The place of the table in a field of another; Arrow takes a flatbuffer without it."""
    field = _field(metadata, table, number)
    if field is None:
        raise EOFError("a batch has no header")
    return field + struct.unpack_from("<I", metadata, field)[0]


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """The place of a field of a flatbuffer's table; None if it is absent."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, fields)[0]
    if 4 + 2 * number >= size:
        return None
    offset = struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0]
    return table + offset if offset else None
