"""A user's own augmentation: functions of one picture, as torchvision, albumentations and plain Python have
them.

    nf.pretrain("simclr", "photos/", out="runs/a", views=v2.Compose([v2.RandomResizedCrop(64), …]))

A function gets a PIL image, a tensor (channel, height, width), or the keyword `image` with an array (height,
width, channel), whichever it takes, and returns an image, an array or a tensor. Images of 16 bits or floats
are passed as floats in [0, 1], in a tensor or an array. Bytes, and numbers in [0, 1],
are normalised as in evaluation; a tensor with other numbers is used as it is.

Such functions draw from the generators of torch, numpy and Python, which are global. They are seeded before
each call with (seed, epoch, index, view), and calls are made one at a time, in the thread that trains.
"""

import copy
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from PIL import Image
from torch import Tensor

from nearfar.core.abstract import AbstractViews
from nearfar.core.randomness import uniforms
from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.image.views.pipeline import PlainImages

PictureArray = Shaped[np.ndarray, "height width channel"]  # uint8; of wide images floats
OUTSIDE = 1e-3  # beyond [0, 1], from which numbers count as normalised


@runtime_checkable
class OwnGenerator(Protocol):
    """A transform with a generator of its own, as albumentations' have."""

    def set_random_seed(self, seed: int, /) -> Any: ...


def _as_image(picture: PictureArray) -> Image.Image:
    return Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture)


def _as_bytes(picture: PictureArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))


# how a picture is passed, in the order in which it is tried
STYLES: tuple[Callable[[Callable[..., Any], PictureArray], Any], ...] = (
    lambda function, picture: function(_as_image(picture)),
    lambda function, picture: function(_as_bytes(picture)),
    lambda function, picture: function(_as_bytes(picture).float() / 255),
    lambda function, picture: function(image=picture)["image"],
)


WIDE_STYLES: tuple[Callable[[Callable[..., Any], PictureArray], Any], ...] = (
    lambda function, picture: function(_as_bytes(picture)),
    lambda function, picture: function(image=picture)["image"],
)


class PictureFunction:
    """One function, called in the way that it takes a picture."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # a seed stored in the user's object would make it another one when the run is resumed
        self.function = copy.deepcopy(function) if isinstance(function, OwnGenerator) else function
        self._style: Callable[[Callable[..., Any], PictureArray], Any] | None = None

    def __call__(self, picture: PictureArray, seed: int) -> Float[Tensor, "channel height width"]:
        if picture.dtype != np.uint8:
            picture = picture.astype(np.float32, copy=False)
        if self._style is None:
            self._style = self._find_style(picture, seed)
        self._seed(seed)
        return _as_tensor(self._style(self.function, picture))

    def _seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        if isinstance(self.function, OwnGenerator):
            self.function.set_random_seed(seed)

    def _find_style(
        self, picture: PictureArray, seed: int
    ) -> Callable[[Callable[..., Any], PictureArray], Any]:
        problems: list[Exception] = []
        for style in STYLES if picture.dtype == np.uint8 else WIDE_STYLES:
            try:
                self._seed(seed)
                _as_tensor(style(self.function, picture))
                return style
            except Exception as problem:  # a user's function may raise anything
                problems.append(problem)
        raise UserError(
            f"views: the function failed on a picture ({type(problems[0]).__name__}: {problems[0]}); expected "
            "a function of a PIL image, of a tensor (channel, height, width), or of image=array, that returns "
            "an image, an array or a tensor"
        )


def _as_tensor(result: Any) -> Float[Tensor, "channel height width"]:
    """What a function returned, as floats; bytes are divided by 255."""
    if isinstance(result, Image.Image):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        array = result[..., None] if result.ndim == 2 else result
        result = torch.from_numpy(array.transpose(2, 0, 1).copy())  # it may be read-only
    if not isinstance(result, Tensor):
        several = "; pass several views as a list of functions" if isinstance(result, (list, tuple)) else ""
        raise TypeError(f"it returned {type(result).__name__}{several}")
    tensor = result.detach().as_subclass(Tensor)
    if tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.ndim != 3:
        raise TypeError(f"it returned a tensor of shape {tuple(tensor.shape)}")
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()


@contextmanager
def _global_generators() -> Iterator[None]:
    """Restores the global generators."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@dataclass(frozen=True)
class PictureFunctions:
    """One function for all views, or one for each."""

    functions: tuple[Callable[..., Any], ...]

    @property
    def count(self) -> int | None:
        """The number of views; None: as many as the recipe has."""
        return len(self.functions) if len(self.functions) > 1 else None

    def side(self, picture: PictureArray) -> int | None:
        """The side of a view of this picture; None where it is not square."""
        with _global_generators():
            height, width = PictureFunction(self.functions[0])(picture, 0).shape[1:]
        return height if height == width else None

    def training(self, count: int, description: Any, device: torch.device) -> "FunctionViews":
        functions = [PictureFunction(self.functions[min(k, len(self.functions) - 1)]) for k in range(count)]
        return FunctionViews(functions, description, device)


def as_picture_functions(views: Any) -> PictureFunctions | None:
    """Functions of one picture: one, or a list with one for each view."""
    functions = tuple(views) if isinstance(views, Sequence) else (views,)
    return PictureFunctions(functions) if functions and all(map(callable, functions)) else None


class FunctionViews(AbstractViews):
    """Views by functions of one picture: a function of (seed, epoch, index, view) and the picture."""

    thread_safe = False

    def __init__(self, functions: Sequence[PictureFunction], description: Any, device: torch.device) -> None:
        self.functions, self.count = tuple(functions), len(functions)
        self._spans = description.spans()
        self._plain_view = PlainImages(
            description.size, description.mean, description.std, device, spans=self._spans
        )
        self._shape = (description.channels, description.size, description.size)
        self._statistics = tuple(
            torch.tensor(values)[:, None, None] for values in (description.mean, description.std)
        )
        self._normalised: bool | None = None  # by the functions; decided by the first pictures
        self._lock = threading.Lock()

    def __call__(
        self, pixels: Pixels, seed: int, epoch: int, index: Int[np.ndarray, "image"]
    ) -> tuple[Float[Tensor, "image channel size size"], ...]:
        with self._lock, _global_generators():
            return tuple(
                self._view(function, pixels, uniforms(seed, epoch, index, view, 1, "function")[:, 0])
                for view, function in enumerate(self.functions)
            )

    def _view(self, function: PictureFunction, pixels: Pixels, draws: np.ndarray) -> Tensor:
        values = pixels.data if self._spans is None else self._spans.to_unit(pixels.data)
        pictures = [data[:height, :width] for data, (height, width) in zip(values, pixels.size, strict=True)]
        seeds = (draws * 2**32).astype(np.int64).tolist()
        tensors = [function(picture, seed) for picture, seed in zip(pictures, seeds, strict=True)]
        shape = next((tuple(t.shape) for t in tensors if tuple(t.shape) != self._shape), None)
        if shape is not None:
            channels, size, _ = self._shape
            raise UserError(
                f"views returned a picture of shape {shape} (channel, height, width); expected {self._shape}: "
                f"return {channels} channels, and end with a crop or resize to image_size={size}, or set "
                "image_size to the side that your views have"
            )
        view = torch.stack(tensors) if tensors else torch.empty(0, *self._shape)
        if self._normalised is None:
            self._normalised = bool(((view < -OUTSIDE) | (view > 1 + OUTSIDE)).any())
        mean, std = self._statistics
        return view if self._normalised else (view - mean) / std

    def unnormalise(self, view: Tensor) -> UInt8[np.ndarray, "image size size channel"]:
        """A view as bytes for people to look at."""
        return self._plain_view.unnormalise(view)
