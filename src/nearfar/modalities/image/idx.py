"""idx, the format of MNIST and sets like it (Fashion-MNIST, KMNIST, EMNIST): a header, then bytes.

    train-images-idx3-ubyte.gz   train-labels-idx1-ubyte.gz   t10k-images-idx3-ubyte.gz   t10k-labels-idx1-ubyte.gz

The shape is read, and compared with the size to which the file may unpack, before anything is unpacked;
torchvision's reader neither does that nor opens .gz files.
"""

import gzip
import math
import os
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from nearfar.errors import UserError, error_reason
from nearfar.modalities.base import Arrays
from nearfar.modalities.labels import Labels, class_numbers
from nearfar.system.untrusted import check_memory, check_unpacked, open_regular_file

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
