"""`open_data`: whatever a user may call data, opened. The modality is decided before anything is read."""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import tables
from nearfar.data.folder import Entry, Folder, Listing, printable, reason_to_ignore
from nearfar.data.huggingface import (
    PREFIX,
    ArrowData,
    ArrowRows,
    data_of_folder,
    data_of_object,
    is_datasets_object,
    numbered_rows,
    saved_hint,
)
from nearfar.data.lazy import open_source
from nearfar.data.packed import Packed, find_packed
from nearfar.data.parquet import (
    IMAGE_COLUMN,
    LABEL_COLUMN,
    Columns,
    Parquet,
    class_names_of,
    featured_columns,
    schema_features,
)
from nearfar.data.records import write_quarantine
from nearfar.data.remote import is_url, list_files
from nearfar.data.row_groups import footer_of
from nearfar.data.source import (
    AbstractSource,
    Decode,
    Items,
    Limits,
    has_items,
    item_decoder,
    modality_of_item,
)
from nearfar.data.tars import SUFFIX as TAR
from nearfar.data.tars import Tars, shard_names
from nearfar.errors import UserError, error_reason
from nearfar.modalities import MODALITIES, DataSet, Modality, modality_of
from nearfar.modalities.base import Arrays
from nearfar.modalities.dataset import ignored_files
from nearfar.modalities.files import Labels, class_numbers
from nearfar.system.untrusted import check_regular

EXPECTED = (
    "a folder of images, of .wav, .flac or .txt files, a TU folder of graphs, a .txt file, a Parquet file or "
    "folder, .tar files in webdataset's convention, a .csv file, an .npz or .npy file, hf:FOLDER that "
    "Dataset.save_to_disk wrote, or one of the names digits, glyphs:train, glyphs:test, cifar10:ROOT, idx:FOLDER"
)
NO_COLUMNS = Columns()
_TABLES_BY_SETTING = {
    IMAGE_COLUMN: "Parquet and Arrow files with encoded images",
    LABEL_COLUMN: "Parquet, Arrow and .csv files",
}
Spec = Any  # a path or name, an array or tensor, (array, labels), a torch Dataset, or a set opened before
Decoder = Callable[[Modality, Mapping[str, Any]], Decode]


@dataclass(frozen=True)
class ArrayFormat:
    """A file that is one array; its number of axes decides the modality (`AbstractReader.array_axes`)."""

    axes: int
    arrays: Callable[[Path, str], Arrays]  # (file, what the user wrote)


@dataclass(frozen=True)
class RowFormat:
    """A file of rows: Python objects, the first of which decides the modality."""

    source: Callable[[Path, str], AbstractSource]  # of (file, what the user wrote)


# by suffix
FORMATS: dict[str, ArrayFormat | RowFormat] = {
    suffix: ArrayFormat(2, tables.table) for suffix in tables.SUFFIXES
}


def decode_bytes(modality: Modality, options: Mapping[str, Any]) -> Decode:
    return lambda raw: modality.reader.decode(raw, options)


@dataclass(frozen=True)
class Located:
    """Data that were found but not read: their modality, and how they are opened with its options."""

    name: str
    modality: Modality
    open_with: Callable[[Mapping[str, Any], Limits], DataSet]
    source: AbstractSource | None = None  # where they are more than an array
    decoder: Decoder = decode_bytes  # of the source
    column_settings: tuple[str, ...] = ()  # the settings that may name columns; none without columns

    def open(self, limits: Limits, **options: Any) -> DataSet:
        data = self.open_with(self.modality.reader.options(**options), limits)
        if limits.quarantine is not None and not data.quarantine and data.unusable_rows is None:
            write_quarantine(limits.quarantine, ())
        return data

    @cached_property
    def preview(self) -> DataSet | None:
        """The data opened by their names and sizes; None if they cannot be opened, or only by reading all."""
        reader = self.modality.reader
        if self.source is not None and reader.default_facts is None:
            return None
        try:
            # how many bad files are tolerated is decided when the run opens the data
            return self.open_with(reader.options(), Limits(max_bad_share=1.0, scan_bytes=0))
        except UserError:
            return None


def open_data(
    spec: Spec,
    *,
    labels: Any = None,
    image_column: str | None = None,
    label_column: str | None = None,
    cache_bytes: int = 2**31,
    max_bad_share: float = 0.05,
    quarantine: Path | None = None,
    scan_bytes: int = 2**31,
    **options: Any,
) -> Any:
    """The data set that `spec` names.

        photos/                    images, nested as one likes; first-level folders are the classes when every
                                   image lies in one
        sounds/, texts/, a.txt     recordings (.wav or .flac, classes as of images); text
        graphs/                    a TU folder of graphs
        a.parquet, parquet/        images or sounds in the Hugging Face convention; one file also a table of
                                   numbers
        a-{000..012}.tar           tar files in webdataset's convention
        hf:FOLDER                  what `Dataset.save_to_disk` wrote
        a.csv                      a table of numbers and categories: vectors
        pairs:FILE:A,B             two columns of a table, or arrays of an .npz, as pairs
        series:FILE                time series
        a.npz                      `images`, `tokens` or `x`, optionally with `labels`
        a.npy                      one array, as below
        digits, glyphs[:test]      scikit-learn's digits; letters of many typefaces
        cifar10:ROOT[:test]        CIFAR-10
        idx:FOLDER[:test]          files like MNIST's
        ./digits                   a folder that is called like one of these names
        array or tensor            images (n, h, w), (n, h, w, c) or (n, c, h, w); vectors (n, width)
        (array, labels)            the same with labels
        list, torch Dataset        of PIL images; of images or (image, label)
        datasets.Dataset           of the Hugging Face library
        frame of pandas or polars  as a table in Parquet
        DataSet                    data already opened

    `options` are the modality's: `image_size` for images, `reading` for text.

    A packed folder (`nearfar pack`), local or at a URL that fsspec opens, is read when it is used, and so are
    images of more than `scan_bytes` encoded bytes: unusable rows go to the quarantine list then.

    Files of images and sounds are decoded once when they are opened, to find the unusable ones (`data/lazy.py`).
    Unusable instances (truncated, of another format, empty, unreadable) are put on the quarantine list, which
    goes to `quarantine` as CSV; when their share exceeds `max_bad_share`, or nothing is left, opening fails.

    Tables, text, pairs and graphs are read into memory. At most a twentieth of pairs may be unusable.

    The result is the `DataSet` of the modality: `Images`, `Recordings`, `Texts`, `Vectors` and so on.

    With `image_size`, an image whose shorter side exceeds twice that is shrunk to it, antialiased. Decoded
    contents stay in memory if they fit in `cache_bytes`, and are otherwise decoded at each `load`.
    """
    limits = Limits(cache_bytes, max_bad_share, quarantine, scan_bytes=scan_bytes)
    return locate(spec, labels, Columns(image_column, label_column)).open(limits, **options)


def locate(spec: Spec, labels: Any = None, columns: Columns = NO_COLUMNS) -> Located:
    """The modality of `spec` and how it is opened, without reading it. `columns`: of a table."""
    if isinstance(spec, Located):
        return spec
    located = _locate(spec, labels, columns)
    for key, column in columns.by_setting.items():
        if key not in located.column_settings:
            contents = "is a table of numbers" if located.column_settings else "has no columns"
            raise UserError(
                f"{key} was {column!r}, but {located.name} {contents}; {key} is for {_TABLES_BY_SETTING[key]}"
            )
    return located


def _locate(spec: Spec, labels: Any, columns: Columns) -> Located:
    if isinstance(spec, tuple) and len(spec) == 2 and labels is None:
        spec, labels = spec
    if labels is not None and not isinstance(spec, np.ndarray | torch.Tensor):
        raise UserError(
            f"labels were given with data of type {type(spec).__name__}; they need an array of instances."
        )
    if isinstance(spec, DataSet):
        return Located(spec.name, modality_of(spec), lambda options, limits: spec)
    if isinstance(spec, np.ndarray | torch.Tensor):
        modality = _modality_of_axes(spec.ndim)
        array = modality.reader.tensor_array(spec) if isinstance(spec, torch.Tensor) else spec
        labelled: Labels = (None, ())
        if labels is not None:
            labelled = class_numbers(np.asarray(labels), "data 'array'")
        return _locate_arrays("array", modality, lambda: Arrays(array, labelled))
    if isinstance(spec, str | os.PathLike):
        return _locate_name(os.fspath(spec), columns)
    if isinstance(spec, torch.utils.data.DataLoader):
        spec = spec.dataset
    if is_datasets_object(spec):
        return _locate_arrow(data_of_object(spec), columns)
    if hasattr(spec, "__arrow_c_stream__"):  # a frame of pandas or polars; neither is imported
        name = type(spec).__name__
        table = tables.frame(spec, name)
        data = ArrowData(name, table, {}, numbered_rows(len(table)), is_trusted=True)
        content = data.content(columns)
        if content is not None:
            column, modality = content
            if column not in modality.reader.text_columns:
                return _locate_arrow(data, columns)
        located = _locate_arrays(
            name, _modality_of_axes(2), lambda: tables.columns_as_rows(table, name, name, columns.label)
        )
        return replace(located, column_settings=(LABEL_COLUMN,))
    is_list_of_arrays = isinstance(spec, list) and spec and hasattr(spec[0], "__array_interface__")
    if is_list_of_arrays or (has_items(spec) and not isinstance(spec, (list, dict, set))):
        items = Items(spec, type(spec).__name__)
        return _locate_source(items, items.root, items.modality, item_decoder)
    raise UserError(
        f"data of type {type(spec).__name__} cannot be opened; expected {EXPECTED}, an array, a frame of numbers, "
        "a list of images, or a torch Dataset."
    )


def _modality_of_axes(count: int) -> Modality:
    """The modality of arrays with this number of axes; the first modality refuses any other number."""
    matches = (modality for modality in MODALITIES.values() if count in modality.reader.array_axes)
    return next(matches, next(iter(MODALITIES.values())))


def _locate_arrays(name: str, modality: Modality, arrays: Callable[[], Arrays]) -> Located:
    """Arrays that are read when they are opened."""
    return Located(
        name, modality, lambda options, limits: modality.reader.from_array(arrays(), name, options)
    )


def _locate_source(
    source: AbstractSource, name: str, modality: Modality, decoder: Decoder = decode_bytes
) -> Located:
    return Located(
        name,
        modality,
        lambda options, limits: open_source(
            source, name, modality, options, decoder(modality, options), limits
        ),
        source,
        decoder,
    )


def _locate_name(spec: str, columns: Columns = NO_COLUMNS) -> Located:
    for modality in MODALITIES.values():
        data = modality.reader.find_named(spec)
        if data is not None and data.arrays is not None:
            return _locate_arrays(data.name, modality, data.arrays)
        if data is not None and data.file is not None:
            return _locate_parquet(str(data.file.parent), [_entry(data.file)], {}, data.name, columns)
    if is_url(spec):
        return _locate_url(spec, columns)
    if spec.startswith(PREFIX):
        return _locate_arrow(data_of_folder(spec), columns)
    path = Path(spec)
    try:
        owner = next((modality for modality in MODALITIES.values() if modality.reader.claims(spec)), None)
        if owner is not None:
            return Located(spec, owner, lambda options, limits: owner.reader.open_spec(spec, options))
        if path.is_dir():
            packed = find_packed(spec)
            return _locate_folder(spec, columns) if packed is None else _locate_packed(packed)
        if not path.exists():
            return _locate_tars(spec, _shards(spec), {})
        check_regular(path)  # a pipe would be waited for without end
    except UserError:
        raise
    except (OSError, ValueError) as error:  # a name too long, a null byte, a folder without permission
        raise UserError(f"data {printable(spec)!r} cannot be opened: {error_reason(error)}.") from error
    return _locate_file(path, spec, columns)


def _locate_packed(packed: Packed) -> Located:
    modality = packed.modality
    return Located(
        packed.root,
        modality,
        lambda options, limits: packed.open(options, decode_bytes(modality, options), limits),
    )


def _locate_url(spec: str, columns: Columns) -> Located:
    """A remote packed folder, or Parquet or tar files: never checked at opening, read as they are used."""
    packed = find_packed(spec)
    if packed is not None:
        return _locate_packed(packed)
    files = [file for name in shard_names(spec) for file in list_files(name, (".parquet", TAR))]
    if not files:
        links = "; over http a folder is what its page links to" if spec.startswith("http") else ""
        raise UserError(
            f"data {spec!r} hold neither a packed folder nor .parquet or .tar files, which is what can be "
            f"read from elsewhere{links}; copy other data here first."
        )
    entries = [Entry(file.path, (file.path,), size, file.system) for file, size in files]
    parquet = [entry for entry in entries if entry.path.lower().endswith(".parquet")]
    located = (
        _locate_parquet(spec, parquet, {}, spec, columns) if parquet else _locate_tars(spec, entries, {})
    )
    if located.modality.reader.default_facts is None:
        raise UserError(
            f"data {spec!r} hold {located.modality.plural}, which cannot be read from elsewhere as they are "
            "used; copy or pack them."
        )
    return located


def _locate_folder(spec: str, columns: Columns) -> Located:
    names = os.listdir(spec)  # an error at the root; a folder within that cannot be listed is one bad file
    first, *rest = [modality for modality in MODALITIES.values() if modality.reader.suffixes]
    listing = Listing(first.reader.suffixes)
    listing.add(spec)
    if listing.entries:
        return _locate_source(Folder(spec, listing), spec, first)
    if listing.parquet:
        return _locate_parquet(spec, listing.parquet, listing.ignored(tables=False), spec, columns)
    for modality in rest:
        candidates = Listing(modality.reader.suffixes)
        candidates.add(spec)
        if candidates.entries:
            return _locate_source(Folder(spec, candidates), spec, modality)
    if listing.tars:
        return _locate_tars(spec, listing.tars, listing.unread)
    suffixes = ", ".join(suffix for modality in (first, *rest) for suffix in modality.reader.suffixes)
    hints = [modality.reader.folder_hint(spec, names) for modality in MODALITIES.values()]
    hints.append(saved_hint(spec, names))
    raise UserError(
        f"data {spec!r}: the folder holds no {first.unit} "
        f"({ignored_files(listing.ignored()) or 'no files'}); "
        f"expected {suffixes}, or .parquet files.{''.join(f' {hint}' for hint in hints if hint)}"
    )


def _locate_tars(name: str, entries: Sequence[Entry], ignored: Mapping[str, int]) -> Located:
    """By the first modality that reads any of the members."""
    for modality in MODALITIES.values():
        if modality.reader.suffixes:
            tars = Tars(name, entries, ignored, modality.reader.suffixes)
            if len(tars.names()):
                return _locate_source(tars, name, modality)
    raise UserError(f"data {name!r}: the tar files hold no files of a known kind.")


def _shards(spec: str) -> list[Entry]:
    """The tar files that a name with a range stands for; stops if one is missing."""
    shards = []
    for name in shard_names(spec):
        if not os.path.isfile(name):
            raise UserError(_not_found(spec) if name == spec else f"data {spec!r}: {name!r} was not found.")
        shards.append(_entry(Path(name)))
    if not shards:  # the range ends before it begins
        raise UserError(_not_found(spec))
    return shards


def _locate_parquet(
    root: str, entries: list[Entry], ignored: Mapping[str, int], name: str, columns: Columns
) -> Located:
    """By the encoded column of the first file; without one, a table of numbers."""
    _, schema = footer_of(min(entries, key=lambda entry: entry.parts).file)
    names = schema.names
    columns.check(names, name)
    encoded = [(column, modality) for modality in MODALITIES.values() for column in modality.reader.columns]
    candidates = [*encoded, *featured_columns(names, schema_features(schema))]
    if columns.image is not None:  # names a column of the first modality that has such columns
        candidates = [(columns.image, encoded[0][1])]
    for column, modality in candidates:
        if column in names:
            source = Parquet(root, entries, ignored, column, columns.label)
            located = _locate_source(source, name, modality)
            return replace(located, column_settings=(IMAGE_COLUMN, LABEL_COLUMN))
    if len(entries) > 1 or entries[0].system is not None:
        raise UserError(
            f"data {name!r}: the Parquet files have none of the columns "
            f"{', '.join(f'`{column}`' for column, _ in encoded)} (their columns: {', '.join(names[:20])})."
        )
    path = Path(entries[0].path)
    located = _locate_arrays(name, _modality_of_axes(2), lambda: tables.table(path, name, columns.label))
    return replace(located, column_settings=(LABEL_COLUMN,))


def _locate_arrow(data: ArrowData, columns: Columns) -> Located:
    """By the column of instances; without one, a table of numbers."""
    columns.check(data.table.column_names, data.name)
    content = data.content(columns)
    if content is not None:
        column, modality = content
        located = _locate_source(ArrowRows(data, column, columns), data.name, modality)
        return replace(located, column_settings=(IMAGE_COLUMN, LABEL_COLUMN))

    def arrays() -> Arrays:
        table = data.table if data.rows is None else data.table.take(data.rows)
        label = data.label(columns)
        label_column = label if label in table.column_names else None
        return tables.columns_as_rows(
            table, data.name, data.name, label_column, class_names_of(data.features, label)
        )

    return replace(_locate_arrays(data.name, _modality_of_axes(2), arrays), column_settings=(LABEL_COLUMN,))


def _locate_file(path: Path, spec: str, columns: Columns) -> Located:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _locate_parquet(str(path.parent), [_entry(path)], {}, spec, columns)
    if suffix == TAR:
        return _locate_tars(spec, [_entry(path)], {})
    if suffix in FORMATS:
        return _locate_format(FORMATS[suffix], path, spec, columns)
    if suffix == ".npz":
        keys = {m.reader.array_key: m for m in MODALITIES.values() if m.reader.array_key}
        members = tables.npz_keys(path)
        modality = next((m for key, m in keys.items() if key in members), next(iter(keys.values())))
        return _locate_arrays(spec, modality, lambda: tables.npz(path, spec, keys)[1])
    if suffix == ".npy":
        array = tables.npy(path, spec)
        return _locate_arrays(spec, _modality_of_axes(array.ndim), lambda: Arrays(array, (None, ())))
    for modality in MODALITIES.values():
        if suffix in modality.reader.suffixes:
            listing = Listing(modality.reader.suffixes, [_entry(path)])
            return _locate_source(Folder(str(path.parent), listing), spec, modality)
    if TAR in path.suffixes or suffix == ".tgz":  # compressed, which is refused when its headers are read
        return _locate_tars(spec, [_entry(path)], {})
    if any(suffix in modality.reader.unread for modality in MODALITIES.values()):
        raise UserError(f"data {spec!r} cannot be opened: {reason_to_ignore(path.name)}.")
    raise UserError(
        f"data {spec!r} is a file of an unknown type ({suffix or 'no suffix'}); expected {EXPECTED}."
    )


def _locate_format(form: ArrayFormat | RowFormat, path: Path, spec: str, columns: Columns) -> Located:
    if isinstance(form, RowFormat):
        source = form.source(path, spec)
        return _locate_source(source, spec, modality_of_item(source.read_item(0), spec), item_decoder)
    modality = _modality_of_axes(form.axes)
    if path.suffix.lower() in tables.SUFFIXES:
        located = _locate_arrays(spec, modality, lambda: tables.table(path, spec, columns.label))
        return replace(located, column_settings=(LABEL_COLUMN,))
    return _locate_arrays(spec, modality, lambda: form.arrays(path, spec))


def _entry(file: Path) -> Entry:
    return Entry(str(file), (printable(file.name),), file.stat().st_size)


def _not_found(spec: str) -> str:
    """The message about data that do not exist, with a similar name that does."""
    parent, name = os.path.split(spec.rstrip("/"))
    try:
        siblings = os.listdir(parent or ".")
    except OSError:
        siblings = []
    names = [name for modality in MODALITIES.values() for name in modality.reader.named_examples]
    close = difflib.get_close_matches(spec, names, n=1, cutoff=0.7)
    close += [
        os.path.join(parent, entry) for entry in difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)
    ]
    hint = f"did you mean {printable(close[0])!r}?" if close else f"expected {EXPECTED}."
    return f"data {spec!r} was not found; {hint}"
