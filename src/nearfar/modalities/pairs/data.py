"""Two columns of a table as two data sets whose rows belong together: `pairs:FILE:FIRST,SECOND`.

    pairs:photos.parquet:image,caption        encoded pictures and words
    pairs:photos.csv:file,caption             paths of pictures, from the table's folder or absolute, and words
    pairs:digits.parquet:audio,label@text     recordings, and a number read as a word
    pairs:table.csv:height+weight,age         numbers and numbers; + joins columns of one side
    pairs:samples.npz:x,y                     two arrays (n, width)

The type of a column decides its modality: text is text, numbers are vectors, encoded bytes, and paths of such
files, are what decodes them; `@image`, `@sound`, `@text`, `@vectors` overrides it.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Int

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Choice, Collection, Description, Modality
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.files import class_numbers, file_bytes, read_table, set_fields
from nearfar.modalities.image import IMAGE
from nearfar.modalities.sound import SOUND
from nearfar.modalities.sound.data import is_sound
from nearfar.modalities.text import TEXT, Reading, TextDescription
from nearfar.modalities.vectors import VECTORS
from nearfar.system.untrusted import check_data_file, npz_arrays

PREFIX = "pairs:"
SIDES: dict[str, Modality] = {modality.name: modality for modality in (IMAGE, SOUND, TEXT, VECTORS)}
SUFFIXES = (".parquet", ".csv", ".npz")
MAX_TEXT = 256  # characters of a text
MAX_BAD_SHARE = 0.5  # of rows that cannot be used
SAMPLED_TEXTS = 100  # of a column, to find out whether they name files
LABEL = "label"


@dataclass(frozen=True)
class SideSpec:
    """One side as the user wrote it: its columns, and its modality where that was given."""

    names: tuple[str, ...]
    kind: str | None


@dataclass(frozen=True)
class SideStore:
    """Two data sets whose rows belong together."""

    first: DataSet
    second: DataSet
    equal: Int[np.ndarray, "pair"]  # a number for each row, the same where the second sides are equal

    def take(self, rows: Int[np.ndarray, "pair"]) -> tuple[Any, Any]:
        return self.first.load(rows), self.second.load(rows)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Pairs(DataSet):
    """Opened pairs: `load` returns the loaded instances of both sides."""

    modality: ClassVar[str] = "pairs"
    unit: ClassVar[str] = "pairs"

    @property
    def sides(self) -> tuple[DataSet, DataSet]:
        store = self.store
        assert isinstance(store, SideStore)
        return store.first, store.second


@dataclass(frozen=True)
class PairsDescription(Description):
    kinds: tuple[str, ...]  # modality of each side
    sides: tuple[str, ...]  # description of each side, as JSON

    def of_sides(self) -> tuple[Any, Any]:
        first, second = (
            SIDES[kind].reader.description(json.loads(side))
            for kind, side in zip(self.kinds, self.sides, strict=True)
        )
        return first, second

    def resized(self, size: int | None) -> Self:
        if size is None:
            return self
        sides = tuple(json.dumps(side.resized(size).as_plain()) for side in self.of_sides())
        return replace(self, sides=sides)

    def check_alike(self, data: Pairs, run_name: str) -> None:
        for kind, side, description in zip(self.kinds, data.sides, self.of_sides(), strict=True):
            if side.modality != kind:
                raise UserError(f"{data.name} holds {side.modality} where {run_name} was trained on {kind}")
            description.check_alike(side, run_name)


class PairsReader(AbstractReader):
    description_type = PairsDescription
    files = "pairs"

    def options(self, **values: Any) -> Mapping[str, Any]:
        return values

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        return {"description": description, "image_size": size}

    def claims(self, spec: str) -> bool:
        return spec.startswith(PREFIX)

    def open_spec(self, spec: str, options: Mapping[str, Any]) -> Pairs:
        path, columns = parse_spec(spec)
        description: PairsDescription | None = options.get("description")
        table = read_columns(path, spec, [name for column in columns for name in column.names])
        values: list[list[Any]] = [
            list(table[column.names[0]])
            if len(column.names) == 1
            else list(zip(*(table[name] for name in column.names), strict=True))
            for column in columns
        ]
        if description is None:
            kinds = tuple(
                kind_of(v, column, spec, path.parent) for v, column in zip(values, columns, strict=True)
            )
            symbols: list[Any] = [None, None]
        else:
            kinds = description.kinds
            sides_described = description.of_sides()
            symbols = [s.symbols if isinstance(s, TextDescription) else None for s in sides_described]
        side_options = {"image_size": options.get("image_size") or 224}
        sides = [
            decode_side(v, kind, side_options, path.parent) for v, kind in zip(values, kinds, strict=True)
        ]
        bad = {**sides[0].bad, **sides[1].bad}
        rows = [row for row in range(len(values[0])) if row not in bad]
        if not rows or len(bad) > MAX_BAD_SHARE * len(values[0]):
            row, reason = next(iter(bad.items()), (0, "no rows"))
            raise UserError(
                f"data {spec!r}: {len(bad)} of {len(values[0])} rows cannot be used (row {row}: {reason})."
            )
        first, second = (
            side_set(side, rows, spec, vocabulary, side_options)
            for side, vocabulary in zip(sides, symbols, strict=True)
        )
        labels = table.get(LABEL)
        labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels)[rows], f"data {spec!r}")
        digest = hashlib.sha256((first.fingerprint + second.fingerprint).encode())
        paths, without = [f"{path.name}#{row}" for row in rows], "the table has no column `label`"
        return Pairs(
            **set_fields(spec, Pairs.unit, labelled, paths, digest, without),
            store=SideStore(first, second, group_equal(sides[1], rows)),
            quarantine=tuple((f"{path.name}#{row}", reason) for row, reason in sorted(bad.items())),
        )

    def describe(self, data: Pairs, size: int | None) -> PairsDescription:
        sides = (
            SIDES[side.modality].reader.describe(side.subset(data.rows), size).as_plain()
            for side in data.sides
        )
        kinds = tuple(side.modality for side in data.sides)
        return PairsDescription(data.fingerprint, len(data), kinds, tuple(json.dumps(side) for side in sides))

    def example_description(self, instances: int) -> PairsDescription:
        side = json.dumps(VECTORS.reader.example_description(instances).as_plain())
        return PairsDescription("", instances, (VECTORS.name,) * 2, (side, side))


def parse_spec(spec: str) -> tuple[Path, tuple[SideSpec, SideSpec]]:
    """File and columns of `pairs:FILE:FIRST,SECOND`."""
    file, _, columns = spec.removeprefix(PREFIX).rpartition(":")
    sides = [side.strip() for side in columns.split(",")]
    if not file or len(sides) != 2 or not all(sides):
        raise UserError(
            f"data {spec!r}: expected pairs:FILE:FIRST,SECOND with two columns, such as "
            "pairs:photos.parquet:image,caption."
        )
    path = Path(file)
    if not path.exists() or path.suffix.lower() not in SUFFIXES:
        raise UserError(f"data {spec!r}: {file!r} is not a file that exists; expected {', '.join(SUFFIXES)}.")
    check_data_file(path, spec)
    first, second = (_side_spec(side, spec) for side in sides)
    return path, (first, second)


def _side_spec(side: str, spec: str) -> SideSpec:
    names, equals, kind = side.partition("@")
    if equals and kind not in SIDES:
        raise UserError(f"data {spec!r}: unknown modality {kind!r}; expected {', '.join(SIDES)}.")
    return SideSpec(tuple(names.split("+")), kind or None)


def read_columns(path: Path, spec: str, names: Sequence[str]) -> dict[str, list[Any] | np.ndarray]:
    """The columns of these names, and `label` where there is one."""
    if path.suffix.lower() == ".npz":
        columns: dict[str, Any] = npz_arrays(path, {*names, LABEL, "labels"})[0]
        if "labels" in columns:
            columns[LABEL] = columns.pop("labels")
    else:
        columns = read_table(path, spec, {*names, LABEL})
    missing = [name for name in names if name not in columns]
    if missing:
        raise UserError(f"data {spec!r}: there is no column {missing[0]!r} in {path.name}.")
    if len({len(column) for column in columns.values()}) != 1:
        raise UserError(f"data {spec!r}: the columns have different numbers of rows.")
    return columns


def kind_of(values: Sequence[Any], column: SideSpec, spec: str, folder: Path) -> str:
    """The modality of a side, by its first value; of paths from `folder`, by their suffixes."""
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
            f"data {spec!r}: column {column.names[0]!r} holds {type(first).__name__}; expected text, numbers "
            "or encoded bytes."
        )
    return SOUND.name if is_sound(raw) else IMAGE.name


def _kind_of_files(values: Sequence[Any], column: SideSpec, spec: str, folder: Path) -> str | None:
    """The modality of the files that most of these texts name; None if they name no files."""
    texts = [value for value in values if isinstance(value, str)]
    suffixes = {IMAGE: (*IMAGE.reader.suffixes, *IMAGE.reader.unread), SOUND: SOUND.reader.suffixes}
    for modality, endings in suffixes.items():
        paths = [text for text in texts if text.strip().lower().endswith(endings)]
        if 2 * len(paths) <= len(texts):
            continue
        if not any(os.path.isfile(_path(folder, path)) for path in paths):
            name = column.names[0]
            raise UserError(
                f"data {spec!r}: column {name!r} names {modality.unit} such as {paths[0]!r}, but none of "
                "these files is found from the "
                f"folder {str(folder)!r}; correct the paths, or write {name}@text to read them as text."
            )
        return modality.name
    sample = texts[:: -(-len(texts) // SAMPLED_TEXTS)]
    paths = [text for text in sample if os.path.isfile(folder / text)]
    if 2 * len(paths) > len(sample):
        name = column.names[0]
        raise UserError(
            f"data {spec!r}: column {name!r} names files such as {paths[0]!r}, which are not of a known type "
            f"of image or sound; convert them, or write {name}@text to read the paths as text."
        )
    return None


def _bytes(value: Any) -> bytes | None:
    value = value.get("bytes") if isinstance(value, Mapping) else value
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


@dataclass(frozen=True)
class Side:
    """The usable rows of one column, and why others are not usable."""

    kind: str
    contents: dict[int, Any]  # by row
    facts: dict[int, Any]
    bad: dict[int, str]


def decode_side(values: Sequence[Any], kind: str, options: Mapping[str, Any], folder: Path) -> Side:
    modality, contents, facts, bad = SIDES[kind], {}, {}, {}
    for row, value in enumerate(values):
        try:
            contents[row], facts[row] = _content(modality, value, options, folder)
        except Unusable as problem:
            bad[row] = str(problem)
    rows = list(facts)
    outliers = modality.reader.outliers(list(facts.values()))
    bad |= {rows[place]: reason for place, reason in outliers.items()}
    return Side(kind, contents, facts, bad)


def _content(modality: Modality, value: Any, options: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    if value is None:
        raise Unusable("a missing value in one of the columns")
    if modality is TEXT:
        text = str(value)[:MAX_TEXT]
        if not text.strip():
            raise Unusable("empty text")
        return text, ()
    if modality is VECTORS:
        row = np.atleast_1d(np.asarray(value))
        vector = modality.reader.convert(row, options) if row.dtype.kind in "iufb" else None
        if vector is None:
            raise Unusable("not a row of numbers")
        return vector.content, vector.facts
    raw = _file_bytes(folder, value) if isinstance(value, str) else _bytes(value)
    if raw is None:
        raise Unusable("no encoded bytes")
    decoded = modality.reader.decode(raw, options)
    return decoded.content, decoded.facts


def _path(folder: Path, name: str) -> Path:
    """The file that a table names; spaces around a name are most likely those around the commas."""
    path = folder / name
    return path if os.path.lexists(path) else folder / name.strip()


def _file_bytes(folder: Path, name: str) -> bytes:
    """The bytes of a regular file that a table names."""
    if not name.strip():
        raise Unusable("empty path")
    try:
        return file_bytes(str(_path(folder, name)))
    except Unusable as problem:
        raise Unusable(f"{problem} ({name})") from None
    except ValueError as problem:  # a null byte
        raise Unusable(f"unreadable: {problem}") from None


def side_set(
    side: Side, rows: Sequence[int], name: str, symbols: tuple[str, ...] | None, options: Mapping[str, Any]
) -> DataSet:
    """The data set of these rows of one side."""
    contents = [side.contents[row] for row in rows]
    digest = hashlib.sha256()
    for content in contents:
        digest.update(_content_bytes(content))
    paths, facts = tuple(f"{name}#{row}" for row in rows), [side.facts[row] for row in rows]
    collection = Collection(
        name, digest.hexdigest(), paths, facts, contents.__getitem__, contents=list(contents)
    )
    reading = Reading(length=MAX_TEXT, vocabulary=symbols)  # every text is one block
    return SIDES[side.kind].reader.collect(collection, {**options, "reading": reading})


def group_equal(side: Side, rows: Sequence[int]) -> Int[np.ndarray, "pair"]:
    """A number for each of these rows, the same where the contents are equal. Texts are compared as they are
    written, because a network may not distinguish their symbols."""
    numbers: dict[Any, int] = {}
    contents = (side.contents[row] for row in rows)
    keys = (content if isinstance(content, str) else _content_bytes(content) for content in contents)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _content_bytes(content: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(content), allow_pickle=False)
    return buffer.getvalue()
