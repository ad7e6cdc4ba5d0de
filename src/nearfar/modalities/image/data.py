"""Sets of images: readers, the stores of their pixels, and their description."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Int, Int32, Shaped
from PIL import Image
from torch import Tensor

from nearfar.core.types import Pixels
from nearfar.errors import UserError, check_whole, counted
from nearfar.modalities.base import (
    AbstractReader,
    Arrays,
    Choice,
    Collection,
    Decoded,
    Description,
    NamedData,
)
from nearfar.modalities.dataset import DataSet, RowStore, Store, Unusable, unlike_most
from nearfar.modalities.files import set_fields
from nearfar.modalities.image import named
from nearfar.modalities.image.decode import (
    MAX_CHANNELS,
    MAX_PIXELS,
    UNREAD,
    VALUE_TYPES,
    DecodedPicture,
    decode,
    encode,
    opaque,
    shrunk,
    shrunk_size,
)
from nearfar.modalities.image.named import is_images
from nearfar.modalities.image.views.pipeline import Spans, statistics, wide_statistics

MAX_PADDED_BYTES = 2**35  # of a batch
MAX_DEFAULT_SIZE = 224  # side of a view when the settings name none and the pictures are larger
SAMPLE = 4096  # images that statistics are computed from
MAX_UNCLEAR_CHANNELS = 16  # of an array that may have its sides in another order
VALUES = tuple(dtype.name for dtype in VALUE_TYPES.values())


@dataclass(frozen=True)
class StackedStore:
    """All pictures in one array."""

    array: Shaped[np.ndarray, "image height width channel"]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        sizes = np.tile(np.array(self.array.shape[1:3], dtype=np.int32), (len(rows), 1))
        return Pixels(self.array[rows], sizes)


@dataclass(frozen=True)
class ConvertedStore:
    """Another store's pictures with another number of channels: one grey channel repeated, or the luminance
    of three (ITU-R 601, as PIL converts to "L")."""

    store: Store
    channels: int

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        pixels = self.store.take(rows)
        if self.channels == 3:
            return Pixels(np.repeat(pixels.data, 3, axis=3), pixels.size)
        if pixels.data.dtype != np.uint8:
            grey = pixels.data.astype(np.float64) @ np.array([19595, 38470, 7471]) / 2**16
            grey = np.rint(grey) if pixels.data.dtype == np.uint16 else grey
            return Pixels(grey.astype(pixels.data.dtype)[..., None], pixels.size)
        weights = np.array([19595, 38470, 7471], dtype=np.uint32)  # of 2^16
        grey = (pixels.data.astype(np.uint32) @ weights + 2**15) >> 16
        return Pixels(grey.astype(np.uint8)[..., None], pixels.size)


def padded(pictures: Sequence[DecodedPicture]) -> Pixels:
    """The pictures in one array, zeros at the bottom and right."""
    size = np.array([picture.shape[:2] for picture in pictures], dtype=np.int32).reshape(-1, 2)
    height, width = size.max(axis=0).tolist() if len(pictures) else (0, 0)
    channels, dtype = (pictures[0].shape[2], pictures[0].dtype) if pictures else (3, np.dtype(np.uint8))
    needed = len(pictures) * height * width * channels * dtype.itemsize
    if needed > MAX_PADDED_BYTES:
        raise UserError(
            f"a batch of {len(pictures)} images padded to {height} x {width} needs {needed / 2**30:.0f} GiB; "
            f"lower batch_size or give image_size, so that large images are shrunk."
        )
    data = np.zeros((len(pictures), height, width, channels), dtype=dtype)
    for row, picture in zip(data, pictures, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    return Pixels(data, size)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Images(DataSet):
    """An opened set of images: `load` returns `Pixels`."""

    modality: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"
    per_instance: ClassVar[tuple[str, ...]] = (*DataSet.per_instance, "sizes")

    channels: int
    values: str = "uint8"  # type of the pixels: uint8, uint16 or float32
    sizes: Int32[np.ndarray, "image 2"]  # (height, width) as `load` returns them


@dataclass(frozen=True)
class ImageDescription(Description):
    channels: int
    size: int  # side of a view, in pixels
    mean: tuple[float, ...]  # of each channel, in [0, 1]
    std: tuple[float, ...]
    values: str = field(default="uint8", kw_only=True)  # type of the pixels: uint8, uint16 or float32
    # values of each channel that are 0 and 1 of `mean` and `std`; () for bytes: 0 and 255
    low: tuple[float, ...] = field(default=(), kw_only=True)
    high: tuple[float, ...] = field(default=(), kw_only=True)

    def check(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(
                "the checkpoint's description of its data is invalid (mean and std need a number for each "
                "channel)"
            )
        spans = 0 if self.values == "uint8" else self.channels
        ordered = all(low < high for low, high in zip(self.low, self.high, strict=False))
        if self.values not in VALUES or not len(self.low) == len(self.high) == spans or not ordered:
            raise UserError(
                "the checkpoint's description of its data is invalid (images of uint16 or float32 need low and "
                "high for each channel)"
            )

    def spans(self) -> Spans | None:
        """What is shown as 0 and 1; None for bytes."""
        return None if self.values == "uint8" else Spans(np.array(self.low), np.array(self.high))

    def in_values(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation in the data's own values; of bytes in [0, 1]."""
        spans = self.spans()
        if spans is None:
            return self.mean, self.std
        width = spans.high - spans.low
        return tuple(spans.low + width * self.mean), tuple(width * self.std)

    def resized(self, size: int | None) -> Self:
        return replace(self, size=size or self.size)

    def side(self) -> int:
        return self.size

    def with_statistics(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        if len(mean) != self.channels:
            raise UserError(
                f"mean was {list(mean)}, but the images have {counted(self.channels, 'channels')}; give a number "
                "for each, or mean=none std=none for the statistics of the data"
            )
        return replace(self, mean=tuple(mean), std=tuple(std))

    def check_alike(self, data: Images, run_name: str) -> None:
        if data.channels != self.channels:
            raise UserError(
                f"{data.name} has {data.channels} channels but {run_name} was trained on {self.channels}"
            )
        if data.values != self.values:
            raise UserError(
                f"{data.name} has images of {data.values} but {run_name} was trained on {self.values}; convert "
                "them, so that a value means the same"
            )

    def convert_channels(self, data: Images, run_name: str) -> Images:
        """Grey repeats its channel for a colour network; colour becomes luminance for a grey one."""
        if {data.channels, self.channels} == {1, 3}:
            data = replace(data, store=ConvertedStore(data.store, self.channels), channels=self.channels)
        self.check_alike(data, run_name)
        return data

    def with_statistics_of(self, data: Images, size: int | None) -> Self:
        new = describe(data, size or self.size)
        return replace(
            self, size=new.size, mean=new.mean, std=new.std, values=new.values, low=new.low, high=new.high
        )


def describe(data: Images, size: int | None) -> ImageDescription:
    """Side of a view and channel statistics, from a sample."""
    rows = data.sample(0, 0, SAMPLE)
    sample = [data.load(part) for part in np.array_split(rows, 16) if len(part)]
    spans: dict[str, Any] = {}
    if data.values == "uint8":
        mean, std = statistics(sample)
    else:
        measured, mean, std = wide_statistics(sample)
        spans = {"low": tuple(measured.low.tolist()), "high": tuple(measured.high.tolist())}
    side = int(np.median(np.concatenate([pixels.size.min(axis=1) for pixels in sample])))
    view = size or max(8, min(MAX_DEFAULT_SIZE, side))
    return ImageDescription(
        data.fingerprint, len(data), data.channels, view, mean, std, values=data.values, **spans
    )


class ImageReader(AbstractReader):
    description_type = ImageDescription
    suffixes = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
    unread = UNREAD
    converted_to = "PNG, JPEG or TIFF"
    files = "images"
    columns = ("image", "img", "jpg", "jpeg", "png", "webp", "tif", "tiff")
    feature = "Image"
    array_key = "images"
    array_axes = (3, 4)
    # height, width, channels, bits; sizes are known after decoding, the rest is that of the first image
    default_facts = (0, 0, 3, 8)
    fact_ranges = (range(1, MAX_PIXELS + 1),) * 2 + (range(1, MAX_CHANNELS + 1), tuple(VALUE_TYPES))
    encodings = ("png", "jpeg", "raw")
    named_examples = named.EXAMPLES

    def find_named(self, spec: str) -> NamedData | None:
        return named.find_named(spec)

    def folder_hint(self, folder: str, names: Sequence[str]) -> str:
        return f"Files like those of MNIST are read as idx:{folder}." if any(map(is_images, names)) else ""

    def tensor_array(self, tensor: Tensor) -> np.ndarray:
        """torch has channels before height and width."""
        return super().tensor_array(tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor)

    def options(self, *, image_size: int | None = None, **values: Any) -> Mapping[str, Any]:
        if image_size is not None:
            check_whole("image_size", image_size, 1)
        return {"image_size": image_size, **super().options(**values)}

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        return {"image_size": size or MAX_DEFAULT_SIZE}

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        return _decoded(decode(raw, options["image_size"]))

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        if isinstance(item, Image.Image):
            grey = item.mode == "L" and "transparency" not in item.info
            deep = item.mode in ("I", "F") or item.mode.startswith("I;16")
            pixels = np.asarray(item if grey or deep else opaque(item))
            if item.mode == "I":  # whole numbers of 32 bits
                pixels = pixels.astype(np.float32)
        elif isinstance(item, Tensor) and item.ndim == 3:
            pixels = item.detach().cpu().permute(1, 2, 0).numpy()
        elif isinstance(item, Tensor | np.ndarray) and item.ndim in (2, 3):
            pixels = np.asarray(item)
        else:
            return None
        try:
            picture = _values_of(_four_axes(pixels[None], "item"), "item")[0]
        except UserError as problem:
            raise Unusable(str(problem)) from problem
        return _decoded(shrunk(picture, options["image_size"]))

    def encode(self, content: DecodedPicture, encoding: str, quality: int) -> bytes:
        return encode(content, encoding, quality)

    def first_content(self, loaded: Pixels) -> DecodedPicture:
        height, width = loaded.size[0]
        return loaded.data[0, :height, :width]

    def outliers(self, facts: Sequence[Any]) -> dict[int, str]:
        return unlike_most(
            [(fact[2], fact[3]) for fact in facts],
            lambda kind, usual: (
                f"{_kind(*kind)}, where most images have {_kind(*usual)}; convert the ones or the others"
            ),
        )

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Images:
        facts, contents = collection.facts, collection.contents
        sizes = np.asarray(facts)[:, :2].astype(np.int32)
        store: Store = RowStore(collection.content_at, padded)
        if contents is not None and len({tuple(fact) for fact in facts}) == 1:
            array = np.empty((len(contents), *facts[0][:3]), dtype=contents[0].dtype)
            # each picture is freed once copied, so that memory is not used twice
            for row in range(len(array))[::-1]:
                array[row] = contents.pop()
            store = StackedStore(array)
        values = VALUE_TYPES[int(facts[0][3])].name
        channels = int(facts[0][2])
        return Images(**collection.common(), store=store, channels=channels, values=values, sizes=sizes)

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> Images:
        """An array (n, h, w), (n, h, w, c) or (n, c, h, w) of uint8, uint16 or floats as a data set.

        Grey and colours as floats in [0, 1] become bytes; other floats keep single precision. The array itself
        is used when it keeps its type and is not shrunk: do not write to it afterwards.
        """
        pixels = _values_of(_four_axes(arrays.array, name), name)
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        paths = arrays.paths or [f"{name}#{row}" for row in range(len(pixels))]
        without = "no labels were given with the array"
        common = set_fields(name, self.files, arrays.labelled, paths, digest, without)
        height, width = pixels.shape[1:3]
        if shrunk_size(width, height, options["image_size"]) != (width, height):
            pixels = np.stack([shrunk(picture, options["image_size"]) for picture in pixels])
        sizes = np.tile(np.array(pixels.shape[1:3], dtype=np.int32), (len(pixels), 1))
        store, values = StackedStore(pixels), pixels.dtype.name
        return Images(**common, store=store, channels=pixels.shape[3], values=values, sizes=sizes)

    def describe(self, data: Images, size: int | None) -> ImageDescription:
        return describe(data, size)

    def example_description(self, instances: int) -> ImageDescription:
        return ImageDescription("", instances, 3, 32, (0.5,) * 3, (0.25,) * 3)


def _decoded(pixels: DecodedPicture) -> Decoded:
    return Decoded(pixels, (*pixels.shape, 8 * pixels.dtype.itemsize), pixels.nbytes)


def _kind(channels: int, bits: int) -> str:
    """`3 bands of 16 bits`."""
    return (
        f"{channels} {'band' if channels == 1 else 'bands'} of {'floats' if bits == 32 else f'{bits} bits'}"
    )


def _four_axes(array: np.ndarray, name: str) -> np.ndarray:
    four = array[..., None] if array.ndim == 3 else array
    expected = "expected (n, h, w) or (n, h, w, channels) with nothing empty"
    if four.ndim != 4 or 0 in four.shape:
        raise UserError(f"data {name!r}: images have shape {array.shape}; {expected}.")
    # channels come first where a picture would have at most four rows of pixels with more than four channels, or
    # where the last two sides are equal and longer
    if four.shape[1] <= 4 < four.shape[3] or (4 < four.shape[1] < four.shape[2] == four.shape[3]):
        four = four.transpose(0, 2, 3, 1)
    channels = four.shape[3]
    if channels > MAX_CHANNELS or (channels > MAX_UNCLEAR_CHANNELS and channels >= min(four.shape[1:3])):
        raise UserError(
            f"data {name!r}: images have shape {array.shape}; {expected} and at most {MAX_UNCLEAR_CHANNELS} "
            f"channels, or up to {MAX_CHANNELS} of larger images."
        )
    return four


def _values_of(array: np.ndarray, name: str) -> Shaped[np.ndarray, "image height width channel"]:
    """uint8 and uint16 as they are; floats as bytes, where they are grey or colours in [0, 1], or float32."""
    if array.dtype in (np.uint8, np.uint16):
        return array
    if array.dtype.kind != "f":
        raise UserError(f"data {name!r}: images are {array.dtype}; expected uint8, uint16 or floats.")
    low, high = float(array.min()), float(array.max())
    if low >= 0 and high <= 1 and array.shape[3] in (1, 3):
        return np.rint(array * 255).astype(np.uint8)
    largest = float(np.finfo(np.float32).max)
    if not (-largest <= low and high <= largest):  # also when either is not a number
        raise UserError(
            f"data {name!r}: float images range from {low:g} to {high:g}; expected finite numbers in single "
            "precision."
        )
    return array.astype(np.float32, copy=False)
