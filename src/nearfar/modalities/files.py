"""Files that several modalities read: one encoded instance, or columns of a Parquet or CSV table."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nearfar.errors import UserError, error_reason
from nearfar.modalities.dataset import Unusable
from nearfar.system.extras import need
from nearfar.system.parquet_reading import read_table_file
from nearfar.system.untrusted import arrow_path, column_names, read_bytes

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
