"""Sets of images that have a name: digits, glyphs, CIFAR-10, and files like MNIST's."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nearfar.errors import UserError
from nearfar.modalities.base import Arrays, NamedData
from nearfar.modalities.files import MAX_BYTES
from nearfar.modalities.image.idx import images_of, is_images, read_idx
from nearfar.modalities.labels import class_numbers
from nearfar.system.extras import need
from nearfar.system.untrusted import read_bytes

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
