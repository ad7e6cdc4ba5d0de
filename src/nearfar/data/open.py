"""`open_data`: whatever a user may call data, opened."""

import difflib
import os
from pathlib import Path

import numpy as np

from nearfar.data import audio, text
from nearfar.data.arrays import (
    cifar10_files,
    open_array,
    open_cifar10_binary,
    open_digits,
    open_glyphs,
    open_npz,
)
from nearfar.data.folder import SUFFIXES, Entry, Folder, Listing, printable
from nearfar.data.images import Images
from nearfar.data.parquet import Parquet
from nearfar.data.scan import Source, open_source, write_quarantine
from nearfar.data.text import Reading
from nearfar.errors import UserError
from nearfar.untrusted import check_regular

NAMES = ("digits", "glyphs", "glyphs:train", "glyphs:test", "cifar10:ROOT")
_ALLOWED = (
    "a folder of images, of .wav or of .txt files, a .txt file, a Parquet file or folder, an .npz file, or one of the names "
    "digits, glyphs:train, glyphs:test, cifar10:ROOT"
)

Spec = str | os.PathLike[str] | np.ndarray | Images


def open_data(
    spec: Spec,
    *,
    image_size: int | None = None,
    cache_bytes: int = 2**31,
    max_bad_share: float = 0.05,
    quarantine: Path | None = None,
    reading: Reading | None = None,
) -> Images:
    """The data set that `spec` names.

    `spec` is a folder of images (nested as one likes; when every image lies in a first-level folder, those are
    the classes), a Parquet file or a folder of them in the Hugging Face image convention, an `.npz` with
    `images` and maybe `labels`, a name (`digits`, `glyphs:train`, `glyphs:test`, `cifar10:ROOT`, also
    `cifar10:ROOT:test`; to open a folder that has such a name write `./digits`), or from Python an array
    (n, h, w) or (n, h, w, c) or data already opened.

    Sequences come as a folder of `.wav` files (first-level folders as classes) or Parquet with an `audio` column, as
    a `.txt` file or a folder of them, or as an `.npz` with `tokens`; what comes back is then `Sequences`, and
    `reading` says what a symbol of text is.

    Every image is decoded once here. What cannot be used (truncated, not an image, over 50 megapixels, empty,
    16-bit grey or float, another format than JPEG, PNG, WebP, BMP, unreadable) is put on the quarantine list,
    which goes to `quarantine` as CSV; when its share exceeds `max_bad_share`, or nothing is left, opening fails.

    With `image_size`, an image whose shorter side exceeds twice that is shrunk to it, antialiased. Decoded
    images live in memory if they fit in `cache_bytes`, and are otherwise decoded at each `load`.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"image_size is {image_size}; allowed are whole numbers from 1.")
    if isinstance(spec, Images):
        images = spec
    elif isinstance(spec, np.ndarray):
        images = open_array(spec, "array", image_size)
    elif isinstance(spec, str | os.PathLike):
        name = os.fspath(spec)
        found = _resolved(name, image_size, reading or Reading())
        if isinstance(found, _Text):
            return text.open_text(found, name, reading or Reading(), max_bad_share, quarantine)
        if isinstance(found, _Waves) or (isinstance(found, Parquet) and found.column == "audio"):
            columns = found.groups if isinstance(found, Parquet) else lambda kept: {}
            return audio.open_recordings(found, name, cache_bytes, max_bad_share, quarantine, columns)
        if not isinstance(found, Images):
            return open_source(found, name, image_size, cache_bytes, max_bad_share, quarantine)
        images = found
    else:
        raise UserError(
            f"data of type {type(spec).__name__} cannot be opened; allowed are {_ALLOWED}, or an array."
        )
    if quarantine is not None:
        write_quarantine(quarantine, images.quarantine)
    return images


class _Waves(Folder):
    """A folder of recordings."""


class _Text(Folder):
    """A folder of text files, or one of them."""


def _resolved(spec: str, image_size: int | None, reading: Reading) -> Images | Source:
    """Arrays come opened; encoded pictures, recordings and text as a source yet to be scanned."""
    if spec == "digits":
        return open_digits(image_size)
    if spec in ("glyphs", "glyphs:train", "glyphs:test"):
        return open_glyphs(spec.partition(":")[2] or "train", image_size)
    if spec.startswith("cifar10:"):
        return _cifar10(spec, image_size)
    path = Path(spec)
    try:
        if path.is_dir():
            return _folder(spec)
        if not path.exists():
            raise UserError(_unknown(spec))
        check_regular(path)  # a pipe would be waited for without end
    except (OSError, ValueError) as error:  # a name too long, a null byte, a folder one may not look into
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"data {printable(spec)!r} cannot be opened: {reason}.") from error
    return _file(path, spec, image_size, reading)


def _cifar10(spec: str, image_size: int | None) -> Images | Source:
    root = spec.removeprefix("cifar10:")
    split = "train"
    if root.endswith((":train", ":test")):
        root, _, split = root.rpartition(":")
    files = cifar10_files(root, split)
    if files[0].suffix == ".bin":
        return open_cifar10_binary(files, spec, image_size)
    return Parquet(str(files[0].parent), [_entry(files[0])], 0)


def _folder(spec: str) -> Source:
    os.listdir(
        spec
    )  # below, a folder that cannot be listed is one bad file among many; at the root it is all
    listing = Listing()
    listing.add(spec)
    if listing.entries:
        return Folder(spec, listing)
    if listing.parquet:
        return Parquet(spec, listing.parquet, listing.others)
    for kind, suffixes in ((_Waves, audio.SUFFIXES), (_Text, text.SUFFIXES)):
        others = Listing(suffixes)
        others.add(spec)
        if others.entries:
            return kind(spec, others)
    allowed = ", ".join([*SUFFIXES, *audio.SUFFIXES, *text.SUFFIXES])
    raise UserError(
        f"data {spec!r}: the folder holds no images ({listing.others} other files); "
        f"allowed are {allowed}, or .parquet files."
    )


def _file(path: Path, spec: str, image_size: int | None, reading: Reading) -> Images | Source:
    suffix = path.suffix.lower()
    if suffix in text.SUFFIXES:
        return _Text(str(path.parent), Listing(text.SUFFIXES, [_entry(path)]))
    if suffix == ".parquet":
        return Parquet(str(path.parent), [_entry(path)], 0)
    if suffix == ".npz":
        return open_npz(path, spec, image_size, reading)
    if suffix in SUFFIXES:
        raise UserError(f"data {spec!r} are a single image; give the folder that holds the images.")
    raise UserError(
        f"data {spec!r} are a file of an unknown kind ({suffix or 'no suffix'}); allowed are {_ALLOWED}."
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
    hint = f"did you mean {printable(near[0])!r}?" if near else f"allowed are {_ALLOWED}."
    return f"data {spec!r} do not exist; {hint}"
