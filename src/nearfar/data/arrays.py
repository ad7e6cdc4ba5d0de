"""Data that are arrays already: numpy arrays, `.npz` files, and the sets that come with a name."""

import hashlib
import importlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8

from nearfar.data.decode import shrunk, shrunk_size
from nearfar.data.images import Images, Stacked
from nearfar.data.labels import Labels, class_numbers, given_names
from nearfar.data.text import Reading, tokens_of
from nearfar.errors import UserError
from nearfar.untrusted import check_npz

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_NPZ = ("images", "tokens", "labels", "classes")


def open_array(
    array: Shaped[np.ndarray, "image height width *channel"],
    name: str,
    image_size: int | None,
    labelled: Labels = (None, ()),
    paths: Sequence[str] | None = None,
) -> Images:
    """An array (n, h, w) or (n, h, w, c), uint8 or float in [0, 1], as a data set.

    The array itself is used when it is uint8 and no shrinking is asked for: do not write to it afterwards.
    """
    pixels = _bytes_of(_four_axes(array, name), name)
    labels, classes = labelled
    if labels is not None and len(labels) != len(pixels):
        raise UserError(
            f"data {name!r}: {len(pixels)} images but {len(labels)} labels; one label per image is allowed."
        )
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    pixels = _shrunk_all(pixels, image_size)
    return Images(
        name=name,
        fingerprint=digest.hexdigest(),
        channels=pixels.shape[3],
        labels=labels,
        classes=classes,
        paths=tuple(paths or (f"{name}#{row}" for row in range(len(pixels)))),
        store=Stacked(pixels),
        rows=np.arange(len(pixels)),
        sizes=np.tile(np.array(pixels.shape[1:3], dtype=np.int32), (len(pixels), 1)),
    )


def open_npz(path: Path, name: str, image_size: int | None, reading: Reading) -> Images:
    """`images` or `tokens`, optional `labels` and their names, `classes`, of an .npz file; object arrays (which are pickles) are refused,
    not loaded."""
    arrays = _npz_arrays(path, name)
    if "tokens" in arrays and "images" not in arrays:
        return tokens_of(arrays, path, name, reading)
    if "images" not in arrays:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"data {name!r} have no array `images` (the file holds: {held}).")
    labelled: Labels = (None, ())
    if "labels" in arrays:
        where = f"data {name!r}"
        named = given_names(arrays["classes"], where) if "classes" in arrays else ()
        labelled = class_numbers(arrays["labels"], where, named)
    paths = [f"{path.name}#{row}" for row in range(len(np.atleast_1d(arrays["images"])))]
    return open_array(arrays["images"], name, image_size, labelled, paths)


def _npz_arrays(path: Path, name: str) -> dict[str, np.ndarray]:
    try:
        check_npz(path)
        # A header that is not quite numpy's makes numpy warn before it fails or succeeds.
        with warnings.catch_warnings(), open(path, "rb") as opened:
            warnings.simplefilter("ignore")
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array, not an .npz archive")
            with file:
                arrays = {key: file[key] for key in file.files if key in _NPZ}
                known = "images" in arrays or "tokens" in arrays
                return arrays if known else dict.fromkeys(file.files, np.empty(0))
    except UserError:
        raise
    except Exception as error:  # zip, zlib and numpy each fail in their own ways on damaged files
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UserError(f"{str(path)!r} cannot be read as .npz: {reason}.") from error


def open_digits(image_size: int | None) -> Images:
    """scikit-learn's 1,797 handwritten digits, 8 × 8, grey; 0..16 scaled to 0..255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return open_array(pixels, "digits", image_size, class_numbers(digits.target, "digits", "0123456789"))


def open_glyphs(split: str, image_size: int | None) -> Images:
    """The rendered characters that come with nearfar."""
    # Imported when asked for: drawing needs matplotlib, which no other data set does.
    images, labels, classes = importlib.import_module("nearfar.data.glyphs").glyphs(split)
    return open_array(images, f"glyphs:{split}", image_size, (labels, tuple(classes)))


def open_cifar10_binary(files: Sequence[Path], name: str, image_size: int | None) -> Images:
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
    return open_array(pixels, name, image_size, labelled, paths)


def cifar10_files(root: str, split: str) -> list[Path]:
    """The binary files of a split, or its one Parquet file."""
    if split not in ("train", "test"):
        raise UserError(f"data 'cifar10:{root}:{split}': the split is {split!r}; allowed are train and test.")
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


def _four_axes(array: np.ndarray, name: str) -> np.ndarray:
    four = array[..., None] if array.ndim == 3 else array
    allowed = "allowed are (n, h, w) and (n, h, w, channels) with nothing empty"
    if four.ndim != 4 or 0 in four.shape:
        raise UserError(f"data {name!r}: images have shape {array.shape}; {allowed}.")
    if four.shape[3] > 16:
        hint = ", and these look channels-first" if four.shape[1] <= 4 else ""
        raise UserError(
            f"data {name!r}: images have shape {array.shape}; {allowed} and at most 16 channels{hint}."
        )
    return four


def _bytes_of(array: np.ndarray, name: str) -> UInt8[np.ndarray, "image height width channel"]:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise UserError(f"data {name!r}: images are {array.dtype}; allowed are uint8 and floats in [0, 1].")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # also when either is not a number
        raise UserError(
            f"data {name!r}: float images range from {low:g} to {high:g}; allowed are uint8 and floats in [0, 1]."
        )
    return np.rint(array * 255).astype(np.uint8)


def _shrunk_all(pixels: np.ndarray, image_size: int | None) -> np.ndarray:
    height, width = pixels.shape[1:3]
    if shrunk_size(width, height, image_size) == (width, height):
        return pixels
    return np.stack([shrunk(picture, image_size) for picture in pixels])
