"""`open_data`: whatever a user may call data, opened. What kind it is, is asked of the modalities before anything is read."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import idx, named, tables
from nearfar.data.folder import Entry, Folder, Listing, printable
from nearfar.data.packed import Packed, find_packed
from nearfar.data.parquet import Columns, Parquet, columns_of
from nearfar.data.remote import is_url, listed
from nearfar.data.scan import Limits, Source, open_source, write_quarantine
from nearfar.data.torch_sets import Items, decoder, is_items
from nearfar.data.unscanned import is_unscanned, open_unscanned, when_asked
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, DataSet, Modality, modality_of
from nearfar.modalities.base import Arrays
from nearfar.modalities.dataset import ignored_files
from nearfar.modalities.labels import Labels, class_numbers
from nearfar.system.untrusted import check_regular

NAMES = ("digits", "glyphs", "glyphs:train", "glyphs:test", "cifar10:ROOT", "idx:FOLDER")
_KINDS = (
    "a folder of images, of .wav, .flac or .txt files, a TU folder of graphs, a .txt file, a Parquet file or folder, a .csv file, an .npz file, or one "
    "of the names digits, glyphs:train, glyphs:test, cifar10:ROOT, idx:FOLDER"
)
NO_COLUMNS = Columns()
_KEYS = {modality.reader.array_key: modality for modality in MODALITIES.values() if modality.reader.array_key}


@dataclass(frozen=True)
class Reader:
    """Reads a file as one array, whose number of axes says of which modality it is (`Modality.axes`)."""

    axes: int
    read: Callable[[Path, str], Arrays]  # (file, what the user wrote)


READERS: dict[str, Reader] = {suffix: Reader(2, tables.table) for suffix in tables.SUFFIXES}  # by suffix

Spec = Any  # a path or name, an array or tensor, (array, labels), a torch Dataset, or a set opened before


@dataclass(frozen=True)
class Located:
    """Data that were found but not read: their modality, and how they are opened with its options."""

    name: str
    modality: Modality
    opened: Callable[[Mapping[str, Any], Limits], DataSet]
    content: "Content | None" = None  # where it is more than an array: what `pack` reads
    by_columns: bool = False  # read from a table, of which `Columns` may name some

    def open(self, limits: Limits, **options: Any) -> DataSet:
        data = self.opened(self.modality.reader.options(**options), limits)
        if limits.quarantine is not None and not data.quarantine and when_asked(data) is None:
            write_quarantine(limits.quarantine, data.quarantine)
        return data


Decoding = Callable[[Modality, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Content:
    """A source, and how its things are decoded with a modality's options."""

    source: Source
    decoding: Decoding


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

    `spec` is a folder of images (nested as one likes; when every image lies in a first-level folder, those are
    the classes), a Parquet file or a folder of them in the Hugging Face image convention, an `.npz` with
    `images` and maybe `labels`, a name (`digits`, `glyphs:train`, `glyphs:test`, `cifar10:ROOT`, also
    `cifar10:ROOT:test`; `idx:FOLDER` and `idx:FOLDER:test` for files like MNIST's; to open a folder that has such a name write
    `./digits`), or from Python an array
    (n, h, w) or (n, h, w, c), alone or as (array, labels), a torch `Dataset` of images or (image, label), or data
    already opened.

    Recordings come as a folder of `.wav` or `.flac` files (first-level folders as classes) or Parquet with an `audio` column, text as
    a `.txt` file or a folder of them, or as an `.npz` with `tokens`, vectors as a table of numbers (`.csv`, Parquet, an
    `.npz` with `x`) or an array (n, width). `options` are the modality's: `image_size` for images, `reading` for text.

    A packed folder (`nearfar pack`), here or at a URL that fsspec opens, is read when it is used, and so are images of more than
    `scan_bytes` encoded bytes: rows that turn out to be unusable go to the quarantine list then.

    Everything else is decoded once here. What cannot be used (truncated, of another format, empty, unreadable) is put on the
    quarantine list, which goes to `quarantine` as CSV; when its share exceeds `max_bad_share`, or nothing is left, opening
    fails.

    What comes back is the modality's `DataSet`: `Images`, `Recordings`, `Texts` or `Vectors`.

    With `image_size`, an image whose shorter side exceeds twice that is shrunk to it, antialiased. What was decoded
    lives in memory if it fits in `cache_bytes`, and is otherwise decoded at each `load`.
    """
    limits = Limits(cache_bytes, max_bad_share, quarantine, scan_bytes=scan_bytes)
    return locate(spec, labels, Columns(image_column, label_column)).open(limits, **options)


def locate(spec: Spec, labels: Any = None, columns: Columns = NO_COLUMNS) -> Located:
    """Which modality `spec` is of, and how it is opened, without reading it. `columns`: those of a table, where they are not called as
    usual."""
    if isinstance(spec, Located):
        return spec
    located = _located(spec, labels, columns)
    if columns and not located.by_columns:
        raise UserError(
            f"{columns.key} was given, but {located.name} has no columns; it goes with Parquet and .csv files."
        )
    return located


def _located(spec: Spec, labels: Any, columns: Columns) -> Located:
    if isinstance(spec, tuple) and len(spec) == 2 and labels is None:
        spec, labels = spec
    if labels is not None and not isinstance(spec, np.ndarray | torch.Tensor):
        raise UserError(
            f"labels were given beside {type(spec).__name__}; they go with an array of instances."
        )
    if isinstance(spec, DataSet):
        return Located(spec.name, modality_of(spec), lambda options, limits: spec)
    if isinstance(spec, np.ndarray | torch.Tensor):
        return _array(spec, labels)
    if isinstance(spec, str | os.PathLike):
        return _named(os.fspath(spec), columns)
    if isinstance(spec, torch.utils.data.DataLoader):
        spec = spec.dataset
    if is_items(spec) and not isinstance(spec, (list, dict, set)):
        items = Items(spec, type(spec).__name__)
        return _located_source(items, items.root, items.modality, decoder)
    raise UserError(
        f"data of type {type(spec).__name__} cannot be opened; expected {_KINDS}, an array, or a torch Dataset."
    )


def _array(given: np.ndarray | torch.Tensor, labels: Any) -> Located:
    array = given
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        # torch has channels before height and width
        array = (array.permute(0, 2, 3, 1) if array.ndim == 4 else array).numpy()
    modality = _with_axes(array.ndim)
    labelled: Labels = (None, ())
    if labels is not None:
        labelled = class_numbers(np.asarray(labels), "data 'array'")
    return _located_arrays(Arrays(array, labelled), "array", modality)


def _with_axes(count: int) -> Modality:
    """The modality of arrays with so many axes; what has a number that nobody knows is for the first to refuse."""
    found = (modality for modality in MODALITIES.values() if count in modality.reader.array_axes)
    return next(found, next(iter(MODALITIES.values())))


def _located_arrays(arrays: Arrays, name: str, modality: Modality) -> Located:
    return Located(
        name,
        modality,
        lambda options, limits: modality.reader.from_array(arrays, name, options),
    )


def _later(name: str, modality: Modality, read: Callable[[], Arrays]) -> Located:
    """Arrays that are read only when they are opened."""
    return Located(
        name,
        modality,
        lambda options, limits: _located_arrays(read(), name, modality).opened(options, limits),
    )


def _bytes_decoder(modality: Modality, options: Mapping[str, Any]) -> Callable[[bytes], Any]:
    return lambda raw: modality.reader.decode(raw, options)


def _located_source(
    source: Source,
    name: str,
    modality: Modality,
    decoding: Decoding = _bytes_decoder,
) -> Located:
    def opened(options: Mapping[str, Any], limits: Limits) -> DataSet:
        way = open_unscanned if is_unscanned(source, modality, limits) else open_source
        return way(source, name, modality, options, decoding(modality, options), limits)  # type: ignore[arg-type]

    return Located(name, modality, opened, Content(source, decoding))


def _named(spec: str, columns: Columns = NO_COLUMNS) -> Located:
    pictures = _with_axes(4)
    if spec == "digits":
        return _later(spec, pictures, named.digits)
    if spec in ("glyphs", "glyphs:train", "glyphs:test"):
        split = spec.partition(":")[2] or "train"
        return _later(f"glyphs:{split}", pictures, lambda: named.glyphs(split))
    if spec.startswith(tuple(_SPLIT_SETS)):
        prefix, _, root = spec.partition(":")
        split = "train"
        if root.endswith((":train", ":test")):
            root, _, split = root.rpartition(":")
        return _SPLIT_SETS[f"{prefix}:"](root, split, columns)
    if is_url(spec):
        return _url(spec, columns)
    path = Path(spec)
    try:
        whole = next((modality for modality in MODALITIES.values() if modality.reader.claims(spec)), None)
        if whole is not None:
            return Located(spec, whole, lambda options, limits: whole.reader.open_spec(spec, options))
        if path.is_dir():
            packed = find_packed(spec)
            return _folder(spec, columns) if packed is None else _packed(packed)
        if not path.exists():
            raise UserError(_unknown(spec))
        check_regular(path)  # a pipe would be waited for without end
    except (OSError, ValueError) as error:  # a name too long, a null byte, a folder one may not look into
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"data {printable(spec)!r} cannot be opened: {reason}.") from error
    return _file(path, spec, columns)


def _packed(packed: Packed) -> Located:
    modality = packed.modality
    return Located(
        packed.root,
        modality,
        lambda options, limits: packed.open(options, _bytes_decoder(modality, options), limits),
    )


def _url(spec: str, columns: Columns) -> Located:
    """A packed folder or Parquet elsewhere: never scanned, read as it is used."""
    packed = find_packed(spec)
    if packed is not None:
        return _packed(packed)
    found = listed(spec, ".parquet")
    if not found:
        links = "; over http a folder is what its page links to" if spec.startswith("http") else ""
        raise UserError(
            f"data {spec!r} hold neither a packed folder nor .parquet files, which is what can be read from elsewhere (nearfar pack also "
            f"takes .tar files){links}; copy other data here first."
        )
    entries = [Entry(at.path, (at.path,), size, at.system) for at, size in found]
    located = _parquet(spec, entries, {}, spec, columns)
    if located.modality.reader.default_facts is None:
        raise UserError(
            f"data {spec!r} hold {located.modality.plural}, which cannot be read from elsewhere as they are used; copy or pack them."
        )
    return located


def _cifar10(root: str, split: str, columns: Columns) -> Located:
    name = f"cifar10:{root}:{split}"
    files = named.cifar10_files(root, split)
    if files[0].suffix == ".bin":
        return _later(name, _with_axes(4), lambda: named.cifar10_binary(files, name))
    return _parquet(str(files[0].parent), [_entry(files[0])], {}, name, columns)


def _idx(root: str, split: str, columns: Columns) -> Located:
    path = idx.images_of(root, split)
    return _later(f"idx:{root}:{split}", _with_axes(4), lambda: idx.read_idx(path))


# sets of two splits in a folder: PREFIX:FOLDER, PREFIX:FOLDER:train or PREFIX:FOLDER:test
_SPLIT_SETS: dict[str, Callable[[str, str, Columns], Located]] = {"cifar10:": _cifar10, "idx:": _idx}


def _folder(spec: str, columns: Columns) -> Located:
    os.listdir(
        spec
    )  # below, a folder that cannot be listed is one bad file among many; at the root it is all
    first, *rest = [modality for modality in MODALITIES.values() if modality.reader.suffixes]
    listing = Listing(first.reader.suffixes)
    listing.add(spec)
    if listing.entries:
        return _located_source(Folder(spec, listing), spec, first)
    if listing.parquet:
        return _parquet(spec, listing.parquet, listing.ignored(tables=False), spec, columns)
    for modality in rest:
        others = Listing(modality.reader.suffixes)
        others.add(spec)
        if others.entries:
            return _located_source(Folder(spec, others), spec, modality)
    allowed = ", ".join(suffix for modality in (first, *rest) for suffix in modality.reader.suffixes)
    raise UserError(
        f"data {spec!r}: the folder holds no images ({ignored_files(listing.ignored()) or 'no files'}); "
        f"expected {allowed}, or .parquet files.{' Tar files are read by nearfar pack.' if listing.tars else ''}"
        f"{f' Files like those of MNIST are read as idx:{spec}.' if any(map(idx.is_images, os.listdir(spec))) else ''}"
    )


def _parquet(
    root: str, entries: list[Entry], ignored: Mapping[str, int], name: str, columns: Columns
) -> Located:
    """By the column that the first file has; without one, a table of numbers."""
    held = columns_of(min(entries, key=lambda entry: entry.parts).at)
    columns.check(held, name)
    known = [(column, modality) for modality in MODALITIES.values() for column in modality.reader.columns]
    for column, modality in [(columns.image, _with_axes(4))] if columns.image is not None else known:
        if column in held:
            source = Parquet(root, entries, ignored, column, columns.label)
            return replace(_located_source(source, name, modality), by_columns=True)
    if len(entries) > 1 or entries[0].system is not None:
        raise UserError(
            f"data {name!r}: the Parquet files have none of the columns "
            f"{', '.join(f'`{column}`' for m in MODALITIES.values() for column in m.reader.columns)} (their columns: "
            f"{', '.join(held[:20])})."
        )
    path = Path(entries[0].path)
    found = _later(name, _with_axes(2), lambda: tables.table(path, name, columns.label))
    return replace(found, by_columns=columns.image is None)


def _file(path: Path, spec: str, columns: Columns) -> Located:
    suffix = path.suffix.lower()
    if idx.is_images(path.name):
        return _later(spec, _with_axes(4), lambda: idx.read_idx(path))
    if suffix == ".parquet":
        return _parquet(str(path.parent), [_entry(path)], {}, spec, columns)
    if suffix in READERS:
        reader = READERS[suffix]
        if suffix in tables.SUFFIXES and columns.label is not None:
            found = _later(spec, _with_axes(reader.axes), lambda: tables.table(path, spec, columns.label))
            return replace(found, by_columns=columns.image is None)
        return _later(spec, _with_axes(reader.axes), lambda: reader.read(path, spec))
    if suffix == ".npz":
        held = named.npz_keys(path)
        modality = next((m for key, m in _KEYS.items() if key in held), next(iter(_KEYS.values())))
        return _later(spec, modality, lambda: named.npz(path, spec, _KEYS)[1])
    for modality in MODALITIES.values():
        if suffix in modality.reader.suffixes and modality.reader.single_file:
            return _located_source(
                Folder(str(path.parent), Listing(modality.reader.suffixes, [_entry(path)])), spec, modality
            )
        if suffix in modality.reader.suffixes:
            one = modality.unit.removesuffix("s")
            raise UserError(
                f"data {spec!r} are a single {one}; give the folder that holds the {modality.unit}."
            )
    raise UserError(
        f"data {spec!r} are a file of an unknown kind ({suffix or 'no suffix'}); expected {_KINDS}."
    )


def _entry(file: Path) -> Entry:
    return Entry(str(file), (printable(file.name),), file.stat().st_size)


def _unknown(spec: str) -> str:
    """What was not found, and what may have been meant."""
    parent, name = os.path.split(spec.rstrip("/"))
    try:
        beside = os.listdir(parent or ".")
    except OSError:
        beside = []
    near = difflib.get_close_matches(spec, NAMES, n=1, cutoff=0.7)
    near += [
        os.path.join(parent, entry) for entry in difflib.get_close_matches(name, beside, n=1, cutoff=0.7)
    ]
    hint = f"did you mean {printable(near[0])!r}?" if near else f"expected {_KINDS}."
    return f"data {spec!r} was not found; {hint}"
