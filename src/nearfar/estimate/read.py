"""A sample from a file: .npy, .npz, .csv or .parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.errors import UserError

KINDS = (".npy", ".npz", ".csv", ".parquet")


def read_sample(spec: str) -> np.ndarray:
    """The table in a file; `FILE:NAME` (or `FILE:a,b`) takes one array of an .npz, or columns by name."""
    path, _, names = (spec, "", "") if Path(spec).exists() else spec.partition(":")
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{file} ends in {file.suffix or 'nothing'!r}; allowed are {', '.join(KINDS)}")
    if not file.is_file():
        raise UserError(f"{file} is {'a folder, not a file' if file.is_dir() else 'not there'}")
    wanted = [name.strip() for name in names.split(",")] if names else []
    try:
        return _READERS[kind](file, wanted)
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way its reader knows
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read as {file.suffix}: {reason}") from error


def _npy(file: Path, wanted: list[str]) -> np.ndarray:
    if wanted:
        raise UserError(f"{file} holds one array without a name; leave out :{','.join(wanted)}")
    return np.load(file, allow_pickle=False)


def _npz(file: Path, wanted: list[str]) -> np.ndarray:
    with np.load(file, allow_pickle=False) as arrays:
        names = list(arrays)
        if not wanted and len(names) != 1:
            raise UserError(f"{file} holds {', '.join(names)}; say which, for instance {file}:{names[0]}")
        return np.column_stack([arrays[_known(file, name, names)] for name in wanted or names])


def _csv(file: Path, wanted: list[str]) -> np.ndarray:
    import pyarrow.csv

    with file.open(encoding="utf-8") as lines:
        first = lines.readline().strip().split(",")
    headless = all(_is_number(cell) for cell in first)
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=headless)
    return _columns(file, pyarrow.csv.read_csv(file, read_options=options), wanted)


def _parquet(file: Path, wanted: list[str]) -> np.ndarray:
    import pyarrow.parquet

    return _columns(file, pyarrow.parquet.read_table(file), wanted)


def _columns(file: Path, table: Any, wanted: list[str]) -> np.ndarray:
    names = [_known(file, name, table.column_names) for name in wanted or table.column_names]
    # a list column (an embedding) is many columns
    parts = [_numbers(table.column(name).to_pylist(), f"{file} column {name}") for name in names]
    return np.column_stack(parts)


def _numbers(values: list[Any], where: str) -> np.ndarray:
    if any(value is None for value in values):
        raise UserError(f"{where} has a gap at row {values.index(None)}; fill it or leave the row out")
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{where} holds {values[0]!r}, which is no number; categories go as whole-number codes"
        )
    return array


def _known(file: Path, name: str, names: list[str]) -> str:
    if name not in names:
        raise UserError(f"{file} has no {name!r}; it has {', '.join(names)}")
    return name


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


_READERS = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet}
