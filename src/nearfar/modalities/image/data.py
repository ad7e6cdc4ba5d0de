"""Sets of images: readers, the stores of their pixels, and their description."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Int, Int32, UInt8
from PIL import Image
from torch import Tensor

from nearfar.core.types import Pixels
from nearfar.errors import UserError, check_whole
from nearfar.modalities.base import (
    AbstractReader,
    Arrays,
    Choice,
    Collection,
    Decoded,
    Description,
    NamedData,
)
from nearfar.modalities.dataset import DataSet, Store, Unusable
from nearfar.modalities.image import named
from nearfar.modalities.image.decode import MAX_CHANNELS, decode, encode, opaque, shrunk, shrunk_size
from nearfar.modalities.image.idx import is_images
from nearfar.modalities.image.views.pipeline import statistics
from nearfar.modalities.labels import set_fields

MAX_PADDED_BYTES = 2**35  # of a batch
MAX_DEFAULT_SIZE = 224  # side of a view when the settings name none and the pictures are larger
SAMPLE = 4096  # images that statistics are computed from


@dataclass(frozen=True)
class StackedStore:
    """All pictures in one array."""

    array: UInt8[np.ndarray, "image height width channel"]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        sizes = np.tile(np.array(self.array.shape[1:3], dtype=np.int32), (len(rows), 1))
        return Pixels(self.array[rows], sizes)


@dataclass(frozen=True)
class PictureStore:
    """Pictures of different sizes, or too many to stack; `read(row)` returns one."""

    read: Callable[[int], UInt8[np.ndarray, "height width channel"]]

    def take(self, rows: Int[np.ndarray, "image"]) -> Pixels:
        return padded([self.read(int(row)) for row in rows])


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
        weights = np.array([19595, 38470, 7471], dtype=np.uint32)  # of 2^16
        grey = (pixels.data.astype(np.uint32) @ weights + 2**15) >> 16
        return Pixels(grey.astype(np.uint8)[..., None], pixels.size)


def padded(pictures: Sequence[UInt8[np.ndarray, "height width channel"]]) -> Pixels:
    """The pictures in one array, zeros at the bottom and right."""
    size = np.array([picture.shape[:2] for picture in pictures], dtype=np.int32).reshape(-1, 2)
    height, width = size.max(axis=0).tolist() if len(pictures) else (0, 0)
    channels = pictures[0].shape[2] if pictures else 3
    needed = len(pictures) * height * width * channels
    if needed > MAX_PADDED_BYTES:
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
    """An opened set of images: `load` returns `Pixels`."""

    modality: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"
    per_instance: ClassVar[tuple[str, ...]] = (*DataSet.per_instance, "sizes")

    channels: int
    sizes: Int32[np.ndarray, "image 2"]  # (height, width) as `load` returns them


@dataclass(frozen=True)
class ImageDescription(Description):
    channels: int
    size: int  # side of a view, in pixels
    mean: tuple[float, ...]  # of each channel, in [0, 1]
    std: tuple[float, ...]

    def check(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(
                "the checkpoint's description of its data is invalid (mean and std need a number for each "
                "channel)"
            )

    def resized(self, size: int | None) -> Self:
        return replace(self, size=size or self.size)

    def side(self) -> int:
        return self.size

    def check_alike(self, data: Images, run_name: str) -> None:
        if data.channels != self.channels:
            raise UserError(
                f"{data.name} has {data.channels} channels but {run_name} was trained on {self.channels}"
            )

    def convert_channels(self, data: Images, run_name: str) -> Images:
        """Grey repeats its channel for a colour network; colour becomes luminance for a grey one."""
        if {data.channels, self.channels} == {1, 3}:
            return replace(data, store=ConvertedStore(data.store, self.channels), channels=self.channels)
        self.check_alike(data, run_name)
        return data

    def with_statistics_of(self, data: Images, size: int | None) -> Self:
        new = describe(data, size or self.size)
        return replace(self, size=new.size, mean=new.mean, std=new.std)


def describe(data: Images, size: int | None) -> ImageDescription:
    """Side of a view and channel statistics, from a sample."""
    rows = data.sample(0, 0, SAMPLE)
    sample = [data.load(part) for part in np.array_split(rows, 16) if len(part)]
    mean, std = statistics(sample)
    side = int(np.median(np.concatenate([pixels.size.min(axis=1) for pixels in sample])))
    view = size or max(8, min(MAX_DEFAULT_SIZE, side))
    return ImageDescription(data.fingerprint, len(data), data.channels, view, mean, std)


class ImageReader(AbstractReader):
    description_type = ImageDescription
    suffixes = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
    files = "images"
    columns = ("image", "img", "jpg", "jpeg", "png", "webp")
    array_key = "images"
    array_axes = (3, 4)
    default_facts = (0, 0, 3)  # `decode` returns three channels; sizes are known after decoding
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
            pixels = np.asarray(
                item if item.mode == "L" and "transparency" not in item.info else opaque(item)
            )
        elif isinstance(item, Tensor) and item.ndim == 3:
            pixels = item.detach().cpu().permute(1, 2, 0).numpy()
        elif isinstance(item, Tensor | np.ndarray) and item.ndim in (2, 3):
            pixels = np.asarray(item)
        else:
            return None
        try:
            picture = _bytes_of(_four_axes(pixels[None], "item"), "item")[0]
        except UserError as problem:
            raise Unusable(str(problem)) from problem
        return _decoded(shrunk(picture, options["image_size"]))

    def encode(
        self, content: UInt8[np.ndarray, "height width channel"], encoding: str, quality: int
    ) -> bytes:
        return encode(content, encoding, quality)

    def first_content(self, loaded: Pixels) -> UInt8[np.ndarray, "height width channel"]:
        height, width = loaded.size[0]
        return loaded.data[0, :height, :width]

    def outliers(self, facts: Sequence[Any]) -> dict[int, str]:
        channels = [fact[2] for fact in facts]
        usual = max(sorted(set(channels)), key=channels.count, default=3)
        return {
            place: f"{count} channels, where most have {usual}"
            for place, count in enumerate(channels)
            if count != usual
        }

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Images:
        facts, contents = collection.facts, collection.contents
        sizes = np.asarray(facts)[:, :2].astype(np.int32)
        store: PictureStore | StackedStore = PictureStore(collection.read)
        if contents is not None and len({tuple(fact) for fact in facts}) == 1:
            array = np.empty((len(contents), *facts[0]), dtype=np.uint8)
            # each picture is freed once copied, so that memory is not used twice
            for row in range(len(array))[::-1]:
                array[row] = contents.pop()
            store = StackedStore(array)
        return Images(**collection.common(), store=store, channels=int(facts[0][2]), sizes=sizes)

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> Images:
        """An array (n, h, w), (n, h, w, c) or (n, c, h, w), uint8 or float in [0, 1], as a data set.

        The array itself is used when it is uint8 and is not shrunk: do not write to it afterwards.
        """
        pixels = _bytes_of(_four_axes(arrays.array, name), name)
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        paths = arrays.paths or [f"{name}#{row}" for row in range(len(pixels))]
        without = "no labels were given with the array"
        common = set_fields(name, self.files, arrays.labelled, paths, digest, without)
        height, width = pixels.shape[1:3]
        if shrunk_size(width, height, options["image_size"]) != (width, height):
            pixels = np.stack([shrunk(picture, options["image_size"]) for picture in pixels])
        sizes = np.tile(np.array(pixels.shape[1:3], dtype=np.int32), (len(pixels), 1))
        return Images(**common, store=StackedStore(pixels), channels=pixels.shape[3], sizes=sizes)

    def describe(self, data: Images, size: int | None) -> ImageDescription:
        return describe(data, size)

    def example_description(self, instances: int) -> ImageDescription:
        return ImageDescription("", instances, 3, 32, (0.5,) * 3, (0.25,) * 3)


def _decoded(pixels: UInt8[np.ndarray, "height width channel"]) -> Decoded:
    return Decoded(pixels, pixels.shape, pixels.nbytes)


def _four_axes(array: np.ndarray, name: str) -> np.ndarray:
    four = array[..., None] if array.ndim == 3 else array
    expected = "expected (n, h, w) or (n, h, w, channels) with nothing empty"
    if four.ndim != 4 or 0 in four.shape:
        raise UserError(f"data {name!r}: images have shape {array.shape}; {expected}.")
    # a picture of four rows at most whose pixels have more than four channels is one with its channels first
    if four.shape[1] <= 4 < four.shape[3]:
        four = four.transpose(0, 2, 3, 1)
    if four.shape[3] > MAX_CHANNELS:
        raise UserError(
            f"data {name!r}: images have shape {array.shape}; {expected} and at most {MAX_CHANNELS} channels."
        )
    return four


def _bytes_of(array: np.ndarray, name: str) -> UInt8[np.ndarray, "image height width channel"]:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise UserError(f"data {name!r}: images are {array.dtype}; expected uint8 or floats in [0, 1].")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # also when either is not a number
        raise UserError(
            f"data {name!r}: float images range from {low:g} to {high:g}; expected uint8 or floats in [0, 1]."
        )
    return np.rint(array * 255).astype(np.uint8)
