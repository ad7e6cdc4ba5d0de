"""Columns of Parquet and CSV files, for the modalities that read several columns of one table."""

from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.system.extras import need
from nearfar.system.parquet_reading import read_table_file
from nearfar.system.untrusted import arrow_path, column_names

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
