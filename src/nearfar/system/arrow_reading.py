"""Arrow IPC streams mapped into memory, as Hugging Face's `datasets` saves them: nothing is copied or unpacked."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as arrow

from nearfar.errors import UserError, error_reason
from nearfar.system.untrusted import arrow_path

# numbers of fields of Message (its kind and its header), DictionaryBatch and RecordBatch, in Message.fbs
_KIND, _HEADER, _ROWS_OF_DICTIONARY, _COMPRESSION = 1, 2, 1, 3
_DICTIONARY = 2  # the kind of a batch of dictionary values


def map_stream(path: Path) -> Any:
    """The table of an Arrow stream; its columns are those bytes of the file, read when they are used.

    A compressed stream is refused before anything is unpacked: its batches have no limit of their own. Every
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
