"""Files that several modalities read: one encoded instance, or columns of a Parquet or CSV table."""

import os
from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.system.extras import need
from nearfar.system.parquet_reading import read_table_file
from nearfar.system.untrusted import arrow_path, column_names, read_bytes

MAX_BYTES = 400_000_000  # of one file: what an uncompressed picture of the largest size may take, twice
CELL_BYTES = 64  # of a cell as a Python object


def read_table(path: Path, spec: str, names: set[str] | None) -> dict[str, list[Any]]:
    """The columns of these names that a Parquet or CSV file has, in its order; all columns without names."""
    arrow, parquet, csv = need("pyarrow"), need("pyarrow.parquet"), need("pyarrow.csv")
    try:
        if path.suffix.lower() == ".parquet":
            columns = [
                name for name in parquet.read_schema(arrow_path(path)).names if names is None or name in names
            ]
            table = read_table_file(path, columns, CELL_BYTES)
        else:
            table = csv.read_csv(arrow_path(path))
        columns = [name for name in column_names(table, spec) if names is None or name in names]
        return {name: table.column(name).to_pylist() for name in columns}
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise UserError(f"data {spec!r} cannot be read: {str(problem).splitlines()[0]}.") from None


def file_bytes(path: str) -> bytes:
    """A regular file's bytes; anything else (a pipe would block for ever) is unusable."""
    try:
        if os.path.isdir(path):
            # a folder counts as a file only when it could not be listed; the error has the reason
            os.listdir(path)
        return read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise Unusable(f"unreadable: {error.strerror}") from error
