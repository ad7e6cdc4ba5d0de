"""Opened sets of images, with their pixels on demand.

Where the pixels come from is the store's business, and there are three: one array (`Stacked`), decoded pictures
of different sizes (`Ragged`), or encoded bytes decoded anew at each request (`Encoded`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32, UInt8

from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.dataset import DataSet, Store

MOST_PADDED_BYTES = 2**35


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
    """Pictures too many to hold decoded: `read(row)` decodes one at each request."""

    read: Callable[[int], UInt8[np.ndarray, "height width channel"]]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        return padded([self.read(int(row)) for row in rows])


@dataclass(frozen=True)
class Recoloured:
    """Another store's pictures with another number of channels: one grey as three alike, or three as their luminance (ITU-R 601,
    as PIL converts to "L")."""

    store: Store
    channels: int

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        pixels = self.store.take(rows)
        if self.channels == 3:
            return Pixels(np.repeat(pixels.data, 3, axis=3), pixels.size)
        weights = np.array([19595, 38470, 7471], dtype=np.uint32)  # of 2^16
        grey = (pixels.data.astype(np.uint32) @ weights + 2**15) >> 16
        return Pixels(grey.astype(np.uint8)[..., None], pixels.size)


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Images(DataSet):
    """An opened set of images: `load` gives `Pixels`."""

    modality: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"
    each: ClassVar[tuple[str, ...]] = (*DataSet.each, "sizes")

    channels: int
    sizes: Int32[np.ndarray, "image 2"]  # (height, width) as `load` gives them
