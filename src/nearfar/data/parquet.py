"""Parquet files in the Hugging Face convention: `image` (or `img`, `jpg`, `png`, …) or `audio` {bytes, path},
optional `label` (or `labels`, `fine_label`, as CIFAR-100 has beside `coarse_label`, `cls`, `class`,
`target`); or as `image_column` and `label_column` say.

Class names come from the `ClassLabel` feature in the schema's `huggingface` metadata when it is there. A
picture stored only as a path is not followed: a data file does not get to name files on this machine. Further
columns of whole numbers or words tell groups, such as who speaks.
"""

import hashlib
import os
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from nearfar.data.folder import AbstractFiles, Entry
from nearfar.data.remote import RemoteFile
from nearfar.data.row_groups import RowGroups, contents, footer_of, open_parquet
from nearfar.data.source import AbstractSource, Item, ItemReader
from nearfar.errors import UserError, error_reason, near_names
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.dataset import Blocks, Names, Unusable
from nearfar.modalities.files import Labels, class_numbers
from nearfar.system.arrow_reading import (
    LONGEST_LABEL,
    DecodedBytes,
    check_footer,
    content_batches,
    content_leaf,
    longest_text,
    read_table,
    text_labels,
)
from nearfar.system.untrusted import parse_json

# names of the label column in Hugging Face's data sets, in order of preference
LABELS = ("label", "labels", "fine_label", "cls", "class", "target")
IMAGE_COLUMN, LABEL_COLUMN = "image_column", "label_column"  # the settings that name columns


@dataclass(frozen=True)
class Columns:
    """The names of the columns of pictures and labels, where they are not the usual ones."""

    image: str | None = None
    label: str | None = None

    def __bool__(self) -> bool:
        return bool(self.by_setting)

    @property
    def by_setting(self) -> dict[str, str]:
        """The names that were given, by the setting that gave them."""
        names = {IMAGE_COLUMN: self.image, LABEL_COLUMN: self.label}
        return {key: column for key, column in names.items() if column is not None}

    def check(self, names: Sequence[str], name: str) -> None:
        """Stops at a column that is not there."""
        for key, column in self.by_setting.items():
            if column not in names:
                hint, listed = near_names(column, names, 1), ", ".join(names[:20])
                raise UserError(f"{key} was {column!r}{hint}; the columns of {name} are {listed}.")


class AbstractRows(AbstractSource):
    """Rows of one or more tables: an instance in `column`, its class in `label`, groups in further columns."""

    column: str
    label: str
    class_names: tuple[str, ...]  # of class numbers; () without any

    @abstractmethod
    def parts(self, name: str) -> list[Any]:
        """A column of each table; None where it has none of this name."""

    @abstractmethod
    def group_columns(self) -> Iterable[str]:
        """Further columns of whole numbers or words that all tables have."""

    def labels(self, rows: np.ndarray) -> Labels:
        source, parts = f"data {self.root!r}", self.parts(self.label)
        present = [part for part in parts if part is not None]
        if not present:
            return None, ()
        if len(present) < len(parts):
            raise UserError(
                f"{source}: some of the Parquet files have a `{self.label}` column and some have not."
            )
        for part in present:
            if not (is_group_type(part.type) or pa.types.is_boolean(part.type)):
                raise UserError(
                    f"{source}: the column `{self.label}` is {part.type}; expected class numbers or names. "
                    "Set label_column=."
                )
        values = [label_values(part, self.root, self.label) for part in present]
        if len({part.dtype.kind == "U" for part in values}) > 1:
            raise UserError(
                f"{source}: `{self.label}` holds class numbers in some of the Parquet files and names in others."
            )
        numbers, classes = class_numbers(np.concatenate(values), source, self.class_names)
        return None if numbers is None else numbers[rows], classes

    def groups(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Numbered values of further columns, without gaps, in all tables."""
        groups = {}
        for name in self.group_columns():
            numbers = group_numbers(self.parts(name), self.root, name)
            if name not in (self.column, self.label) and numbers is not None:
                groups[name] = numbers[rows]
        return groups

    def unlabelled(self) -> str:
        return f"there is no `{self.label}` column, or all its values are -1"


class Parquet(AbstractRows, AbstractFiles):
    """The rows of one or more files, in the order of their names."""

    def __init__(
        self,
        root: str,
        entries: Sequence[Entry],
        ignored: Mapping[str, int],
        column: str,
        label: str | None = None,
    ) -> None:
        super().__init__(root, entries, ignored)
        self.column = column
        self._counts: list[int] = []
        first = footer_of(self.entries[0].file)[1].names
        self.label = label or next((name for name in LABELS if name in first), LABELS[0])
        classes: set[tuple[str, ...]] = set()
        for entry in self.entries:
            with open_parquet(entry.file) as file:
                _check_content(file.schema_arrow, self.column, entry.path)
                self._counts.append(_row_count(file, entry))
                classes.add(class_names_of(schema_features(file.schema_arrow), self.label))
        if len(classes) > 1:
            raise UserError(
                f"data {root!r}: the Parquet files disagree about the class names of `{self.label}`."
            )
        self.class_names = classes.pop()

    def names(self) -> Sequence[str]:
        return row_names(["/".join(entry.parts) for entry in self.entries], self._counts)

    @cached_property
    def _row_groups(self) -> RowGroups:
        return RowGroups([entry.file for entry in self.entries], self.column)

    def read_item(self, number: int) -> bytes:
        return self._row_groups.read_row(number)

    def blocks(self) -> Blocks | None:
        return self._row_groups.blocks

    def in_order(self) -> Iterator[Item]:
        for entry in self.entries:
            yield from _file_items(entry.file, self.column)

    def random_access(self, rows: np.ndarray) -> ItemReader:
        """Rows of Parquet cannot be read one by one, so they are copied to a temporary file."""
        numbers = rows.tolist()
        members = set(numbers)
        spill = Spill(item.read() for number, item in enumerate(self.in_order()) if number in members)
        places = {number: place for place, number in enumerate(numbers)}
        return lambda number: spill.read_row(places[number])

    def parts(self, name: str) -> list[Any]:
        return [_column(entry.file, name) for entry in self.entries]

    def group_columns(self) -> Iterable[str]:
        common: set[str] | None = None
        for entry in self.entries:
            with open_parquet(entry.file) as file:
                names = file.schema_arrow.names
                fields = [file.schema_arrow.field(name) for name in names if names.count(name) == 1]
            names_here = {field.name for field in fields if is_group_type(field.type)}
            common = names_here if common is None else common & names_here
        return sorted((common or set()) - {self.column, self.label})

    def marks(self) -> bytes:
        """Over each file's name, size and footer, which holds the place and length of every page."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update("/".join(entry.parts).encode() + b"\0" + _footer_bytes(entry.file))
        return digest.digest()

    def stamp(self) -> str | None:
        stamp = super().stamp()
        return stamp and f"{stamp} {self.column} {self.label}"


def row_names(files: Sequence[str], counts: Sequence[int]) -> Names:
    """`file#row` for every row of several files."""
    ends = np.cumsum(counts, dtype=np.int64)

    def name_at(place: int) -> str:
        file = int(np.searchsorted(ends, place, side="right"))
        return f"{files[file]}#{place - (int(ends[file - 1]) if file else 0)}"

    return Names(int(ends[-1]) if len(ends) else 0, name_at)


class Spill:
    """Encoded pictures copied to a nameless temporary file: Parquet cannot be read by rows.

    It takes as much disk as the pictures have bytes and is gone with the object (or the process).
    """

    def __init__(self, pictures: Iterator[bytes]) -> None:
        try:
            self._file, path = tempfile.mkstemp(prefix="nearfar-")
            weakref.finalize(self, os.close, self._file)
            os.unlink(path)
            ends = [0]
            with open(self._file, "wb", closefd=False) as out:
                for picture in pictures:
                    out.write(picture)
                    ends.append(ends[-1] + len(picture))
        except OSError as error:
            raise UserError(
                f"the temporary folder {tempfile.gettempdir()!r} cannot take the encoded images: "
                f"{error.strerror}; free some space, set TMPDIR, or raise cache_bytes."
            ) from error
        self._ends = np.array(ends)

    def read_row(self, row: int) -> bytes:
        start, end = self._ends[row], self._ends[row + 1]
        return os.pread(self._file, int(end - start), int(start))


def _footer_bytes(at: RemoteFile) -> bytes:
    size = at.size()
    with at.open() as file:
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - 8 - length)
        return size.to_bytes(8, "little") + file.read(length)


def _check_content(schema: Any, column: str, path: str) -> None:
    for name in (column, *LABELS):
        if schema.names.count(name) > 1:
            raise UserError(f"{path!r} has {schema.names.count(name)} columns called `{name}`; expected one.")
    content_leaf(schema, column, path)


def schema_features(schema: Any) -> Mapping[str, Any]:
    """The features that `datasets` wrote to the metadata; {} when there are none or they make no sense."""
    try:
        metadata = parse_json((schema.metadata or {})[b"huggingface"].decode())
        features = metadata["info"]["features"]
        return features if isinstance(features, dict) else {}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


def class_names_of(features: Mapping[str, Any], label: str) -> tuple[str, ...]:
    """The names of a ClassLabel feature; () without any."""
    feature = features.get(label)
    names = feature.get("names") if isinstance(feature, Mapping) else None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def featured_columns(names: Sequence[str], features: Mapping[str, Any]) -> list[tuple[str, Modality]]:
    """The columns with the feature `Image` or `Audio`, and their modalities."""
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, Mapping)}
    return [
        (name, modality)
        for modality in MODALITIES.values()
        for name in names
        if modality.reader.feature and kinds.get(name) == modality.reader.feature
    ]


def _row_count(file: Any, entry: Entry) -> int:
    """The number of rows, if it can be true: it sets how much is read and remembered."""
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    rows = int(file.metadata.num_rows)
    if min(groups, default=0) < 0 or sum(groups) != rows or rows > entry.nbytes:
        raise UserError(f"{entry.path!r} cannot be read as Parquet: its footer claims {rows} rows.")
    return rows


def _file_items(at: RemoteFile, column: str) -> Iterator[Item]:
    """One item per row, whatever happens: rows behind a damaged page become items that say so."""
    with open_parquet(at) as file:
        counter = DecodedBytes.of_file(at.path, at.size())
        check_footer(file.metadata, at.path, at.size())
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            yield from islice(_group_items(file, group, rows, column, counter, at.path), rows)


def _group_items(
    file: Any, group: int, rows: int, column: str, counter: DecodedBytes, path: str
) -> Iterator[Item]:
    count, reason = 0, "the file has fewer rows than its footer claims"
    leaf = content_leaf(file.schema_arrow, column, path)
    try:
        for batch in content_batches(file, group, [leaf], counter):
            for data in contents(batch.column(0)):
                count += 1
                yield Item(
                    len(data or b""), _content_or_reason(data, f"empty row: no {column} bytes are stored")
                )
    except MemoryError as error:
        raise UserError(f"{path!r}: row group {group} does not fit into the memory that is left.") from error
    except (pa.ArrowException, OSError) as error:
        reason = error_reason(error)
    for _ in range(rows - count):
        yield Item(0, _content_or_reason(None, f"unreadable row group: {reason}"))


def _content_or_reason(data: bytes | None, reason: str) -> Callable[[], bytes]:
    def read() -> bytes:
        if data is None:
            raise Unusable(reason)
        return data

    return read


def _column(at: RemoteFile, name: str) -> Any:
    if name not in footer_of(at)[1].names:
        return None
    try:
        return read_table(at.arrow_source(), at.path, at.size(), [name]).column(name)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{at.path!r}: the `{name}` column cannot be read: {error_reason(error)}.") from error


def is_text(kind: Any) -> bool:
    """Whether a type is text, or a dictionary of texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_group_type(kind: Any) -> bool:
    return is_text(kind) or pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_long_text(column: Any) -> bool:
    """Whether a column holds texts that are too long to name groups."""
    return is_text(column.type) and longest_text(column) > LONGEST_LABEL


def group_numbers(parts: Sequence[Any], root: str, name: str) -> np.ndarray | None:
    """The numbered values of a column of several files, without gaps; None if some are missing or too long,
    or the files disagree about the type."""
    if any(part.null_count or is_long_text(part) for part in parts):
        return None
    values = [label_values(part, root, name) for part in parts]
    if len({part.dtype.kind == "U" for part in values}) > 1:
        return None
    return np.unique(np.concatenate(values), return_inverse=True)[1].astype(np.int64)


def label_values(column: Any, root: str, name: str) -> np.ndarray:
    """Labels as an array; missing ones are -1, which `class_numbers` knows."""
    if is_text(column.type):
        if column.null_count:
            raise UserError(
                f"data {root!r}: {column.null_count} rows have no `{name}`; give every row one, or none."
            )
        return text_labels(column, f"data {root!r}", name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type) and column.null_count:
        signed = column if pa.types.is_signed_integer(column.type) else column.cast(pa.int64())
        column = signed.fill_null(-1)
    return np.asarray(column.to_numpy())
