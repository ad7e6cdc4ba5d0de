"""Views on a CPU: one compiled loop over the samples, each finished while it is in the cache.

A sample is resized in two vectorised passes. The vertical pass blends whole rows of bytes, or of floats in [0, 1]; its result is
stored transposed, so that the horizontal pass blends whole rows too. From there on the sample is c planes of
size × size floats whose rows are the view's columns; colours, blur and solarisation do not care, and writing
the interleaved result turns it back. Several Python threads may run the kernel at once: it holds no lock and
no state.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32
from numba import njit
from torch import Tensor

from nearfar.core.types import Pixels
from nearfar.modalities.image.views.parameters import (
    BRIGHTNESS,
    CONTRAST,
    GREYSCALE,
    HUE,
    SATURATION,
    Parameters,
)

# Typed constants: a bare 1.0 is a double and would pull whole loops to double precision.
ZERO, ONE, TWO, FOUR, SIX = (np.float32(v) for v in (0, 1, 2, 4, 6))
SIXTH, TINY = np.float32(1 / 6), np.float32(1e-12)
RED, GREEN, BLUE = (np.float32(v) for v in (0.2989, 0.587, 0.114))  # torchvision's luma
NEGLIGIBLE = 1e-5  # a blur weight below this moves no pixel by 1e-4

# Output o of a resizing pass gathers count[o] inputs from first[o] on, weighed by weight[o].
Taps = tuple[np.ndarray, np.ndarray, np.ndarray]

_FAST = {"nogil": True, "fastmath": True, "error_model": "numpy"}
inlined = njit(forceinline=True, **_FAST)


def stored(function: Callable[..., None]) -> Callable[..., None]:
    """Compiled once and kept on disk, or compiled by each process where nothing can be written.

    Everything is inlined into the one function so kept: slices of rows then cost no reference counting. All
    of it stays in this file, because the compiled function is renewed when its own file changes, not when
    another does.
    """
    try:
        return njit(cache=True, **_FAST)(function)
    except RuntimeError:
        return njit(**_FAST)(function)


def render(
    pixels: Pixels,
    parameters: Parameters,
    window: Int32[np.ndarray, "image 4"],
    size: int,
    kernel_width: int,
    mean: Float[np.ndarray, "channel"],
    std: Float[np.ndarray, "channel"],
    out: Float32[Tensor, "image size size channel"] | None = None,
) -> Float[Tensor, "image channel size size"]:
    """The views as a channels-last float32 tensor, in `out` where that is given.

    Each crop is resized to `window`'s rows × columns, of which the size × size pixels from `window`'s top and
    left are kept.
    """
    images, height, width, channels = pixels.data.shape
    if out is None:
        out = torch.empty((images, size, size, channels), dtype=torch.float32)
    shrink = np.max(parameters.box[:, 2:] / window[:, :2], initial=1.0)
    # A read-only or strided array is another type to numba: it would be compiled for once more.
    data = np.require(pixels.data, requirements=["C", "W"])
    _render(
        data.reshape(images, height, width * channels),
        np.ascontiguousarray(parameters.box),
        np.ascontiguousarray(window),
        parameters.flip,
        parameters.factors,
        parameters.order,
        parameters.greyscale,
        parameters.sigma,
        parameters.solarise,
        kernel_width // 2,
        int(2 * shrink) + 3,
        np.float32(1 / 255) if data.dtype == np.uint8 else ONE,
        (1 / std).astype(np.float32),
        (-mean / std).astype(np.float32),
        out.numpy().reshape(images, size * size * channels),
        size,
    )
    return out.permute(0, 3, 1, 2)


@stored
def _render(
    data: np.ndarray,
    box: np.ndarray,
    window: np.ndarray,
    flip: np.ndarray,
    factors: np.ndarray,
    order: np.ndarray,
    greyscale: np.ndarray,
    sigma: np.ndarray,
    solarise: np.ndarray,
    half: int,
    most_taps: int,
    unit: np.float32,
    scale: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray,
    size: int,
) -> None:
    channels = len(scale)
    taps = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty((size, most_taps), np.float32))
    row = np.empty(data.shape[2], np.float32)
    turned = np.empty((data.shape[2], size), np.float32)
    planes = np.empty((channels, size, size), np.float32)
    spare, padded = np.empty((size, size), np.float32), np.empty(size + 2 * half, np.float32)
    gauss = np.empty(half + 1, np.float32)
    for i in range(len(data)):
        top, left, height, width = box[i]
        _interpolation(height, window[i, 0], window[i, 2], taps)
        start, stop = left * channels, (left + width) * channels
        _resize_rows(data[i, top:], start, taps, unit, row[: stop - start], turned)
        _interpolation(width, window[i, 1], window[i, 3], taps)
        _resize_columns(turned, taps, flip[i], planes)
        _tones(planes.reshape(channels, size * size), factors[i], order[i], greyscale[i])
        if sigma[i] > ZERO:
            reach = _gaussian(sigma[i], gauss)
            for c in range(channels):
                _blur(planes[c], gauss[: reach + 1], spare, padded)
        if solarise[i] <= ONE:
            _solarise(planes.reshape(-1), solarise[i])
        _write(planes.reshape(channels, size * size), scale, bias, out[i], size)


@inlined
def _interpolation(length: int, total: int, offset: int, taps: Taps) -> None:
    """Fill in the triangle filter that takes `length` pixels to `total`, for the outputs from `offset` on.

    When shrinking, the triangle is as wide as the shrinkage (torch's antialiasing).
    """
    first, count, weight = taps
    ratio = length / total
    support = max(ratio, 1.0)
    for o in range(len(first)):
        centre = ratio * (offset + o + 0.5)
        low = max(int(centre - support + 0.5), 0)
        high = min(int(centre + support + 0.5), length)
        total_weight = 0.0
        for k in range(low, high):
            w = max(0.0, 1.0 - abs(k + 0.5 - centre) / support)
            weight[o, k - low] = w
            total_weight += w
        for k in range(high - low):
            weight[o, k] /= total_weight
        if high - low == 1:  # the passes take two taps at a time to begin with
            weight[o, 1] = ZERO
        first[o], count[o] = low, high - low


@inlined
def _resize_rows(
    image: np.ndarray, start: int, taps: Taps, unit: np.float32, row: np.ndarray, turned: np.ndarray
) -> None:
    """Blend whole rows of values times `unit`, each from value `start` on, and store the result as columns."""
    first, count, weight = taps
    for y in range(len(first)):
        k = first[y]
        second = k + min(1, count[y] - 1)
        _blend(row, image[k][start:], weight[y, 0] * unit, image[second][start:], weight[y, 1] * unit)
        for j in range(2, count[y]):
            _add(row, image[k + j][start:], weight[y, j] * unit)
        for j in range(len(row)):
            turned[j, y] = row[j]


@inlined
def _resize_columns(turned: np.ndarray, taps: Taps, flip: bool, planes: np.ndarray) -> None:
    first, count, weight = taps
    channels, size = planes.shape[0], planes.shape[1]
    for x in range(size):
        target = size - 1 - x if flip else x
        step = channels * min(1, count[x] - 1)
        for c in range(channels):
            k = first[x] * channels + c
            _blend(planes[c, target], turned[k], weight[x, 0], turned[k + step], weight[x, 1])
            for j in range(2, count[x]):
                _add(planes[c, target], turned[k + j * channels], weight[x, j])


@inlined
def _blend(out: np.ndarray, a: np.ndarray, wa: np.float32, b: np.ndarray, wb: np.float32) -> None:
    for j in range(len(out)):
        out[j] = wa * np.float32(a[j]) + wb * np.float32(b[j])


@inlined
def _add(out: np.ndarray, a: np.ndarray, w: np.float32) -> None:
    for j in range(len(out)):
        out[j] += w * np.float32(a[j])


@inlined
def _clamp(value: np.float32) -> np.float32:
    return min(max(value, ZERO), ONE)


@inlined
def _tones(planes: np.ndarray, factors: np.ndarray, order: np.ndarray, greyscale: bool) -> None:
    """Colour jitter and greyscale in the sample's order; what needs colour passes others than RGB by."""
    colour = len(planes) == 3
    for op in order:
        if op == BRIGHTNESS and factors[op] != ONE:
            _towards(planes.reshape(-1), ZERO, factors[op])
        elif op == CONTRAST and factors[op] != ONE:
            _contrast(planes, factors[op])
        elif op == SATURATION and factors[op] != ONE and colour:
            _saturate(planes[0], planes[1], planes[2], factors[op])
        elif op == HUE and factors[op] != ZERO and colour:
            _turn_hue(planes[0], planes[1], planes[2], factors[op])
        elif op == GREYSCALE and greyscale and colour:
            _grey(planes[0], planes[1], planes[2])


@inlined
def _towards(values: np.ndarray, anchor: np.float32, factor: np.float32) -> None:
    bias = (ONE - factor) * anchor
    for p in range(len(values)):
        values[p] = _clamp(values[p] * factor + bias)


@inlined
def _contrast(planes: np.ndarray, factor: np.float32) -> None:
    """Colours move towards or away from their mean grey, any other bands from the mean of each."""
    if len(planes) == 3:
        _towards(planes.reshape(-1), _mean_grey(planes[0], planes[1], planes[2]), factor)
        return
    for c in range(len(planes)):
        total = ZERO
        for p in range(len(planes[c])):
            total += planes[c][p]
        _towards(planes[c], total / np.float32(len(planes[c])), factor)


@inlined
def _mean_grey(r: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.float32:
    total = ZERO
    for p in range(len(r)):
        total += RED * r[p] + GREEN * g[p] + BLUE * b[p]
    return total / np.float32(len(r))


@inlined
def _saturate(r: np.ndarray, g: np.ndarray, b: np.ndarray, factor: np.float32) -> None:
    rest = ONE - factor
    for p in range(len(r)):
        grey = rest * (RED * r[p] + GREEN * g[p] + BLUE * b[p])
        r[p] = _clamp(r[p] * factor + grey)
        g[p] = _clamp(g[p] * factor + grey)
        b[p] = _clamp(b[p] * factor + grey)


@inlined
def _grey(r: np.ndarray, g: np.ndarray, b: np.ndarray) -> None:
    for p in range(len(r)):
        grey = RED * r[p] + GREEN * g[p] + BLUE * b[p]
        r[p] = grey
        g[p] = grey
        b[p] = grey


@inlined
def _turn_hue(r: np.ndarray, g: np.ndarray, b: np.ndarray, shift: np.float32) -> None:
    """Turn the hue by `shift` of a full circle, without going through HSV.

    V is the largest channel, C the largest minus the smallest, H the hue in sixths of the circle. Then a channel
    is V - C · clip(min(k, 4 - k), 0, 1), k = (n + H) mod 6 with n = 5, 3, 1 for red, green, blue: saturation,
    which is C / V, cancels, and no branch is left to keep the loop from being vectorised.
    """
    turn = SIX * shift
    for p in range(len(r)):
        x, y, z = r[p], g[p], b[p]
        top = max(x, max(y, z))
        chroma = top - min(x, min(y, z))
        inverse = ONE / max(chroma, TINY)
        hue = (x - y) * inverse + FOUR
        hue = (z - x) * inverse + TWO if top == y else hue
        hue = (y - z) * inverse if top == x else hue
        hue += turn
        r[p] = top - chroma * _trapezium(hue + (FOUR + ONE))
        g[p] = top - chroma * _trapezium(hue + (TWO + ONE))
        b[p] = top - chroma * _trapezium(hue + ONE)


@inlined
def _trapezium(k: np.float32) -> np.float32:
    k -= SIX * np.floor(k * SIXTH)
    return _clamp(min(k, FOUR - k))


@inlined
def _gaussian(sigma: np.float32, weight: np.ndarray) -> int:
    """Fill the weights of a Gaussian's one side; the last distance that counts."""
    total, reach = 0.0, 1
    for d in range(len(weight)):
        w = np.exp(-0.5 * (d / np.float64(sigma)) ** 2)
        weight[d] = w
        total += w if d == 0 else 2 * w
    for d in range(len(weight)):
        weight[d] /= total
        if weight[d] > NEGLIGIBLE:
            reach = max(reach, d)
    return reach


@inlined
def _blur(plane: np.ndarray, weight: np.ndarray, spare: np.ndarray, padded: np.ndarray) -> None:
    """Blur in place, the image mirrored at its border without repeating the border."""
    size, reach = len(plane), len(weight) - 1
    for y in range(size):
        _blend_three(
            spare[y], plane[y], weight[0], plane[abs(y - 1)], plane[_mirrored(y + 1, size)], weight[1]
        )
        for d in range(2, reach + 1):
            _add_pair(spare[y], plane[abs(y - d)], plane[_mirrored(y + d, size)], weight[d])
    for y in range(size):
        for x in range(size):
            padded[reach + x] = spare[y, x]
        for d in range(1, reach + 1):
            padded[reach - d] = spare[y, d]
            padded[reach + size - 1 + d] = spare[y, size - 1 - d]
        middle = padded[reach : reach + size]
        _blend_three(plane[y], middle, weight[0], padded[reach - 1 :], padded[reach + 1 :], weight[1])
        for d in range(2, reach + 1):
            _add_pair(plane[y], padded[reach - d :], padded[reach + d :], weight[d])


@inlined
def _mirrored(y: int, size: int) -> int:
    return y if y < size else 2 * size - 2 - y


@inlined
def _blend_three(
    out: np.ndarray, middle: np.ndarray, wm: np.float32, a: np.ndarray, b: np.ndarray, w: float
) -> None:
    for j in range(len(out)):
        out[j] = wm * middle[j] + w * (a[j] + b[j])


@inlined
def _add_pair(out: np.ndarray, a: np.ndarray, b: np.ndarray, w: np.float32) -> None:
    for j in range(len(out)):
        out[j] += w * (a[j] + b[j])


@inlined
def _solarise(values: np.ndarray, threshold: np.float32) -> None:
    for p in range(len(values)):
        # A product in place of a branch: the loop is vectorised, ten times faster.
        values[p] += np.float32(values[p] >= threshold) * (ONE - TWO * values[p])


@inlined
def _write(planes: np.ndarray, scale: np.ndarray, bias: np.ndarray, out: np.ndarray, size: int) -> None:
    """Normalise and turn planes of columns into rows of interleaved pixels."""
    channels = len(planes)
    if channels == 3:
        r, g, b = planes[0], planes[1], planes[2]
        for y in range(size):
            for x in range(size):
                p, o = x * size + y, (y * size + x) * 3
                out[o] = r[p] * scale[0] + bias[0]
                out[o + 1] = g[p] * scale[1] + bias[1]
                out[o + 2] = b[p] * scale[2] + bias[2]
        return
    for y in range(size):
        for x in range(size):
            for c in range(channels):
                out[(y * size + x) * channels + c] = planes[c, x * size + y] * scale[c] + bias[c]
