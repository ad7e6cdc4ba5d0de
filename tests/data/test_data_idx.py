"""MNIST's idx files: read exactly, split by name, and never unpacked beyond their header and size."""

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from nearfar import UserError
from nearfar.data import open_data
from nearfar.evaluate.matching import UnmatchedClasses, match_labels, splits_of_one_set

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def write_idx(path: Path, array: np.ndarray, shape: tuple[int, ...] | None = None) -> None:
    """As LeCun's page describes the format; `shape` other than the array's own makes a header that lies."""
    header_shape = array.shape if shape is None else shape
    content = (
        bytes((0, 0, 8, len(header_shape)))
        + struct.pack(f">{len(header_shape)}I", *header_shape)
        + array.tobytes()
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def mnist_like(folder: Path, suffix: str = ".gz") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw, arrays = np.random.default_rng(0), {}
    for word, count in (("train", 30), ("t10k", 20)):
        images = draw.integers(0, 256, (count, 6, 5), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        write_idx(folder / f"{word}-{IMAGES}{suffix}", images)
        write_idx(folder / f"{word}-{LABELS}{suffix}", labels)
        arrays[word] = images, labels
    return arrays


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_byte_and_label_of_both_splits(tmp_path: Path, suffix: str) -> None:
    arrays = mnist_like(tmp_path, suffix)
    specs = {
        "train": (f"idx:{tmp_path}", f"idx:{tmp_path}:train", str(tmp_path / f"train-{IMAGES}{suffix}")),
        "t10k": (f"idx:{tmp_path}:test", str(tmp_path / f"t10k-{IMAGES}{suffix}")),
    }
    for word, (images, labels) in arrays.items():
        for spec in specs[word]:
            data = open_data(spec)
            assert np.array_equal(data.load(np.arange(len(data))).data[..., 0], images)
            assert np.array_equal(data.labels, labels)
            assert data.channels == 1


def test_splits_of_one_folder_are_numbered_alike_and_those_of_two_are_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        mnist_like(tmp_path / name)
    train, test = open_data(f"idx:{tmp_path}/a"), open_data(f"idx:{tmp_path}/a:test")
    assert match_labels(test.labels, test, train.labels, train).by == "number"
    files = [str(tmp_path / "a" / f"{word}-{IMAGES}.gz") for word in ("train", "t10k")]
    assert splits_of_one_set(*files)
    second = open_data(f"idx:{tmp_path}/b:test")
    with pytest.raises(UnmatchedClasses, match="numbers without names"):
        match_labels(second.labels, second, train.labels, train)


def test_idx_images_without_labels_file_are_unlabelled(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    (tmp_path / f"train-{LABELS}.gz").unlink()
    assert open_data(f"idx:{tmp_path}").labels is None


def _lies(folder: Path, shape: tuple[int, int, int]) -> None:
    write_idx(folder / f"train-{IMAGES}.gz", np.zeros((4, 6, 5), np.uint8), shape)


def _cut(folder: Path, size: int) -> None:
    path = folder / f"train-{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:size])


BROKEN = {
    "fewer bytes than its header": (lambda f: _lies(f, (5, 6, 5)), "holds 120 bytes.*5 × 6 × 5 needs 150"),
    "more bytes than its header": (lambda f: _lies(f, (3, 6, 5)), "holds more bytes"),
    "a header beyond memory": (lambda f: _lies(f, (2**32 - 1, 2**32 - 1, 9)), "would decompress from"),
    "cut short": (lambda f: _cut(f, 60), "cannot be read as idx"),
    "empty": (lambda f: _cut(f, 0), r"begins with the bytes \(none\)"),
    "not gzip": (lambda f: (f / f"train-{IMAGES}.gz").write_bytes(b"no"), "cannot be read as idx"),
    "floats": (
        lambda f: (f / f"train-{IMAGES}.gz").write_bytes(gzip.compress(bytes((0, 0, 13, 3)))),
        "begins with the bytes 00 00 0d 03; expected 00 00 08 03",
    ),
    "header cut": (
        lambda f: (f / f"train-{IMAGES}.gz").write_bytes(gzip.compress(bytes((0, 0, 8, 3, 0)))),
        "ends within its header",
    ),
    "labels of another set": (
        lambda f: write_idx(f / f"train-{LABELS}.gz", np.zeros(7, np.uint8)),
        "has 7 labels, and train-images-idx3-ubyte.gz has 30 images",
    ),
    "two sets in one folder": (
        lambda f: write_idx(f / f"letters-train-{IMAGES}", np.zeros((4, 6, 5), np.uint8)),
        "several files hold train images",
    ),
    "no such split": (lambda f: (f / f"train-{IMAGES}.gz").unlink(), "has no train images.*and it has t10k"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_unusable_idx_files_are_refused_with_a_reason(tmp_path: Path, case: str) -> None:
    mnist_like(tmp_path)
    spoil, sentence = BROKEN[case]
    spoil(tmp_path)
    with pytest.raises(UserError) as caught:
        open_data(f"idx:{tmp_path}")
    assert re.search(sentence, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """2 GiB of zeros in 2 MB: the header's shape is compared with the file's size before the second read."""
    import tracemalloc

    path, part = tmp_path / f"train-{IMAGES}.gz", bytes(2**24)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**11, 2**10, 2**10))
        for _ in range(4):  # as far as anybody reads, and more
            file.write(part)
    tracemalloc.start()
    with pytest.raises(UserError, match="would decompress from"):
        open_data(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22, "a buffer, not the content"


def test_folder_of_idx_files_hints_at_idx_prefix(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    with pytest.raises(UserError, match="are read as idx:"):
        open_data(str(tmp_path))
