"""A sample from a file: .npy, .npz, .csv or .parquet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.errors import UserError
from nearfar.extras import need
from nearfar.untrusted import check_npz

KINDS = (".npy", ".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Columns of a file by name, each (sample,) or (sample, width) if it holds lists; an array without names has one, ''."""

    file: Path
    named: dict[str, np.ndarray]
    chosen: bool  # whether the user named them

    def values(self) -> np.ndarray:
        return np.column_stack(list(self.named.values()))


def read_sample(spec: str) -> np.ndarray:
    """The table in a file; `FILE:NAME` (or `FILE:a,b`) takes one array of an .npz, or columns by name."""
    return read_columns(spec).values()


def read_pair(x: str, y: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Two samples, and what was done to them: a column that y names is not taken from the whole of the same file for x too."""
    first, second = read_columns(x), read_columns(y)
    shared = [name for name in first.named if name in second.named and name]
    if not shared or first.file.resolve() != second.file.resolve():
        return first.values(), second.values(), []
    if first.chosen and second.chosen:
        raise UserError(
            f"column {shared[0]} of {first.file} is both in X and in Y; a column tells everything about itself, leave it out of one"
        )
    whole, part = (second, first) if first.chosen else (first, second)
    left = {name: column for name, column in whole.named.items() if name not in part.named}
    if not left:
        raise UserError(
            f"X and Y are the same columns of {first.file}; name some for one side, {first.file}:NAME"
        )
    said = f"column {', '.join(shared)} of {first.file} is {'X' if part is first else 'Y'}, so it was left out of the other side"
    rest = Columns(whole.file, left, True).values()
    return (rest, part.values(), [said]) if part is second else (part.values(), rest, [said])


def read_columns(spec: str) -> Columns:
    """Columns of a file, as `read_sample` takes them."""
    path, _, names = (spec, "", "") if Path(spec).exists() else spec.partition(":")
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{file} ends in {file.suffix or 'nothing'!r}; expected {', '.join(KINDS)}")
    if not file.is_file():
        raise UserError(f"{file} {'is a folder, not a file' if file.is_dir() else 'was not found'}")
    wanted = [name.strip() for name in names.split(",")] if names else []
    try:
        return Columns(file, _READERS[kind](file, wanted), bool(wanted))
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way its reader knows
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read as {file.suffix}: {reason}") from error


def _npy(file: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    if wanted:
        raise UserError(f"{file} holds one array without a name; leave out :{','.join(wanted)}")
    return {"": np.load(file, allow_pickle=False)}


def _npz(file: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    check_npz(file)
    with np.load(file, allow_pickle=False) as arrays:
        names = list(arrays)
        if not wanted and len(names) != 1:
            raise UserError(f"{file} holds {', '.join(names)}; say which, for instance {file}:{names[0]}")
        return {name: arrays[_known(file, name, names)] for name in wanted or names}


def _csv(file: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    csv = need("pyarrow.csv")
    with file.open(encoding="utf-8") as lines:
        first = lines.readline().strip().split(",")
    headless = all(_is_number(cell) for cell in first)
    options = csv.ReadOptions(autogenerate_column_names=headless)
    table = csv.read_csv(file, read_options=options)
    return _columns(file, table, wanted, first_line=1 if headless else 2)


def _parquet(file: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    from nearfar.data.parquet_sizes import check_parquet

    parquet = need("pyarrow.parquet")
    with parquet.ParquetFile(file) as opened:
        check_parquet(file, opened.schema_arrow.names)
    return _columns(file, parquet.read_table(file), wanted)


def _columns(
    file: Path, table: Any, wanted: list[str], first_line: int | None = None
) -> dict[str, np.ndarray]:
    names = [_known(file, name, table.column_names) for name in wanted or table.column_names]
    # a list column (an embedding) is many columns
    return {
        name: _numbers(table.column(name).to_pylist(), f"{file} column {name}", first_line) for name in names
    }


def _numbers(values: list[Any], where: str, first_line: int | None) -> np.ndarray:
    if any(value is None for value in values):
        row = values.index(None)
        raise UserError(f"{where} has a gap at {_place(row, first_line)}; fill it or leave the row out")
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        # one wrong cell makes a column of text: it is the cell that must be named, not the column's first
        row = next((i for i, value in enumerate(values) if not _is_number(value)), 0)
        raise UserError(
            f"{where} holds {values[row]!r} at {_place(row, first_line)}, which is not a number; "
            "categories go as whole-number codes"
        )
    return array


def _place(row: int, first_line: int | None) -> str:
    return f"row {row}" if first_line is None else f"row {row} (line {row + first_line})"


def _known(file: Path, name: str, names: list[str]) -> str:
    if name not in names:
        raise UserError(f"{file} has no {name!r}; it has {', '.join(names)}")
    return name


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError):
        return False
    return True


_READERS = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet}
