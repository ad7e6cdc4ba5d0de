"""Two columns of a table as two data sets, row by row of each other: `pairs:FILE:FIRST,SECOND`.

    pairs:photos.parquet:image,caption        encoded pictures and words
    pairs:photos.csv:file,caption             paths of pictures, from the table's folder or absolute, and words
    pairs:digits.parquet:audio,label@text     recordings, and a number read as a word
    pairs:table.csv:height+weight,age         numbers beside numbers; + joins columns of one side
    pairs:samples.npz:x,y                     two arrays (n, width)

What a column holds is seen by its type: text is text, numbers are vectors, encoded bytes are what decodes them, and so are paths of such files; `@image`, `@sound`,
`@text`, `@vectors` says it.
"""

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from nearfar.errors import UserError
from nearfar.modalities.base import Arrays, Found, Modality
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.encoded_files import file_bytes
from nearfar.modalities.image.modality import IMAGE
from nearfar.modalities.sound.decode import is_sound
from nearfar.modalities.sound.modality import SOUND
from nearfar.modalities.text.modality import TEXT, Reading
from nearfar.modalities.vectors.modality import VECTORS
from nearfar.system.extras import need
from nearfar.system.parquet_reading import read_table_file
from nearfar.system.untrusted import arrow_path, check_data_file, column_names, npz_arrays

PREFIX = "pairs:"
SIDES: dict[str, Modality] = {each.name: each for each in (IMAGE, SOUND, TEXT, VECTORS)}
SUFFIXES = (".parquet", ".csv", ".npz")
_UNREAD_IMAGES = (
    ".tif",
    ".tiff",
    ".gif",
    ".heic",
    ".avif",
)  # named as images are, and refused by the decoder
_CELL_BYTES = 64  # of a cell as an object of Python
LONGEST = 256  # characters of a text
LABEL = "label"


@dataclass(frozen=True)
class Column:
    """One side as it was asked for."""

    names: tuple[str, ...]
    kind: str | None


def parts_of(spec: str) -> tuple[Path, tuple[Column, Column]]:
    """File and columns of `pairs:FILE:FIRST,SECOND`, or a sentence."""
    file, _, columns = spec.removeprefix(PREFIX).rpartition(":")
    asked = [side.strip() for side in columns.split(",")]
    if not file or len(asked) != 2 or not all(asked):
        raise UserError(
            f"data {spec!r}: expected pairs:FILE:FIRST,SECOND with two columns, such as pairs:photos.parquet:image,caption."
        )
    path = Path(file)
    if not path.exists() or path.suffix.lower() not in SUFFIXES:
        raise UserError(f"data {spec!r}: {file!r} is not a file that exists; expected {', '.join(SUFFIXES)}.")
    check_data_file(path, spec)
    first, second = (_column(side, spec) for side in asked)
    return path, (first, second)


def _column(side: str, spec: str) -> Column:
    names, equals, kind = side.partition("@")
    if equals and kind not in SIDES:
        raise UserError(f"data {spec!r}: a column was said to be {kind!r}; expected {', '.join(SIDES)}.")
    return Column(tuple(names.split("+")), kind or None)


def read_columns(path: Path, spec: str, names: Sequence[str]) -> dict[str, list[Any] | np.ndarray]:
    """The columns of these names, and `label` where there is one."""
    if path.suffix.lower() == ".npz":
        found: dict[str, Any] = npz_arrays(path, {*names, LABEL, "labels"})[0]
        if "labels" in found:
            found[LABEL] = found.pop("labels")
    else:
        found = read_table(path, spec, {*names, LABEL})
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"data {spec!r}: there is no column {missing[0]!r} in {path.name}.")
    if len({len(column) for column in found.values()}) != 1:
        raise UserError(f"data {spec!r}: the columns have different numbers of rows.")
    return found


def read_table(path: Path, spec: str, names: set[str] | None) -> dict[str, list[Any]]:
    """The columns of these names that a Parquet or CSV file has, in its order; all of them without names."""
    arrow, parquet, csv = need("pyarrow"), need("pyarrow.parquet"), need("pyarrow.csv")
    try:
        if path.suffix.lower() == ".parquet":
            held = [
                name for name in parquet.read_schema(arrow_path(path)).names if names is None or name in names
            ]
            table = read_table_file(path, held, _CELL_BYTES)
        else:
            table = csv.read_csv(arrow_path(path))
        held = [name for name in column_names(table, spec) if names is None or name in names]
        return {name: table.column(name).to_pylist() for name in held}
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise UserError(f"data {spec!r} cannot be read: {str(problem).splitlines()[0]}.") from None


def kind_of(values: Sequence[Any], column: Column, spec: str, folder: Path) -> str:
    """What a side holds, by its first value that is there; text that is paths from `folder`, by their suffixes."""
    if column.kind is not None:
        return column.kind
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str):
        return _kind_of_files(values, column, spec, folder) or TEXT.name
    if isinstance(first, (bool, int, float, np.ndarray, np.number, list, tuple)):
        return VECTORS.name
    raw = _bytes(first)
    if raw is None:
        raise UserError(
            f"data {spec!r}: column {column.names[0]!r} holds {type(first).__name__}; expected text, numbers or encoded bytes."
        )
    return SOUND.name if is_sound(raw) else IMAGE.name


def _kind_of_files(values: Sequence[Any], column: Column, spec: str, folder: Path) -> str | None:
    """What the files hold that most of these texts name by their suffix; None where the texts name no files."""
    texts = [value for value in values if isinstance(value, str)]
    for modality, suffixes in ((IMAGE, (*IMAGE.suffixes, *_UNREAD_IMAGES)), (SOUND, SOUND.suffixes)):
        named = [text for text in texts if text.lower().endswith(suffixes)]
        if 2 * len(named) <= len(texts):
            continue
        if not any(os.path.isfile(folder / text) for text in named):
            name = column.names[0]
            raise UserError(
                f"data {spec!r}: column {name!r} names {modality.unit} such as {named[0]!r}, but none of these files is found from the "
                f"folder {str(folder)!r}; correct the paths, or write {name}@text to read them as text."
            )
        return modality.name
    return None


def _bytes(value: Any) -> bytes | None:
    value = value.get("bytes") if isinstance(value, Mapping) else value
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


@dataclass(frozen=True)
class Side:
    """The rows of one column that can be used, and why others cannot."""

    kind: str
    contents: dict[int, Any]  # by row
    facts: dict[int, Any]
    bad: dict[int, str]


def decoded(values: Sequence[Any], kind: str, options: Mapping[str, Any], folder: Path) -> Side:
    modality, contents, facts, bad = SIDES[kind], {}, {}, {}
    for row, value in enumerate(values):
        try:
            contents[row], facts[row] = _content(modality, value, options, folder)
        except Unusable as problem:
            bad[row] = str(problem)
    odd = modality.odd(list(facts.values())) if kind != TEXT.name else {}
    places = list(facts)
    for place, why in odd.items():
        bad[places[place]] = why
    return Side(kind, contents, facts, bad)


def _content(modality: Modality, value: Any, options: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    if value is None:
        raise Unusable("nothing in one of the columns")
    if modality is TEXT:
        text = str(value)[:LONGEST]
        if not text.strip():
            raise Unusable("empty text")
        return text, ()
    if modality is VECTORS:
        row = np.atleast_1d(np.asarray(value))
        found = modality.convert(row, options) if row.dtype.kind in "iufb" else None
        if found is None:
            raise Unusable("not a row of numbers")
        return found.content, found.facts
    raw = _named_bytes(folder, value) if isinstance(value, str) else _bytes(value)
    if raw is None:
        raise Unusable("no encoded bytes")
    one = modality.decode(raw, options)
    return one.content, one.facts


def _named_bytes(folder: Path, name: str) -> bytes:
    """The bytes of a file that a table names; it is opened only if it is a regular one."""
    if not name.strip():
        raise Unusable("empty path")
    try:
        return file_bytes(str(folder / name))
    except Unusable as problem:
        raise Unusable(f"{problem} ({name})") from None
    except ValueError as problem:  # a null byte
        raise Unusable(f"unreadable: {problem}") from None


def side_set(
    side: Side, rows: Sequence[int], name: str, symbols: tuple[str, ...] | None, options: Mapping[str, Any]
) -> DataSet:
    """The data set of one side, of these rows alone."""
    modality = SIDES[side.kind]
    held = [side.contents[row] for row in rows]
    paths = tuple(f"{name}#{row}" for row in rows)
    if modality is TEXT:
        return _texts(held, name, paths, symbols)
    digest = hashlib.sha256()
    for content in held:
        digest.update(_content_bytes(content))
    found = Found(
        name,
        digest.hexdigest(),
        paths,
        [side.facts[row] for row in rows],
        held,
        lambda place: held[place],
        (None, ()),
        {},
        (),
        {},
        "",
    )
    return modality.collect(found, options)


def alike(side: Side, rows: Sequence[int]) -> Int[np.ndarray, "pair"]:
    """A number for each of these rows, the same where the column holds the same. Of texts as they stand: a network may know none of their
    symbols, and so not tell them apart, but they are different things to be found."""
    known: dict[Any, int] = {}
    held = (side.contents[row] for row in rows)
    keys = (one if isinstance(one, str) else _content_bytes(one) for one in held)
    return np.array([known.setdefault(key, len(known)) for key in keys])


def _texts(texts: list[str], name: str, paths: tuple[str, ...], symbols: tuple[str, ...] | None) -> DataSet:
    reading = Reading(length=LONGEST, vocabulary=symbols)
    vocabulary = reading.vocabulary_of(texts)
    place = {unit: number for number, unit in enumerate(vocabulary)}
    table = np.full((len(texts), max(map(len, texts))), -1, dtype=np.int64)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = [place.get(unit, 0) for unit in text]
    known = Reading(length=LONGEST, vocabulary=vocabulary)
    return TEXT.from_array(Arrays(table, (None, ()), paths), name, {"reading": known})


def _content_bytes(content: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(content), allow_pickle=False)
    return buffer.getvalue()
