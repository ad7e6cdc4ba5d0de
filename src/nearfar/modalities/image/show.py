"""Images in reports: pictures, raw pixels as a baseline, and what augmentation changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional

from nearfar.core.types import Pixels
from nearfar.modalities.base import AbstractPresenter, Features, MakeViews
from nearfar.modalities.dataset import Instances
from nearfar.modalities.image.views import Views, draw
from nearfar.modalities.image.views.pipeline import stretched
from nearfar.modalities.showing import coloured, plain_views

ShownPicture = Float[np.ndarray, "height width channel"]
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)
PIXEL_SIDE = 32  # raw pixels are compared at this size at most: larger ones are slower and no better


class ImagePresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"pixels": "raw pixels"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {"pixels": lambda images: pixels_features(images, plain_view)}

    def pictures(self, loaded: Pixels, description: Any) -> list[Image.Image]:
        """Each image without its padding; of many bands the first three."""
        data, spans = loaded.data, description.spans()
        if spans is not None:
            data = stretched((spans.to_unit(data) - np.array(description.mean)) / np.array(description.std))
        return [
            coloured(image[:height, :width]) for image, (height, width) in zip(data, loaded.size, strict=True)
        ]

    def view_pictures(self, views: Views, view: Tensor, description: Any) -> list[Image.Image]:
        return [coloured(image) for image in np.asarray(views.unnormalise(view))]

    def view_measures(self, loaded: Pixels, views: Any, seed: int, index: np.ndarray) -> list["ViewMeasure"]:
        return picture_measures(loaded, views, seed, index) if isinstance(views, Views) else []


def pixels_features(
    images: Instances, plain_view: MakeViews, *, batch_size: int = 512, workers: int = 2
) -> Float[Tensor, "image dim"]:
    """The plain view as a feature vector; views larger than 32 × 32 are averaged down to that size."""
    parts = []
    for view in plain_views(images, plain_view, batch_size, workers):
        side = min(PIXEL_SIDE, view.shape[-1])
        parts.append(functional.adaptive_avg_pool2d(view, side).flatten(1).float().cpu())
    return torch.cat(parts)


@dataclass(frozen=True)
class ViewMeasure:
    """A number for each instance as it is, and for each of its views."""

    title: str
    note: str
    originals: Float[np.ndarray, "instance"]
    views: Float[np.ndarray, "view"]


def brightness(picture: ShownPicture) -> float:
    return float(_grey(picture).mean())


def contrast(picture: ShownPicture) -> float:
    return float(_grey(picture).std())


def colour(picture: ShownPicture) -> float:
    """The mean over pixels of the largest of red, green and blue minus the smallest."""
    return float((picture.max(axis=2) - picture.min(axis=2)).mean())


MEASURES: tuple[tuple[str, str, Callable[[ShownPicture], float]], ...] = (
    ("Brightness", "mean of a picture's grey levels, 0 black, 1 white", brightness),
    ("Contrast", "standard deviation of a picture's grey levels", contrast),
    ("Colour", "largest minus smallest of red, green and blue, mean over a picture; 0 is grey", colour),
)


def picture_measures(
    loaded: Pixels, views: Views, seed: int, index: Int[np.ndarray, "image"]
) -> list[ViewMeasure]:
    """Measures of images and of their views in the first epoch of training."""
    measures = [_crop_areas(loaded, views, seed, index)]
    if loaded.data.dtype != np.uint8:
        return measures  # values without a black and a white
    made_views = views(loaded, seed, 0, index)
    if any(view.shape[1] != loaded.data.shape[3] for view in made_views):
        return measures  # views that split the channels have no brightness
    originals = [_unit(data[:h, :w]) for data, (h, w) in zip(loaded.data, loaded.size, strict=True)]
    changed = [_unit(picture) for view in made_views for picture in views.unnormalise(view)]
    for title, note, measure in MEASURES if loaded.data.shape[3] == 3 else MEASURES[:-1]:
        values = [np.array([measure(picture) for picture in pictures]) for pictures in (originals, changed)]
        measures.append(ViewMeasure(title, note, *values))
    return measures


def _crop_areas(loaded: Pixels, views: Views, seed: int, index: Int[np.ndarray, "image"]) -> ViewMeasure:
    """The crops' areas as shares of the images'."""
    area = loaded.size.astype(np.float64).prod(axis=1)
    crops = [
        draw(augment, loaded.size, seed, 0, index, 0 if views.aligned else view).box[:, 2:].prod(axis=1)
        / area
        for view, augment in enumerate(views.pipelines)
    ]
    note = "the crop's area as a share of the image's"
    return ViewMeasure("Share of the image", note, np.ones(len(area)), np.concatenate(crops))


def _unit(picture: UInt8[np.ndarray, "height width channel"]) -> ShownPicture:
    return picture.astype(np.float64) / 255


def _grey(picture: ShownPicture) -> Float[np.ndarray, "height width"]:
    return picture @ LUMA if picture.shape[2] == 3 else picture.mean(axis=2)
