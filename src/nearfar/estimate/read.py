"""Reads samples from .npy, .npz, .csv and .parquet files."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.errors import UserError, error_reason
from nearfar.estimate.columns import arrow_cells, as_columns, is_empty
from nearfar.system.extras import need
from nearfar.system.untrusted import (
    arrow_path,
    check_memory,
    check_regular,
    check_zip,
    open_regular_file,
)

# columns, and the line of the first row in a text file (None if it is unknown)
Contents = tuple[dict[str, Any], int | None]
KINDS = (".npy", ".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class FileColumns:
    """Columns of a file by name, each (sample,) or, for lists, (sample, width).

    An array without names is ''.
    """

    file: Path
    columns: dict[str, Any]
    selected: bool  # whether the user named the columns


def read_sample(spec: str) -> np.ndarray:
    """The table in a file as numbers.

    `FILE:NAME` or `FILE:a,b` takes one array of an .npz, or columns by name.
    """
    return as_columns(read_columns(spec).columns, spec).values


def read_labels(spec: str) -> np.ndarray:
    """One column of a file, numbers or words: a label per row."""
    columns = list(read_columns(spec).columns.values())
    if len(columns) != 1 or np.asarray(columns[0]).ndim != 1:
        raise UserError(f"{spec} is not one column; name it, for instance {spec.partition(':')[0]}:NAME")
    return np.asarray(columns[0])


def read_pair(x: str, y: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Reads two samples. If one side is a whole file and the other columns of it, those are dropped from the
    former.

    Also returns notes on what was dropped.
    """
    first, second = read_columns(x), read_columns(y)
    shared = [name for name in first.columns if name in second.columns and name]
    if not shared or first.file.resolve() != second.file.resolve():
        return first.columns, second.columns, []
    if first.selected and second.selected:
        raise UserError(
            f"column {shared[0]} of {first.file} is both in X and in Y; the information of a column about "
            "itself is trivial, leave it out of one"
        )
    table, selection = (second, first) if first.selected else (first, second)
    rest = {name: column for name, column in table.columns.items() if name not in selection.columns}
    if not rest:
        raise UserError(
            f"X and Y are the same columns of {first.file}; name some for one side, {first.file}:NAME"
        )
    note = (
        f"column {', '.join(shared)} of {first.file} is {'X' if selection is first else 'Y'}, so it was left "
        "out of the other side"
    )
    if selection is second:
        return rest, selection.columns, [note]
    return selection.columns, rest, [note]


def read_table(spec: str, target: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Columns of a file without empty ones, and the names of the empty ones. `target` must be one of the
    columns."""
    contents, first_line = _read_file(spec)
    if target is not None and target not in contents.columns:
        raise UserError(f"--target was {target}; {spec} has {', '.join(contents.columns)}")
    empty = [
        name
        for name, column in contents.columns.items()
        if name != target and is_empty(column, f"{contents.file} column {name}")
    ]
    columns = {name: column for name, column in contents.columns.items() if name not in set(empty)}
    as_columns(columns, str(contents.file), first_line)
    return columns, empty


def read_columns(spec: str) -> FileColumns:
    """Columns of a file (see `read_sample`), checked; errors name the file."""
    contents, first_line = _read_file(spec)
    as_columns(contents.columns, str(contents.file), first_line)
    return contents


def _read_file(spec: str) -> tuple[FileColumns, int | None]:
    """Columns of a file, unchecked, and the line of its first row."""
    path, _, names = (spec, "", "") if Path(spec).exists() else spec.partition(":")
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in KINDS:
        kind = (
            "a folder" if file.is_dir() else f"a file of type {kind}" if kind else "a name without a suffix"
        )
        raise UserError(f"{file} is {kind}; expected a file of type {', '.join(KINDS)}")
    try:
        check_regular(file)
    except FileNotFoundError:
        raise UserError(f"{file} was not found") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder, not a file") from None
    except OSError as problem:
        raise UserError(f"{file} cannot be read: {problem.strerror}") from None
    selection = [name.strip() for name in names.split(",")] if names else []
    try:
        columns, first_line = _READERS[kind](file, selection)
        return FileColumns(file, columns, bool(selection)), first_line
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way its reader knows
        raise UserError(f"{file} cannot be read as {file.suffix}: {error_reason(error)}") from error


def _read_npy(file: Path, selection: list[str]) -> Contents:
    if selection:
        raise UserError(f"{file} holds one array without a name; leave out :{','.join(selection)}")
    with open_regular_file(file) as opened:
        check_memory(file, os.fstat(opened.fileno()).st_size)
        return {"": np.load(opened, allow_pickle=False)}, None


def _read_npz(file: Path, selection: list[str]) -> Contents:
    check_zip(file, selection)
    with open_regular_file(file) as opened, np.load(opened, allow_pickle=False) as arrays:
        names = list(arrays)
        if not selection and len(names) != 1:
            raise UserError(f"{file} holds {', '.join(names)}; say which, for instance {file}:{names[0]}")
        return {name: arrays[_check_name(file, name, names)] for name in selection or names}, None


def _read_csv(file: Path, selection: list[str]) -> Contents:
    csv = need("pyarrow.csv")
    block_size = csv.ReadOptions().block_size  # bytes, the most that a line may have
    with open_regular_file(file) as lines:
        first = lines.readline(block_size).decode("utf-8").strip().split(",")
    headless = all(_is_number(cell) for cell in first)
    options = csv.ReadOptions(autogenerate_column_names=headless)
    try:
        table = csv.read_csv(arrow_path(file), read_options=options)
    except ValueError as problem:
        if "straddling" not in str(problem):
            raise
        raise UserError(
            f"{file} has a cell or line of more than {block_size:,} bytes; expected shorter ones (is a quote "
            "missing?)"
        ) from None
    first_line = 1 if headless else 2
    # with empty lines or cells of several lines, rows are not lines and the line of a row is unknown
    with open_regular_file(file) as lines:
        rows_are_lines = sum(1 for _ in lines) == table.num_rows + first_line - 1
    return _table_columns(file, table, selection), first_line if rows_are_lines else None


def _read_parquet(file: Path, selection: list[str]) -> Contents:
    names = need("pyarrow.parquet").read_schema(arrow_path(file)).names
    from nearfar.system.arrow_reading import read_table_file  # after `need`, which says what to install

    for name in selection:
        _check_name(file, name, names)
    return _table_columns(file, read_table_file(file, selection or None), selection), None


def _table_columns(file: Path, table: Any, selection: list[str]) -> dict[str, Any]:
    """Columns of an Arrow table."""
    names = table.column_names
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise UserError(f"{file} has {names.count(duplicate)} columns called {duplicate!r}; rename them")
    chosen_names = [_check_name(file, name, names) for name in selection] or names
    return {name: arrow_cells(table.column(name)) for name in chosen_names}


def _check_name(file: Path, name: str, names: list[str]) -> str:
    if name not in names:
        raise UserError(f"{file} has no {name!r}; it has {', '.join(names)}")
    return name


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError):
        return False
    return True


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
