"""What augmentation does to pictures, in numbers a person can read: brightness, contrast, colour, and how much of the picture a view shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

from nearfar.core.types import Pixels
from nearfar.modalities.image.views import Views, draw

Picture = Float[np.ndarray, "height width channel"]
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class ViewMeasure:
    """A number for each instance as it is, and for each of its views."""

    title: str
    note: str
    before: Float[np.ndarray, "instance"]
    after: Float[np.ndarray, "view"]


def brightness(picture: Picture) -> float:
    return float(_grey(picture).mean())


def contrast(picture: Picture) -> float:
    return float(_grey(picture).std())


def colour(picture: Picture) -> float:
    """The mean over pixels of the largest of red, green and blue minus the smallest."""
    return float((picture.max(axis=2) - picture.min(axis=2)).mean())


MEASURES: tuple[tuple[str, str, Callable[[Picture], float]], ...] = (
    ("Brightness", "mean of a picture's grey levels, 0 black, 1 white", brightness),
    ("Contrast", "standard deviation of a picture's grey levels", contrast),
    ("Colour", "largest minus smallest of red, green and blue, mean over a picture; 0 is grey", colour),
)


def picture_measures(
    loaded: Pixels, views: Views, seed: int, index: Int[np.ndarray, "image"]
) -> list[ViewMeasure]:
    """Of images and of their views in the first epoch, drawn as training drew them."""
    before = [_unit(data[:h, :w]) for data, (h, w) in zip(loaded.data, loaded.size, strict=True)]
    shown = views(loaded, seed, 0, index)
    found = [_shares(loaded, views, seed, index)]
    if any(view.shape[1] != loaded.data.shape[3] for view in shown):
        return found  # views that split the channels have no brightness of their own
    after = [_unit(picture) for view in shown for picture in views.unnormalise(view)]
    colours = loaded.data.shape[3] == 3
    named = MEASURES if colours else MEASURES[:-1]
    found += [ViewMeasure(title, note, _each(of, before), _each(of, after)) for title, note, of in named]
    return found


def _shares(loaded: Pixels, views: Views, seed: int, index: Int[np.ndarray, "image"]) -> ViewMeasure:
    """The crops' areas as shares of the images'."""
    area = loaded.size.astype(np.float64).prod(axis=1)
    crops = [
        draw(augment, loaded.size, seed, 0, index, 0 if views.aligned else view).box[:, 2:].prod(axis=1)
        / area
        for view, augment in enumerate(views.pipelines)
    ]
    note = "the crop's area as a share of the image's"
    return ViewMeasure("Share of the image", note, np.ones(len(area)), np.concatenate(crops))


def _unit(picture: UInt8[np.ndarray, "height width channel"]) -> Picture:
    return picture.astype(np.float64) / 255


def _grey(picture: Picture) -> Float[np.ndarray, "height width"]:
    return picture @ LUMA if picture.shape[2] == 3 else picture.mean(axis=2)


def _each(of: Callable[[Picture], float], pictures: Sequence[Picture]) -> Float[np.ndarray, "picture"]:
    return np.array([of(picture) for picture in pictures])
