"""The random part of augmentation, drawn apart from the images: parameters = g(seed, epoch, index, view).

Nothing here sees a pixel and nothing in the kernels draws a number. So the two implementations of a pipeline
(compiled for CPUs, batched torch elsewhere) show the same view for the same `Parameters`.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32

from nearfar.core.randomness import uniforms
from nearfar.modalities.image.views.augment import Augment

BRIGHTNESS, CONTRAST, SATURATION, HUE, GREYSCALE = range(5)
NEVER = 2.0  # a solarisation threshold that no pixel reaches

_ATTEMPTS = 10  # as torchvision's RandomResizedCrop
# One random number per decision. The crop's attempts come last: nearly always the first one fits, and the
# others are only then drawn.
(_CROP, _TOP, _LEFT, _FLIP, _JITTER, _FACTORS, _ORDER, _GREY, _BLUR, _SIGMA, _SOLARISE, _TRIES) = (
    0, 1, 2, 3, 4, slice(5, 9), 9, 10, 11, 12, 13, 14,
)  # fmt: skip
_ORDERS = np.array(list(permutations(range(4))), dtype=np.int32)


@dataclass(frozen=True)
class Parameters:
    """What happens to each image of a batch, one row per image."""

    box: Int32[np.ndarray, "image 4"]  # top, left, height, width of the crop in the original
    flip: Bool[np.ndarray, "image"]
    # brightness, contrast, saturation, hue; (1, 1, 1, 0) changes nothing
    factors: Float32[np.ndarray, "image 4"]
    order: Int32[np.ndarray, "image 5"]  # in which the four and GREYSCALE are applied
    greyscale: Bool[np.ndarray, "image"]
    sigma: Float32[np.ndarray, "image"]  # of the blur; 0 = none
    solarise: Float32[np.ndarray, "image"]  # pixels from this value up are inverted; NEVER = none


def draw(
    augment: Augment,
    size: Int[np.ndarray, "image 2"],
    seed: int,
    epoch: int,
    index: Int[np.ndarray, "image"],
    view: int,
) -> Parameters:
    """The parameters of view `view` of the images `index`, whose true sizes are `size`."""
    u = uniforms(seed, epoch, index, view, _TRIES + 2)
    extent = np.array(size, dtype=np.float64)
    height, width, fits = _attempt(augment, extent, u[:, _TRIES], u[:, _TRIES + 1])
    misses = np.flatnonzero(~fits)
    if len(misses):
        second_draws = uniforms(seed, epoch, np.asarray(index)[misses], view, _TRIES + 2 * _ATTEMPTS)
        height[misses], width[misses], fits[misses] = _attempts(augment, extent[misses], second_draws)
    box = _box(augment, extent, height, width, fits & (u[:, _CROP] < augment.crop), u[:, _TOP], u[:, _LEFT])
    return Parameters(
        box=box,
        flip=u[:, _FLIP] < augment.flip,
        factors=_factors(augment, u[:, _JITTER] < augment.jitter, u[:, _FACTORS]),
        order=_order(augment, u[:, _ORDER]),
        greyscale=u[:, _GREY] < augment.greyscale,
        sigma=np.where(u[:, _BLUR] < augment.blur, _between(*augment.blur_sigma, u[:, _SIGMA]), 0.0).astype(
            np.float32
        ),
        solarise=np.where(u[:, _SOLARISE] < augment.solarise, augment.solarise_threshold, NEVER).astype(
            np.float32
        ),
    )


def _between(low: float, high: float, u: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return low + (high - low) * u


def _attempt(
    augment: Augment, extent: Float[np.ndarray, "... 2"], area: np.ndarray, ratio: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One crop per image, area uniform and log-ratio uniform: its height, its width, whether it fits."""
    area = extent[..., 0] * extent[..., 1] * _between(*augment.crop_scale, area)
    low, high = np.log(augment.crop_ratio)
    root = np.exp(0.5 * _between(low, high, ratio))
    side = np.sqrt(area)
    height, width = np.rint(side / root), np.rint(side * root)
    fits = (height > 0) & (width > 0) & (height <= extent[..., 0]) & (width <= extent[..., 1])
    return height, width, fits


def _attempts(
    augment: Augment, extent: Float[np.ndarray, "image 2"], u: Float[np.ndarray, "image slot"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first of ten attempts that fits."""
    height, width, fits = _attempt(augment, extent[:, None], u[:, _TRIES::2], u[:, _TRIES + 1 :: 2])
    row, first = np.arange(len(fits)), fits.argmax(axis=1)
    return height[row, first], width[row, first], fits[row, first]


def _box(
    augment: Augment,
    extent: Float[np.ndarray, "image 2"],
    height: np.ndarray,
    width: np.ndarray,
    crops: Bool[np.ndarray, "image"],
    top: np.ndarray,
    left: np.ndarray,
) -> Int32[np.ndarray, "image 4"]:
    """The drawn crop at a uniform place, or the central one where there is none."""
    central_height, central_width = _central(augment, extent)
    height, width = np.where(crops, height, central_height), np.where(crops, width, central_width)
    spare_height, spare_width = extent[:, 0] - height, extent[:, 1] - width
    top = np.where(crops, top * (spare_height + 1), spare_height / 2)
    left = np.where(crops, left * (spare_width + 1), spare_width / 2)
    # Truncation is floor here: all four are non-negative.
    return np.stack([top, left, height, width], axis=1).astype(np.int32)


def _central(augment: Augment, extent: Float[np.ndarray, "image 2"]) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of the largest central crop whose ratio is allowed."""
    height, width = extent[:, 0], extent[:, 1]
    low, high = augment.crop_ratio
    tall = np.where(width < low * height, np.rint(width / low), height)
    broad = np.where(width > high * height, np.rint(height * high), width)
    return np.clip(tall, 1, height), np.clip(broad, 1, width)


def _factors(
    augment: Augment, jitters: Bool[np.ndarray, "image"], u: Float[np.ndarray, "image 4"]
) -> Float32[np.ndarray, "image 4"]:
    strength = np.array([augment.brightness, augment.contrast, augment.saturation])
    low = np.array([*np.maximum(0.0, 1 - strength), -augment.hue])
    high = np.array([*(1 + strength), augment.hue])
    neutral = np.array([1.0, 1.0, 1.0, 0.0])
    return np.where(jitters[:, None], low + (high - low) * u, neutral).astype(np.float32)


def _order(augment: Augment, u: Float[np.ndarray, "image"]) -> Int32[np.ndarray, "image 5"]:
    jitter = _ORDERS[(u * len(_ORDERS)).astype(np.intp)]
    grey = np.full((len(u), 1), GREYSCALE, dtype=np.int32)
    return np.concatenate([grey, jitter] if augment.greyscale_first else [jitter, grey], axis=1)
