"""Both implementations equal torchvision's float functionals, applied one by one, for any parameters."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearfar.core.types import Pixels
from nearfar.modalities.image.views import Augment, Parameters, batched, kernel
from nearfar.modalities.image.views.parameters import BRIGHTNESS, CONTRAST, GREYSCALE, HUE, NEVER, SATURATION

TOLERANCE = 1e-3
Render = Callable[[Pixels, Parameters, np.ndarray, int, int, np.ndarray, np.ndarray], Tensor]


def on_cpu_in_torch(*arguments: object) -> Tensor:
    return batched.render(*arguments, torch.device("cpu"))  # type: ignore[call-arg, arg-type]


IMPLEMENTATIONS = pytest.mark.parametrize(
    "render", [kernel.render, on_cpu_in_torch], ids=["kernel", "batched"]
)


def expected(image: np.ndarray, p: Parameters, i: int, size: int, width: int) -> tuple[Tensor, Tensor]:
    """torchvision's view of one image, and the pixels it can be compared at.

    Solarisation jumps at its threshold, so a pixel within rounding of it may land on either side.
    """
    x = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    x = F.resized_crop(x, *(int(v) for v in p.box[i]), [size, size], antialias=True)
    if p.flip[i]:
        x = F.horizontal_flip(x)
    for op in p.order[i]:
        x = toned(x, int(op), p, i)
    if p.sigma[i] > 0:
        x = F.gaussian_blur(x, [width, width], [float(p.sigma[i])] * 2)
    threshold = float(p.solarise[i])
    if threshold == NEVER:
        return x, torch.ones_like(x, dtype=torch.bool)
    return F.solarize(x, threshold), (x - threshold).abs() > 1e-4


def toned(x: Tensor, op: int, p: Parameters, i: int) -> Tensor:
    colour = x.shape[0] == 3
    if op == BRIGHTNESS:
        return (x * float(p.factors[i, 0])).clamp(0, 1)
    if op == CONTRAST and x.shape[0] in (1, 3):
        return F.adjust_contrast(x, float(p.factors[i, 1]))
    if op == CONTRAST:  # each band by itself; torchvision has none for other channel counts
        return torch.cat([F.adjust_contrast(band[None], float(p.factors[i, 1])) for band in x])
    if op == SATURATION and colour:
        return F.adjust_saturation(x, float(p.factors[i, 2]))
    if op == HUE and colour:
        return F.adjust_hue(x, float(p.factors[i, 3]))
    if op == GREYSCALE and colour and p.greyscale[i]:
        return F.rgb_to_grayscale(x, num_output_channels=3)
    return x


@st.composite
def cases(draw: st.DrawFn, channels: st.SearchStrategy[int]) -> tuple[Pixels, Parameters, int, int]:
    """A ragged batch with rubbish in its padding, and any parameters at all."""
    count, size = draw(st.integers(1, 5)), draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    extent = rng.integers(1, draw(st.integers(2, 90)), (count, 2))
    shape = (count, *(extent.max(axis=0) + rng.integers(0, 3, 2)), draw(channels))
    # Few levels make greys, blacks and equal channels frequent: where hue has its corners.
    levels = np.linspace(0, 255, draw(st.sampled_from([2, 3, 256]))).astype(np.uint8)
    corner = rng.integers(0, extent)
    box = np.concatenate([corner, rng.integers(1, extent - corner + 1)], axis=1)
    strongest = draw(st.sampled_from([0.0, 0.5, 1.0]))
    factors = np.array([1, 1, 1, 0]) + strongest * rng.uniform(-1, 1, (count, 4)) * [1, 1, 1, 0.5]
    sigma = rng.uniform(0.05, 3, count) * (rng.random(count) < 0.5)
    threshold = np.where(rng.random(count) < 0.5, rng.choice([0, 0.2, 0.5, 0.77, 1], count), NEVER)
    parameters = Parameters(
        box=box.astype(np.int32),
        flip=rng.random(count) < 0.5,
        factors=factors.astype(np.float32),
        order=np.stack([rng.permutation(5) for _ in range(count)]).astype(np.int32),
        greyscale=rng.random(count) < 0.3,
        sigma=sigma.astype(np.float32),
        solarise=threshold.astype(np.float32),
    )
    width = Augment(blur_kernel=draw(st.sampled_from([0.1, 0.3, 1.0]))).kernel_width(size)
    return Pixels(rng.choice(levels, shape), extent.astype(np.int32)), parameters, size, width


def window(count: int, size: int) -> np.ndarray:
    return np.tile(np.array([size, size, 0, 0], dtype=np.int32), (count, 1))


@IMPLEMENTATIONS
@settings(deadline=None, max_examples=150)
@given(case=cases(st.just(3)))
def test_every_view_is_torchvisions(render: Render, case: tuple[Pixels, Parameters, int, int]) -> None:
    agrees(render, *case)


@IMPLEMENTATIONS
@settings(deadline=None, max_examples=40)
@given(case=cases(st.sampled_from([1, 2, 4, 5])))
def test_images_of_other_channel_counts_too(
    render: Render, case: tuple[Pixels, Parameters, int, int]
) -> None:
    agrees(render, *case)


def agrees(render: Render, pixels: Pixels, parameters: Parameters, size: int, width: int) -> None:
    count, channels = len(pixels.data), pixels.data.shape[3]
    view = render(pixels, parameters, window(count, size), size, width, np.zeros(channels), np.ones(channels))
    assert view.shape == (count, channels, size, size)
    assert view.dtype == torch.float32
    assert view.is_contiguous(memory_format=torch.channels_last)
    for i, (height, width_) in enumerate(pixels.size):
        target, comparable = expected(pixels.data[i, :height, :width_], parameters, i, size, width)
        assert ((view[i] - target).abs() * comparable).max() < TOLERANCE


@pytest.mark.parametrize(("size", "source"), [(224, 300), (96, 96), (64, 500)])
@IMPLEMENTATIONS
def test_large_views_are_torchvisions(render: Render, size: int, source: int) -> None:
    rng = np.random.default_rng(0)
    pixels = Pixels(
        rng.integers(0, 256, (2, source, source + 20, 3), dtype=np.uint8),
        np.array([[source, source + 20], [source - 7, source]], dtype=np.int32),
    )
    parameters = Parameters(
        box=np.array([[0, 0, source, source + 20], [3, 5, source // 2, source // 3]], dtype=np.int32),
        flip=np.array([True, False]),
        factors=np.array([[1.3, 0.6, 1.7, 0.2], [0.4, 1.5, 0.3, -0.1]], dtype=np.float32),
        order=np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]], dtype=np.int32),
        greyscale=np.array([False, False]),
        sigma=np.array([2.0, 0.1], dtype=np.float32),
        solarise=np.array([NEVER, 0.5], dtype=np.float32),
    )
    agrees(render, pixels, parameters, size, Augment().kernel_width(size))


@IMPLEMENTATIONS
def test_normalising_subtracts_the_mean_and_divides_by_the_deviation(render: Render) -> None:
    pixels = Pixels(np.full((1, 6, 6, 3), 51, dtype=np.uint8), np.array([[6, 6]], dtype=np.int32))
    mean, std = np.array([0.1, 0.2, 0.4]), np.array([0.5, 0.25, 0.1])
    view = render(pixels, unchanged(6), window(1, 6), 6, 3, mean, std)
    np.testing.assert_allclose(view[0, :, 2, 3], (0.2 - mean) / std, atol=1e-5)


@IMPLEMENTATIONS
def test_neutral_parameters_change_nothing(render: Render) -> None:
    data = np.random.default_rng(0).integers(0, 256, (1, 31, 31, 3), dtype=np.uint8)
    pixels = Pixels(data, np.array([[31, 31]], dtype=np.int32))
    view = render(pixels, unchanged(31), window(1, 31), 31, 3, np.zeros(3), np.ones(3))
    # x * fl(1/255), then minus 0 and over 1: two roundings of numbers up to 1, half an eps each
    np.testing.assert_allclose(
        view[0].permute(1, 2, 0), data[0] / 255, rtol=0, atol=float(np.finfo(np.float32).eps)
    )


@IMPLEMENTATIONS
def test_a_batch_of_none_has_no_views(render: Render) -> None:
    parameters = unchanged(5)
    empty = Parameters(**{name: value[:0] for name, value in vars(parameters).items()})
    pixels = Pixels(np.zeros((0, 5, 5, 3), dtype=np.uint8), np.zeros((0, 2), dtype=np.int32))
    assert render(pixels, empty, window(0, 4), 4, 3, np.zeros(3), np.ones(3)).shape == (0, 3, 4, 4)


@IMPLEMENTATIONS
def test_read_only_pixels_are_rendered_like_others(render: Render) -> None:
    data = np.random.default_rng(0).integers(0, 256, (1, 9, 9, 3), dtype=np.uint8)
    pixels = Pixels(data, np.array([[9, 9]], dtype=np.int32))
    arguments = (unchanged(9), window(1, 9), 9, 3, np.zeros(3), np.ones(3))
    view = render(pixels, *arguments)
    data.setflags(write=False)
    assert torch.equal(view, render(pixels, *arguments))


def test_read_only_pixels_need_no_second_compilation() -> None:
    data = np.zeros((1, 9, 9, 3), dtype=np.uint8)
    data.setflags(write=False)
    pixels = Pixels(data, np.array([[9, 9]], dtype=np.int32))
    kernel.render(pixels, unchanged(9), window(1, 9), 9, 3, np.zeros(3), np.ones(3))
    assert all(first.mutable for first, *_ in kernel._render.signatures)  # type: ignore[attr-defined]


def test_kernel_loads_without_a_writable_cache(tmp_path: Path) -> None:
    package = Path(kernel.__file__).parents[3]
    shutil.copytree(package, tmp_path / "nearfar", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "nearfar/modalities/image/views/__pycache__",
        "no_folder",
    ):  # a file where numba would make a folder
        (tmp_path / name).touch()
    nowhere = {"HOME": str(tmp_path / "no_folder"), "XDG_CACHE_HOME": str(tmp_path / "no_folder")}
    environment = {**os.environ, **nowhere, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    script = (
        "import nearfar.modalities.image.views.kernel as k; print(k.__file__, "
        "type(k._render._cache).__name__)"
    )
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert answer.stdout.split() == [
        str(tmp_path / "nearfar/modalities/image/views/kernel.py"),
        "NullCache",
    ], answer.stderr


def unchanged(size: int) -> Parameters:
    return Parameters(
        box=np.array([[0, 0, size, size]], dtype=np.int32),
        flip=np.array([False]),
        factors=np.array([[1, 1, 1, 0]], dtype=np.float32),
        order=np.array([[2, 0, 1, 3, 4]], dtype=np.int32),
        greyscale=np.array([False]),
        sigma=np.zeros(1, dtype=np.float32),
        solarise=np.array([NEVER], dtype=np.float32),
    )


@IMPLEMENTATIONS
def test_three_taps_of_the_blur_are_the_kernel_of_the_thesis(render: Render) -> None:
    """Sáez Maldonado 2021, Ex. 4: (1, 2, 1) times itself, over 16. e^(-1 / (2 sigma^2)) = 1/2 there."""
    data = np.zeros((1, 7, 7, 3), dtype=np.uint8)
    data[0, 3, 3] = 255
    pixels = Pixels(data, np.array([[7, 7]], dtype=np.int32))
    sigma = np.array([(2 * np.log(2)) ** -0.5], dtype=np.float32)
    view = render(pixels, replace(unchanged(7), sigma=sigma), window(1, 7), 7, 3, np.zeros(3), np.ones(3))
    taps = np.array((1, 2, 1))
    np.testing.assert_allclose(view[0, 0, 2:5, 2:5], np.outer(taps, taps) / 16, atol=1e-6)
