"""Images: decoded, cropped, coloured; seen by convolutional networks; compared with their raw pixels."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional

from nearfar.config.schema import convert
from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.base import (
    Arrays,
    Choice,
    Decoded,
    Description,
    Features,
    Found,
    MakeViews,
    Modality,
    PlainView,
)
from nearfar.modalities.dataset import Instances, Unusable
from nearfar.modalities.image.decode import decode, encode, shrunk, shrunk_size
from nearfar.modalities.image.measured import ViewMeasure, picture_measures
from nearfar.modalities.image.sets import Encoded, Images, Ragged, Recoloured, Stacked
from nearfar.modalities.image.views import (
    LAB_CHANNELS,
    PIPELINES,
    Colours,
    Plain,
    Views,
    pipelines,
    statistics,
)
from nearfar.modalities.image.views.pipeline import MARGIN
from nearfar.modalities.showing import coloured, plain_views
from nearfar.parts.encoders import BACKBONES, InputSpec, check_backbone, pictured

LARGEST = 224  # side of a view when the settings name none and the pictures are larger
SAMPLE = 4096  # images that statistics are taken from
PIXEL_SIDE = 32  # raw pixels are compared at this size at most: beyond it they only get slower, not better
TOGETHER = ("count", "symmetric", "aligned", "colours")  # of the views' section, what is not the pipeline's


@dataclass(frozen=True)
class ImageDescription(Description):
    channels: int
    size: int  # side of a view
    mean: tuple[float, ...]  # of each channel, in [0, 1]
    std: tuple[float, ...]

    def resized(self, size: int | None) -> Self:
        return replace(self, size=size or self.size)


LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601


class ImageModality(Modality):
    name = "image"
    unit = "images"
    files = "images"
    holds = "pictures"
    example = "photos/"
    suffixes = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
    columns = ("image", "img", "jpg", "jpeg", "png", "webp")
    key = "images"
    axes = (3, 4)
    sized = True
    unscanned = (0, 0, 3)  # what `decode` gives has three channels; sizes are seen when it is decoded
    encodings = ("png", "jpeg", "raw")
    pipelines: ClassVar[tuple[str, ...]] = tuple(PIPELINES)
    default_views = "simclr"
    networks: ClassVar[tuple[str, ...]] = tuple(BACKBONES)
    default_network = "resnet18"
    small_network = "resnet8-w16"
    smallest_network = "resnet8-w16"
    baseline_titles: ClassVar[Mapping[str, str]] = {"pixels": "raw pixels"}

    def options(self, *, image_size: int | None = None, **given: Any) -> Mapping[str, Any]:
        if image_size is not None and image_size < 1:
            raise UserError(f"image_size is {image_size}; expected whole numbers from 1.")
        return {"image_size": image_size, **super().options(**given)}

    def opening(self, views: Choice, size: int | None, known: Description | None) -> dict[str, Any]:
        return {"image_size": size or LARGEST}

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        return _decoded(decode(raw, options["image_size"]))

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        if isinstance(item, Image.Image):
            pixels = np.asarray(item if item.mode in ("L", "RGB") else item.convert("RGB"))
        elif isinstance(item, Tensor) and item.ndim == 3:
            pixels = item.detach().cpu().permute(1, 2, 0).numpy()
        elif isinstance(item, Tensor | np.ndarray) and item.ndim in (2, 3):
            pixels = np.asarray(item)
        else:
            return None
        try:
            whole = _bytes_of(_four_axes(pixels[None], "item"), "item")[0]
        except UserError as problem:
            raise Unusable(str(problem)) from problem
        return _decoded(shrunk(whole, options["image_size"]))

    def encode(
        self, content: UInt8[np.ndarray, "height width channel"], encoding: str, quality: int
    ) -> bytes:
        return encode(content, encoding, quality)

    def instance(self, loaded: Pixels) -> UInt8[np.ndarray, "height width channel"]:
        height, width = loaded.size[0]
        return loaded.data[0, :height, :width]

    def odd(self, facts: Sequence[Any]) -> dict[int, str]:
        channels = [fact[2] for fact in facts]
        usual = max(sorted(set(channels)), key=channels.count, default=3)
        return {
            place: f"{count} channels, where most have {usual}"
            for place, count in enumerate(channels)
            if count != usual
        }

    def collect(self, found: Found, options: Mapping[str, Any]) -> Images:
        sizes = np.asarray(found.facts)[:, :2].astype(np.int32)
        channels = int(found.facts[0][2])
        store: Encoded | Ragged | Stacked
        if found.held is None:
            store = Encoded(found.read)
        elif len({tuple(fact) for fact in found.facts}) > 1:
            store = Ragged(found.held)
        else:
            array = np.empty((len(found.held), *found.facts[0]), dtype=np.uint8)
            # each picture is given up once copied, so that memory is not held twice
            for row in range(len(array))[::-1]:
                array[row] = found.held.pop()
            store = Stacked(array)
        return Images(**found.common(), store=store, channels=channels, sizes=sizes)

    def from_array(self, given: Arrays, name: str, options: Mapping[str, Any]) -> Images:
        """An array (n, h, w) or (n, h, w, c), uint8 or float in [0, 1], as a data set.

        The array itself is used when it is uint8 and no shrinking is asked for: do not write to it afterwards.
        """
        array, labelled, paths = given.array, given.labelled, given.paths
        pixels = _bytes_of(_four_axes(array, name), name)
        labels, classes = labelled
        if labels is not None and len(labels) != len(pixels):
            raise UserError(
                f"data {name!r}: {len(pixels)} images but {len(labels)} labels; expected one label for each image."
            )
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
        pixels = _shrunk_all(pixels, options["image_size"])
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
            unlabelled="" if labels is not None else "no labels were given with the array",
        )

    def describe(self, data: Images, size: int | None) -> ImageDescription:
        """Side of a view and channel statistics, from a sample."""
        rows = data.sample(0, 0, SAMPLE)
        sample = [data.load(part) for part in np.array_split(rows, 16) if len(part)]
        mean, std = statistics(sample)
        side = int(np.median(np.concatenate([pixels.size.min(axis=1) for pixels in sample])))
        view = size or max(8, min(LARGEST, side))
        return ImageDescription(data.fingerprint, len(data), data.channels, view, mean, std)

    def typical(self, instances: int) -> ImageDescription:
        return ImageDescription("", instances, 3, 32, (0.5,) * 3, (0.25,) * 3)

    def description(self, plain: Mapping[str, Any]) -> ImageDescription:
        return ImageDescription.from_plain(plain)

    def check_alike(self, data: Images, known: ImageDescription, where: str) -> None:
        if data.channels != known.channels:
            raise UserError(
                f"{data.name} has {data.channels} channels but {where} was trained on {known.channels}"
            )

    def adapted(self, data: Images, known: ImageDescription, where: str) -> Images:
        """Grey pictures for a network of colour are grey in all three channels; coloured ones for a grey network are their luminance."""
        if {data.channels, known.channels} == {1, 3}:
            return replace(data, store=Recoloured(data.store, known.channels), channels=known.channels)
        self.check_alike(data, known, where)
        return data

    def transferred(self, known: ImageDescription, data: Images, size: int | None) -> ImageDescription:
        theirs = self.describe(data, size or known.size)
        return replace(known, size=theirs.size, mean=theirs.mean, std=theirs.std)

    def translated(
        self, known: ImageDescription, theirs: ImageDescription, where: str
    ) -> Callable[[Tensor], Tensor]:
        """Grey for colour and back, resized, with their mean and deviation in place of ours."""
        if known.channels != theirs.channels and {known.channels, theirs.channels} != {1, 3}:
            raise UserError(
                f"{where} takes {theirs.channels} channels, but the pictures have {known.channels}"
            )

        def scale(numbers: tuple[float, ...], view: Tensor) -> Tensor:
            return torch.tensor(numbers, device=view.device, dtype=view.dtype)[:, None, None]

        same = (known.channels, known.mean, known.std) == (theirs.channels, theirs.mean, theirs.std)

        def translate(view: Tensor) -> Tensor:
            if not same:
                view = view * scale(known.std, view) + scale(known.mean, view)
                if known.channels < theirs.channels:
                    view = view.expand(-1, theirs.channels, -1, -1)
                elif known.channels > theirs.channels:
                    view = (view * scale(LUMINANCE, view)).sum(dim=1, keepdim=True)
                view = (view - scale(theirs.mean, view)) / scale(theirs.std, view)
            if view.shape[-1] != theirs.size:
                view = functional.interpolate(
                    view, (theirs.size, theirs.size), mode="bilinear", antialias=True, align_corners=False
                )
            return view

        return translate

    def check_views(self, choice: Choice) -> dict[str, Any]:
        """A pipeline's name, how many views, how they are paired, and changes to the pipeline."""
        count = choice.get("count", 2)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 16:
            raise UserError(f"views.count was {count!r}; expected a whole number from 1 to 16")
        together = {
            key: choice.get(key, default) for key, default in (("symmetric", True), ("aligned", False))
        }
        for key, value in together.items():
            if not isinstance(value, bool):
                raise UserError(f"views.{key} was {value!r}; expected true or false")
        colours = convert(choice.get("colours", "rgb"), Colours, "views.colours")
        changes = augmentation(choice)
        pipelines(choice["name"], 32, changes)
        return {"name": choice["name"], "count": count, **together, "colours": colours, **changes}

    def conflict(self, choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        views, role = choices["views"], choices["encoders"]["name"]
        own = parts["encoders"].network_per_view
        if views["colours"] != "lab" or (own and views["count"] in LAB_CHANNELS):
            return None
        return (
            f"views.colours was lab with encoders={role} and views.count={views['count']}: its three channels are shown as luminance and "
            "colour in 2 views or one by one in 3, and views with other channels need networks of their own; use encoders=per-view "
            "views.count=2, or 3"
        )

    def views(self, choice: Choice, known: ImageDescription, device: torch.device) -> Views:
        first, second = pipelines(choice["name"], known.size, augmentation(choice))
        # beyond two, views are more draws of the second pipeline
        together = [first, *[second] * (choice["count"] - 1)]
        seen = (known.size, known.mean, known.std, device)
        return Views(together, *seen, aligned=choice["aligned"], colours=choice["colours"])

    def plain(self, choice: Choice, known: ImageDescription, device: torch.device) -> PlainView:
        return Plain(known.size, known.mean, known.std, device, choice["colours"])

    def check_network(self, name: str) -> str:
        return check_backbone(name)

    def inputs(self, network: str, choice: Choice, known: ImageDescription) -> InputSpec:
        channels = seen_channels(choice, known.channels)
        return pictured(network, channels, known.size, {"instances": known.instances})

    def portable(self, choice: Choice, known: ImageDescription) -> tuple[dict[str, Any], str]:
        from nearfar.modalities.image.views.portable import source

        seen = {
            "size": known.size,
            "mean": list(known.mean),
            "std": list(known.std),
            "colours": choice["colours"],
        }
        steps = [
            f"a picture whose shorter side is above {2 * known.size} pixels is shrunk to that while it is decoded (bicubic)",
            "bytes are divided by 255",
            f"the shorter side is resized to {known.size}, or, where it has {int(known.size * MARGIN)} or more, to that (bilinear, antialiased)",
            f"the central {known.size} x {known.size} pixels are kept",
            "sRGB to scaled CIELAB (load.py has it)"
            if choice["colours"] == "lab"
            else "mean is subtracted and std divided by, channel by channel",
        ]
        return {"channels": known.channels, **seen, "steps": steps}, source(choice["colours"])

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        return {"pixels": lambda images: pixels_features(images, plain)}

    def pictures(self, loaded: Pixels, known: ImageDescription) -> list[Image.Image]:
        """Each image without its padding."""
        return [
            coloured(data[:height, :width])
            for data, (height, width) in zip(loaded.data, loaded.size, strict=True)
        ]

    def view_pictures(self, views: Views, shown: Tensor, known: ImageDescription) -> list[Image.Image]:
        return [coloured(image) for image in np.asarray(views.unnormalise(shown))]

    def view_measures(self, loaded: Pixels, views: Any, seed: int, index: np.ndarray) -> list[ViewMeasure]:
        return picture_measures(loaded, views, seed, index) if isinstance(views, Views) else []


def augmentation(views: Choice) -> dict[str, Any]:
    """What the views' section changes of its pipeline."""
    return {key: value for key, value in views.items() if key != "name" and key not in TOGETHER}


def seen_channels(views: Choice, channels: int) -> tuple[int, ...]:
    """How many channels each view shows of images that have so many."""
    if views["colours"] == "rgb":
        return (channels,) * views["count"]
    if channels != 3:
        raise UserError(
            f"views.colours was {views['colours']} but the images have {channels} channels; it needs colour images"
        )
    return LAB_CHANNELS[views["count"]]


def pixels_features(
    images: Instances, plain: MakeViews, *, batch_size: int = 512, workers: int = 2
) -> Float[Tensor, "image dim"]:
    """The plain view itself as a feature vector: what there was before anything was learned.

    Views larger than 32 × 32 are averaged down to that, which does raw pixels no harm: their neighbours and
    linear classifiers see little more than coarse colour.
    """
    parts = []
    for view in plain_views(images, plain, batch_size, workers):
        side = min(PIXEL_SIDE, view.shape[-1])
        parts.append(functional.adaptive_avg_pool2d(view, side).flatten(1).float().cpu())
    return torch.cat(parts)


def _decoded(pixels: UInt8[np.ndarray, "height width channel"]) -> Decoded:
    return Decoded(pixels, pixels.shape, pixels.nbytes)


def _four_axes(array: np.ndarray, name: str) -> np.ndarray:
    four = array[..., None] if array.ndim == 3 else array
    expected = "expected (n, h, w) or (n, h, w, channels) with nothing empty"
    if four.ndim != 4 or 0 in four.shape:
        raise UserError(f"data {name!r}: images have shape {array.shape}; {expected}.")
    first, last = four.shape[1], four.shape[3]
    # a picture of four rows at most whose pixels have more than four channels is one with its channels first
    turned = first <= 4 < last
    if turned or last > 16:
        hint = ", and these look channels-first: images.transpose(0, 2, 3, 1) turns them" if turned else ""
        raise UserError(
            f"data {name!r}: images have shape {array.shape}; {expected} and at most 16 channels{hint}."
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


def _shrunk_all(pixels: np.ndarray, image_size: int | None) -> np.ndarray:
    height, width = pixels.shape[1:3]
    if shrunk_size(width, height, image_size) == (width, height):
        return pixels
    return np.stack([shrunk(picture, image_size) for picture in pixels])


IMAGE = ImageModality()
