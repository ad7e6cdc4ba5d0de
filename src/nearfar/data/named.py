"""Sets that come with a name, and `.npz` files: arrays with labels."""

import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nearfar.errors import UserError
from nearfar.modalities.base import Arrays
from nearfar.modalities.labels import Labels, class_numbers, given_names
from nearfar.system.extras import need
from nearfar.system.untrusted import check_regular, npz_arrays

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def npz(path: Path, name: str, keys: Iterable[str]) -> tuple[str, Arrays]:
    """Which of the `keys` an .npz file holds first, that array, optional `labels` and their names, `classes`; object arrays (which are pickles) are
    refused, not loaded."""
    wanted = tuple(keys)
    arrays, held = npz_arrays(path, (*wanted, "labels", "classes"))
    found = next((key for key in wanted if key in arrays), None)
    if found is None:
        inside = ", ".join(sorted(held)) or "nothing"
        raise UserError(
            f"data {name!r} have no array {', '.join(f'`{key}`' for key in wanted[:-1])} or `{wanted[-1]}` (the file holds: {inside})."
        )
    labelled: Labels = (None, ())
    if "labels" in arrays:
        where = f"data {name!r}"
        names = given_names(arrays["classes"], where) if "classes" in arrays else ()
        labelled = class_numbers(arrays["labels"], where, names)
    rows = len(np.atleast_1d(arrays[found]))
    return found, Arrays(arrays[found], labelled, tuple(f"{path.name}#{row}" for row in range(rows)))


def npz_keys(path: Path) -> list[str]:
    """The names of the arrays, without reading them; none where the file is no such archive."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return []


def digits() -> Arrays:
    """scikit-learn's 1,797 handwritten digits, 8 × 8, grey; 0..16 scaled to 0..255."""
    found = need("sklearn.datasets").load_digits()
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)
    return Arrays(pixels, class_numbers(found.target, "digits", "0123456789"))


def glyphs(split: str) -> Arrays:
    """The rendered characters that come with nearfar."""
    # Imported when asked for: drawing needs matplotlib, which no other data set does.
    images, labels, classes = need("nearfar.data.glyphs").glyphs(split)
    return Arrays(images, (labels, tuple(classes)))


def cifar10_binary(files: Sequence[Path], name: str) -> Arrays:
    """CIFAR-10's binary version: records of one label byte and 3 × 32 × 32 pixel bytes."""
    records, paths = [], []
    for file in files:
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
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
        found = sorted(file for file in _inside(place) if pattern.fullmatch(file.name) and file.is_file())
        if found:
            return found
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
