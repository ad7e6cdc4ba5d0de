"""An opened data set: how many pictures, what is known of each, and their pixels on demand.

Where the pixels come from is the store's business, and there are three: one array (`Stacked`), decoded pictures
of different sizes (`Ragged`), or encoded bytes decoded anew at each request (`Encoded`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from jaxtyping import Int, Int32, Int64, UInt8

from nearfar.data.containers import Unusable
from nearfar.data.decode import decode
from nearfar.errors import UserError
from nearfar.randomness import order
from nearfar.types import Pixels

MOST_PADDED_BYTES = 2**35


class Store(Protocol):
    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels: ...


@dataclass(frozen=True)
class Stacked:
    """All pictures in one array."""

    array: UInt8[np.ndarray, "image height width channel"]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        sizes = np.tile(np.array(self.array.shape[1:3], dtype=np.int32), (len(rows), 1))
        return Pixels(self.array[rows], sizes)


@dataclass(frozen=True)
class Ragged:
    """Decoded pictures of different sizes."""

    pictures: Sequence[UInt8[np.ndarray, "height width channel"]]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        return padded([self.pictures[row] for row in rows])


@dataclass(frozen=True)
class Encoded:
    """Pictures too many to hold decoded: `read(row)` gives a picture's bytes."""

    read: Callable[[int], bytes]
    name: Callable[[int], str]
    image_size: int | None

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        return padded([self._picture(int(row)) for row in rows])

    def _picture(self, row: int) -> np.ndarray:
        try:
            return decode(self.read(row), self.image_size)
        except Unusable as reason:
            raise UserError(
                f"{self.name(row)} was usable when the data were opened and no longer is: {reason}."
            ) from reason


def padded(pictures: Sequence[UInt8[np.ndarray, "height width channel"]]) -> Pixels:
    """The pictures in one array, zeros at the bottom and right."""
    size = np.array([picture.shape[:2] for picture in pictures], dtype=np.int32).reshape(-1, 2)
    height, width = size.max(axis=0).tolist() if len(pictures) else (0, 0)
    channels = pictures[0].shape[2] if pictures else 3
    needed = len(pictures) * height * width * channels
    if needed > MOST_PADDED_BYTES:
        raise UserError(
            f"a batch of {len(pictures)} images padded to {height} x {width} needs {needed / 2**30:.0f} GiB; "
            f"lower batch_size or give image_size, so that large images are shrunk."
        )
    data = np.zeros((len(pictures), height, width, channels), dtype=np.uint8)
    for row, picture in zip(data, pictures, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    return Pixels(data, size)


@dataclass(frozen=True, eq=False)
class Images:
    """An opened data set. `load` is deterministic and may be called from any number of threads."""

    name: str  # what the user wrote
    fingerprint: str  # sha256 over the names, sizes, labels and contents of the usable images
    channels: int
    labels: Int64[np.ndarray, "image"] | None
    classes: tuple[str, ...]  # () when unlabelled, or labelled by numbers without names
    paths: tuple[str, ...]  # "cat/a.jpg", "train.parquet#17", "images.npz#3"
    store: Store
    rows: Int64[np.ndarray, "image"]  # this set's images among the store's
    sizes: Int32[np.ndarray, "image 2"]  # (height, width) as `load` gives them
    quarantine: tuple[tuple[str, str], ...] = ()  # (path, reason) of what cannot be used
    ignored: int = 0  # files in the folder that do not claim to be images

    @property
    def unit(self) -> str:
        """What one counts of them."""
        return "images"

    @property
    def class_count(self) -> int:
        """How many classes have a name, or, without names, occur."""
        if self.labels is None:
            return 0
        return len(self.classes) or len(np.unique(self.labels[self.labels >= 0]))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Images({self.name!r}, {len(self)} images, {self.class_count} classes)"

    def load(self, index: Int[np.ndarray, "image"]) -> Pixels:
        """The pixels of the images with these row numbers, in this order."""
        return self.store.take(self.rows[np.asarray(index, dtype=np.int64)])

    def subset(self, index: Int[np.ndarray, "image"]) -> "Images":
        """The images with these row numbers, as a data set of its own; the pixels are shared."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return replace(
            self,
            fingerprint=hashlib.sha256(self.fingerprint.encode() + index.tobytes()).hexdigest(),
            labels=None if self.labels is None else self.labels[index],
            paths=tuple(self.paths[i] for i in index),
            rows=self.rows[index],
            sizes=self.sizes[index],
        )

    def split(self, share: float, seed: int) -> tuple["Images", "Images"]:
        """(the rest, the held-out share): a pure function of the seed, in proportion within every class.

        Class quotas are share × class size, rounded by largest remainder so that round(share × n) are held out
        in all, except that no class is held out whole.
        """
        held = np.zeros(len(self), dtype=bool)
        held[self._held(share, seed)] = True
        if held.all() or not held.any():
            raise UserError(
                f"data {self.name!r}: a share of {share} of {len(self)} images leaves one side of the split empty; "
                f"allowed are shares strictly between 0 and 1 with at least one image on either side."
            )
        return self.subset(np.flatnonzero(~held)), self.subset(np.flatnonzero(held))

    def _held(self, share: float, seed: int) -> np.ndarray:
        if not 0 < share < 1:
            raise UserError(
                f"share {share} of a split is not allowed: give a number strictly between 0 and 1."
            )
        labels = np.zeros(len(self), dtype=np.int64) if self.labels is None else self.labels
        shuffled = order(seed, 0, len(self))
        groups = [shuffled[labels[shuffled] == label] for label in np.unique(labels)]
        exact = share * np.array([len(group) for group in groups], dtype=np.float64)
        quota = np.floor(exact).astype(np.int64)
        spare = round(share * len(self)) - int(quota.sum())
        for group in np.argsort(quota - exact, kind="stable")[: max(spare, 0)]:
            quota[group] += quota[group] + 1 < len(groups[group])
        return np.concatenate(
            [shuffled[:0], *(group[:count] for group, count in zip(groups, quota, strict=True))]
        )
