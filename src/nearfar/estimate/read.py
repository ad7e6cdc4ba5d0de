"""A sample from a file: .npy, .npz, .csv or .parquet."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.errors import UserError
from nearfar.estimate.columns import arrow_cells, as_columns, is_empty
from nearfar.system.extras import need
from nearfar.system.untrusted import arrow_path, check_npz, check_regular

Held = tuple[dict[str, Any], int | None]  # columns, and the line of the first row where rows are lines
KINDS = (".npy", ".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class Named:
    """Columns of a file by name, each (sample,) or (sample, width) if it holds lists; an array without names has one, ''."""

    file: Path
    columns: dict[str, Any]
    chosen: bool  # whether the user named them


def read_sample(spec: str) -> np.ndarray:
    """The table in a file as numbers; `FILE:NAME` (or `FILE:a,b`) takes one array of an .npz, or columns by name."""
    return as_columns(read_columns(spec).columns, spec).values


def read_labels(spec: str) -> np.ndarray:
    """One column of a file, numbers or words: a label for every row."""
    columns = list(read_columns(spec).columns.values())
    if len(columns) != 1 or np.asarray(columns[0]).ndim != 1:
        raise UserError(f"{spec} is not one column; name it, for instance {spec.partition(':')[0]}:NAME")
    return np.asarray(columns[0])


def read_pair(x: str, y: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Two samples, and what was done to them: a column that y names is not taken from the whole of the same file for x too."""
    first, second = read_columns(x), read_columns(y)
    shared = [name for name in first.columns if name in second.columns and name]
    if not shared or first.file.resolve() != second.file.resolve():
        return first.columns, second.columns, []
    if first.chosen and second.chosen:
        raise UserError(
            f"column {shared[0]} of {first.file} is both in X and in Y; a column tells everything about itself, leave it out of one"
        )
    whole, part = (second, first) if first.chosen else (first, second)
    left = {name: column for name, column in whole.columns.items() if name not in part.columns}
    if not left:
        raise UserError(
            f"X and Y are the same columns of {first.file}; name some for one side, {first.file}:NAME"
        )
    said = f"column {', '.join(shared)} of {first.file} is {'X' if part is first else 'Y'}, so it was left out of the other side"
    return (left, part.columns, [said]) if part is second else (part.columns, left, [said])


def read_table(spec: str, target: str) -> tuple[dict[str, Any], list[str]]:
    """Columns of a file, one of them the target, and the names of those that are empty, which are left out."""
    named, first_line = _read(spec)
    if target not in named.columns:
        raise UserError(f"--target was {target}; {spec} has {', '.join(named.columns)}")
    where = f"{named.file} column"
    empty = [n for n, column in named.columns.items() if n != target and is_empty(column, f"{where} {n}")]
    held = {name: column for name, column in named.columns.items() if name not in set(empty)}
    as_columns(held, str(named.file), first_line)
    return held, empty


def read_columns(spec: str) -> Named:
    """Columns of a file, as `read_sample` takes them. What is wrong with one is said with its file."""
    named, first_line = _read(spec)
    as_columns(named.columns, str(named.file), first_line)
    return named


def _read(spec: str) -> tuple[Named, int | None]:
    """Columns of a file as they are, and the line of the first row, where rows are lines."""
    path, _, names = (spec, "", "") if Path(spec).exists() else spec.partition(":")
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{file} ends in {file.suffix or 'nothing'!r}; expected {', '.join(KINDS)}")
    try:
        check_regular(file)
    except FileNotFoundError:
        raise UserError(f"{file} was not found") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder, not a file") from None
    except OSError as problem:
        raise UserError(f"{file} cannot be read: {problem.strerror}") from None
    wanted = [name.strip() for name in names.split(",")] if names else []
    try:
        columns, first_line = _READERS[kind](file, wanted)
        return Named(file, columns, bool(wanted)), first_line
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way its reader knows
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read as {file.suffix}: {reason}") from error


def _npy(file: Path, wanted: list[str]) -> Held:
    if wanted:
        raise UserError(f"{file} holds one array without a name; leave out :{','.join(wanted)}")
    return {"": np.load(file, allow_pickle=False)}, None


def _npz(file: Path, wanted: list[str]) -> Held:
    check_npz(file)
    with np.load(file, allow_pickle=False) as arrays:
        names = list(arrays)
        if not wanted and len(names) != 1:
            raise UserError(f"{file} holds {', '.join(names)}; say which, for instance {file}:{names[0]}")
        return {name: arrays[_known(file, name, names)] for name in wanted or names}, None


def _csv(file: Path, wanted: list[str]) -> Held:
    csv = need("pyarrow.csv")
    with file.open(encoding="utf-8") as lines:
        first = lines.readline().strip().split(",")
    headless = all(_is_number(cell) for cell in first)
    options = csv.ReadOptions(autogenerate_column_names=headless)
    try:
        table = csv.read_csv(arrow_path(file), read_options=options)
    except ValueError as problem:
        if "straddling" not in str(problem):
            raise
        raise UserError(
            f"{file} has a cell or line of more than {options.block_size:,} bytes; expected shorter ones (is a quote missing?)"
        ) from None
    before = 1 if headless else 2
    # empty lines and words of several lines are no rows of their own: then nobody knows the line
    with file.open("rb") as lines:
        plain = sum(1 for _ in lines) == table.num_rows + before - 1
    return _columns(file, table, wanted), before if plain else None


def _parquet(file: Path, wanted: list[str]) -> Held:
    from nearfar.system.parquet_reading import read_table_file

    names = need("pyarrow.parquet").read_schema(arrow_path(file)).names
    for name in wanted:
        _known(file, name, names)
    return _columns(file, read_table_file(file, wanted or None), wanted), None


def _columns(file: Path, table: Any, wanted: list[str]) -> dict[str, Any]:
    """Columns of an Arrow table; a list column (an embedding) is many."""
    names = table.column_names
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{file} has {names.count(twice)} columns called {twice!r}; rename them")
    return {
        name: arrow_cells(table.column(name)) for name in ([_known(file, w, names) for w in wanted] or names)
    }


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
