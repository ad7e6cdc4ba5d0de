"""Sets of images that have a name: digits, glyphs, CIFAR-10, and files like MNIST's."""

import gzip
import math
import os
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from nearfar.errors import UserError, error_reason
from nearfar.modalities.base import Arrays, NamedData
from nearfar.modalities.files import MAX_BYTES, Labels, class_numbers
from nearfar.system.extras import need
from nearfar.system.untrusted import check_memory, check_unpacked, open_regular_file, read_bytes

CIFAR10_CLASSES = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
EXAMPLES = ("digits", "glyphs", "glyphs:train", "glyphs:test", "cifar10:ROOT", "idx:FOLDER")


def find_named(spec: str) -> NamedData | None:
    """`digits`, `glyphs[:SPLIT]`, `cifar10:FOLDER[:SPLIT]`, `idx:FOLDER[:SPLIT]`, or an idx file."""
    if spec == "digits":
        return NamedData(spec, digits)
    prefix, _, root = spec.partition(":")
    if spec in EXAMPLES and prefix == "glyphs":
        split = root or "train"
        return NamedData(f"glyphs:{split}", lambda: glyphs(split))
    folder, _, split = root.rpartition(":") if root.endswith((":train", ":test")) else (root, "", "train")
    if spec.startswith("cifar10:"):
        name, files = f"cifar10:{folder}:{split}", cifar10_files(folder, split)
        if files[0].suffix != ".bin":
            return NamedData(name, file=files[0])
        return NamedData(name, lambda: cifar10_binary(files, name))
    if spec.startswith("idx:"):
        path = images_of(folder, split)
        return NamedData(f"idx:{folder}:{split}", lambda: read_idx(path))
    if is_images(os.path.basename(spec)) and os.path.isfile(spec):
        return NamedData(spec, lambda: read_idx(Path(spec)))
    return None


def digits() -> Arrays:
    """scikit-learn's 1,797 handwritten digits, 8 × 8, grey; 0..16 scaled to 0..255."""
    digits = need("sklearn.datasets").load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return Arrays(pixels, class_numbers(digits.target, "digits", "0123456789"))


def glyphs(split: str) -> Arrays:
    """The rendered characters that come with nearfar."""
    # Imported on request: drawing needs matplotlib, which no other data set does.
    images, labels, classes = need("nearfar.modalities.image.glyphs").glyphs(split)
    return Arrays(images, (labels, tuple(classes)))


def cifar10_binary(files: Sequence[Path], name: str) -> Arrays:
    """CIFAR-10's binary version: records of one label byte and 3 × 32 × 32 pixel bytes."""
    records, paths = [], []
    for file in files:
        try:
            data = np.frombuffer(read_bytes(file, MAX_BYTES), dtype=np.uint8)
        except OSError as problem:
            raise UserError(f"{str(file)!r} cannot be read: {problem.strerror}.") from None
        if len(data) == 0 or len(data) % 3073:
            raise UserError(
                f"{str(file)!r} has {len(data)} bytes; a CIFAR-10 binary file has a multiple of 3073."
            )
        records.append(data.reshape(-1, 3073))
        paths += [f"{file.name}#{row}" for row in range(len(records[-1]))]
    table = np.concatenate(records)
    pixels = np.ascontiguousarray(table[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    labelled = class_numbers(table[:, 0], f"data {name!r}", CIFAR10_CLASSES)
    return Arrays(pixels, labelled, tuple(paths))


def cifar10_files(root: str, split: str) -> list[Path]:
    """The binary files of a split, or its one Parquet file."""
    if split not in ("train", "test"):
        raise UserError(f"data 'cifar10:{root}:{split}': the split is {split!r}; expected train or test.")
    folder = Path(root)
    pattern = re.compile(r"data_batch_\d+\.bin" if split == "train" else r"test_batch\.bin")
    for place in (folder, folder / "cifar-10-batches-bin"):
        files = sorted(file for file in _inside(place) if pattern.fullmatch(file.name) and file.is_file())
        if files:
            return files
    if (folder / f"cifar10_{split}.parquet").is_file():
        return [folder / f"cifar10_{split}.parquet"]
    pickled = any((folder / part / "data_batch_1").exists() for part in ("", "cifar-10-batches-py"))
    hint = "only the Python version, which is pickled and could run code" if pickled else "neither"
    raise UserError(
        f"data 'cifar10:{root}': the folder needs the binary version (data_batch_1.bin … test_batch.bin) "
        f"or cifar10_{split}.parquet, and has {hint}."
    )


def _inside(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


# ----------------------------------------------------------------------------------- MNIST's idx files

# The shape is read, and compared with the size to which the file may unpack, before anything is unpacked;
# torchvision's reader neither does that nor opens .gz files.
_IMAGES = re.compile(r"(.*?)images([-.])idx3-ubyte(\.gz)?", re.IGNORECASE)
_SPLITS = {
    "train": re.compile(r"(?<![a-z])train(?![a-z])", re.IGNORECASE),
    "test": re.compile(r"(?<![a-z])(t10k|test)(?![a-z])", re.IGNORECASE),
}
_UBYTE = 8


def is_images(name: str) -> bool:
    return _IMAGES.fullmatch(name) is not None


def images_of(root: str, split: str) -> Path:
    """The one file of a folder that holds the split's images; unpacked where it lies there both ways."""
    try:
        names = sorted(os.listdir(root))
    except (OSError, ValueError) as error:  # not there, not a folder, a null byte
        reason = error_reason(error)
        raise UserError(
            f"data {os.fsencode(f'idx:{root}').decode('utf-8', 'backslashreplace')!r} cannot be opened: "
            f"{reason}."
        ) from error
    images = [name for name in names if is_images(name)]
    files = {name.removesuffix(".gz"): name for name in reversed(images) if _SPLITS[split].search(name)}
    if len(files) == 1:
        return Path(root) / files.popitem()[1]
    if files:
        raise UserError(
            f"data 'idx:{root}:{split}': several files hold {split} images ({', '.join(sorted(files)[:5])}); "
            "give the path of one of them."
        )
    raise UserError(
        f"data 'idx:{root}:{split}': the folder has no {split} images; expected a file such as "
        f"{'train' if split == 'train' else 't10k'}-images-idx3-ubyte.gz{f', and it has {images[0]}' if images else ''}."
    )


def read_idx(path: Path) -> Arrays:
    """The images of a file, and the labels in the file with `labels` and `idx1` in its name."""
    images = _bytes_of(path, 3)
    labelled: Labels = (None, ())
    labels_file = _labels_of(path)
    if labels_file is not None:
        labels = _bytes_of(labels_file, 1)
        if len(labels) != len(images):
            raise UserError(
                f"{str(labels_file)!r} has {len(labels):,} labels, and {path.name} has {len(images):,} "
                "images; expected as many."
            )
        labelled = class_numbers(labels, str(labels_file))
    return Arrays(images, labelled, tuple(f"{path.name}#{row}" for row in range(len(images))))


def _labels_of(path: Path) -> Path | None:
    match = _IMAGES.fullmatch(path.name)
    assert match is not None  # `is_images` chose it
    stem = path.with_name(f"{match[1]}labels{match[2]}idx1-ubyte")
    places = (stem, stem.with_name(f"{stem.name}.gz"))
    return next((place for place in places if place.exists()), None)


def _bytes_of(path: Path, axes: int) -> UInt8[np.ndarray, "..."]:
    """The array of an idx file: 0, 0, type, number of axes, their lengths (big-endian), values."""
    try:
        with open_regular_file(path) as opened:
            packed = os.fstat(opened.fileno()).st_size
            file: Any = gzip.GzipFile(fileobj=opened) if path.suffix.lower() == ".gz" else opened
            start = file.read(4)
            if start != bytes((0, 0, _UBYTE, axes)):
                raise UserError(
                    f"{str(path)!r} begins with the bytes {start.hex(' ') or '(none)'}; expected 00 00 08 "
                    f"{axes:02x}, those of an idx file of bytes with {axes} ax{'is' if axes == 1 else 'es'}."
                )
            lengths = file.read(4 * axes)
            if len(lengths) < 4 * axes:
                raise EOFError("it ends within its header")
            shape = struct.unpack(f">{axes}I", lengths)
            size = math.prod(shape)
            check_unpacked(path, packed, size)
            check_memory(path, size)
            data = file.read(size + 1)  # one more byte, to see whether there are more
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{str(path)!r} cannot be read as idx: {error_reason(error)}.") from error
    if len(data) != size:
        raise UserError(
            f"{str(path)!r} holds {'more' if len(data) > size else f'{len(data):,}'} bytes after its header; "
            f"its shape {' × '.join(map(str, shape))} needs {size:,}."
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
