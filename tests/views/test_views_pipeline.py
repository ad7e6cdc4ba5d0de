"""`Views` and `PlainImages` as the training loop and the evaluation call them."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.image.views import (
    PIPELINES,
    Augment,
    PlainImages,
    Views,
    batched,
    draw,
    kernel,
)
from nearfar.modalities.image.views.pipeline import statistics

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def ragged(count: int, largest: int = 60, channels: int = 3, seed: int = 0) -> Pixels:
    rng = np.random.default_rng(seed)
    size = rng.integers(2, largest, (count, 2)).astype(np.int32)
    data = np.zeros((count, *size.max(axis=0), channels), dtype=np.uint8)
    for image, (height, width) in zip(data, size, strict=True):
        image[:height, :width] = rng.integers(0, 256, (height, width, channels))
    return Pixels(data, size)


def some_of(pixels: Pixels, rows: np.ndarray, padding: int) -> Pixels:
    """Rows of a batch, trimmed to their largest image and padded again with noise."""
    size = pixels.size[rows]
    height, width = size.max(axis=0)
    data = np.full((len(rows), height + padding, width + padding, pixels.data.shape[3]), 77, dtype=np.uint8)
    data[:, :height, :width] = pixels.data[rows, :height, :width]
    return Pixels(data, size)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.integers(0, 29), min_size=1, max_size=12),
    padding=st.integers(0, 9),
    epoch=st.integers(0, 5),
)
def test_view_depends_only_on_its_image(rows: list[int], padding: int, epoch: int) -> None:
    pixels, index, selected_rows = ragged(30), np.arange(30) * 17, np.array(rows)
    views = Views(PIPELINES["byol"], 24, MEAN, STD)
    joint = views(pixels, 3, epoch, index)
    separate = views(some_of(pixels, selected_rows, padding), 3, epoch, index[selected_rows])
    for one, second in zip(joint, separate, strict=True):
        assert torch.equal(one[selected_rows], second)


def test_threads_do_not_change_a_bit() -> None:
    views = Views(PIPELINES["simclr"], 32, MEAN, STD)
    pixels = ragged(64)
    sequential = [views(pixels, 0, epoch, np.arange(64)) for epoch in range(16)]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda epoch: views(pixels, 0, epoch, np.arange(64)), range(16)))
    for one, second in zip(sequential, parallel, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, second, strict=True))


def test_each_view_has_its_own_pipeline_and_its_own_randomness() -> None:
    pixels = ragged(8)
    same_pipeline = Views(PIPELINES["simclr"], 32, MEAN, STD)(pixels, 0, 0, np.arange(8))
    assert not torch.allclose(same_pipeline[0], same_pipeline[1])
    unchanged, grey = (
        Augment(greyscale=0.0, jitter=0.0, blur=0.0),
        Augment(greyscale=1.0, jitter=0.0, blur=0.0),
    )
    first, second, third = Views((unchanged, grey, unchanged), 32, (0.5,) * 3, (1.0,) * 3)(
        pixels, 0, 0, np.arange(8)
    )
    assert torch.allclose(second[:, 0], second[:, 2])
    assert not torch.allclose(first[:, 0], first[:, 2])
    assert not torch.allclose(first, third)


def test_the_same_call_gives_the_same_view_and_another_epoch_another() -> None:
    views, pixels = Views(PIPELINES["simclr"], 32, MEAN, STD), ragged(8)
    (one, _), (same, _), (next_epoch, _) = (views(pixels, 1, epoch, np.arange(8)) for epoch in (4, 4, 5))
    assert torch.equal(one, same)
    assert not torch.allclose(one, next_epoch)


def test_the_pipeline_called_none_shows_the_image() -> None:
    data = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3), dtype=np.uint8)
    views = Views(PIPELINES["none"], 20, MEAN, STD)
    for view in views(Pixels(data, np.full((4, 2), 20, dtype=np.int32)), 0, 0, np.arange(4)):
        assert (views.unnormalise(view) == data).all()


NOTHING = {"crop": 0.0, "crop_ratio": (1.0, 1.0), "flip": 0.0, "jitter": 0.0, "greyscale": 0.0, "blur": 0.0}


@pytest.mark.parametrize("name", ["flip", "jitter", "greyscale", "blur", "solarise"])
def test_each_operation_changes_the_view_when_certain_and_only_then(name: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, (16, 20, 20, 3), dtype=np.uint8)
    pixels, index = Pixels(data, np.full((16, 2), 20, dtype=np.int32)), np.arange(16)
    never, always = (Augment(**{**NOTHING, name: p}) for p in (0.0, 1.0))  # type: ignore[arg-type]
    untouched, changed = Views((never, always), 20, (0.0,) * 3, (1.0,) * 3)(pixels, 0, 0, index)
    original = torch.from_numpy(data).permute(0, 3, 1, 2).float() / 255
    # x * fl(1/255) against fl(x/255): three roundings of numbers up to 1, half an eps each
    torch.testing.assert_close(untouched, original, rtol=0, atol=1.5 * torch.finfo(torch.float32).eps)
    assert ((changed - original).abs().amax((1, 2, 3)) > 1e-3).float().mean() > 0.8


def test_views_for_another_device_are_made_on_it() -> None:
    # The meta device computes shapes only, and refuses whatever would wait for a device or mix two.
    for view in Views(PIPELINES["byol"], 24, MEAN, STD, device="meta")(ragged(12), 0, 0, np.arange(12)):
        assert view.device.type == "meta"
        assert view.shape == (12, 3, 24, 24)


def test_views_ignore_the_callers_default_precision() -> None:
    pixels = ragged(6)
    window = np.tile(np.array([24, 24, 0, 0], dtype=np.int32), (6, 1))
    parameters = draw(PIPELINES["simclr"][0], pixels.size, 0, 0, np.arange(6), 0)
    arguments = (pixels, parameters, window, 24, 3, np.zeros(3), np.ones(3), torch.device("cpu"))
    view = batched.render(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(batched.render(*arguments), view)


def resized_centre(image: np.ndarray, size: int) -> torch.Tensor:
    x = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    margin = size * 256 // 224
    x = F.resize(x, [margin if min(image.shape[:2]) >= margin else size], antialias=True)
    return F.center_crop(x, [size, size])


@settings(deadline=None, max_examples=100)
@given(size=st.integers(2, 48), seed=st.integers(0, 10_000))
def test_plain_is_torchvisions_resize_and_centre_crop(size: int, seed: int) -> None:
    pixels = ragged(4, largest=90, seed=seed)
    (view,) = PlainImages(size, (0.0,) * 3, (1.0,) * 3)(pixels)
    for i, (height, width) in enumerate(pixels.size):
        target = resized_centre(pixels.data[i, :height, :width], size)
        torch.testing.assert_close(view[i], target, rtol=0, atol=1e-3)


def test_plain_leaves_an_image_of_the_right_size_alone_and_takes_the_views_arguments() -> None:
    data = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    pixels, show = Pixels(data, np.full((3, 2), 32, dtype=np.int32)), PlainImages(32, MEAN, STD)
    (view,), (repeated,) = show(pixels), show(pixels, 5, 1, np.arange(3))
    target = (data / 255 - MEAN) / STD
    np.testing.assert_allclose(view.permute(0, 2, 3, 1), target, atol=1e-5)
    assert torch.equal(view, repeated)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channel_counts_are_seen_too(channels: int) -> None:
    pixels = ragged(5, channels=channels)
    mean, std = (0.5,) * channels, (0.25,) * channels
    for view in Views(PIPELINES["byol"], 16, mean, std)(pixels, 0, 0, np.arange(5)):
        assert view.shape == (5, channels, 16, 16)
        assert view.isfinite().all()


def test_views_are_what_the_kernel_makes_of_the_drawn_parameters() -> None:
    pixels, index, augment = ragged(6), np.arange(6) + 9, PIPELINES["simclr"][1]
    window = np.tile(np.array([32, 32, 0, 0], dtype=np.int32), (6, 1))
    parameters = draw(augment, pixels.size, 11, 2, index, 1)
    target = kernel.render(pixels, parameters, window, 32, 3, np.array(MEAN), np.array(STD))
    assert torch.equal(Views(PIPELINES["simclr"], 32, MEAN, STD)(pixels, 11, 2, index)[1], target)


def test_statistics_are_those_of_all_true_pixels() -> None:
    batches = [
        ragged(7, seed=1),
        ragged(3, seed=2),
        Pixels(np.full((2, 4, 4, 3), 9, np.uint8), np.full((2, 2), 4)),
    ]
    batches[0].data[0, batches[0].size[0, 0] :] = 255  # rubbish in the padding
    mean, std = statistics(batches)
    everything = np.concatenate(
        [
            image[:height, :width].reshape(-1, 3)
            for pixels in batches
            for image, (height, width) in zip(pixels.data, pixels.size, strict=True)
        ]
    )
    np.testing.assert_allclose(mean, everything.mean(axis=0) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, everything.std(axis=0) / 255, rtol=1e-12)


def test_a_constant_channel_has_deviation_one_and_no_pixels_have_none() -> None:
    mean, std = statistics([Pixels(np.full((1, 3, 3, 1), 51, dtype=np.uint8), np.array([[3, 3]]))])
    assert math.isclose(mean[0], 0.2)
    assert std == (1.0,)
    with pytest.raises(UserError, match=r"views\.mean"):
        statistics([])


def test_unnormalise_turns_a_view_back_into_bytes() -> None:
    data = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    show = PlainImages(16, MEAN, STD)
    (view,) = show(Pixels(data, np.full((3, 2), 16, dtype=np.int32)))
    assert (show.unnormalise(view) == data).all()
    assert (show.unnormalise(view + 100) == 255).all()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"size": 1}, "image_size"),
        ({"size": 32.0}, "image_size"),
        ({"mean": (0.5,)}, "views.mean"),
        ({"mean": "grey"}, "views.mean"),
        ({"mean": (0.5, 0.5, float("nan"))}, "views.mean"),
        ({"std": (0.5, 0.0, 0.5)}, "views.std"),
        ({"std": ()}, "views.std"),
        ({"pipelines": ()}, "views"),
    ],
)
def test_invalid_values_are_refused_by_name(arguments: dict[str, object], key: str) -> None:
    good: dict[str, object] = {"pipelines": PIPELINES["simclr"], "size": 32, "mean": MEAN, "std": STD}
    with pytest.raises(UserError, match=f"^{key} "):
        Views(**{**good, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "size", "words"),
    [
        (np.zeros((2, 8, 8, 1), np.uint8), np.full((2, 2), 8), "1 channels"),
        (np.zeros((2, 8, 8, 3), np.float32), np.full((2, 2), 8), "float32"),
        (np.zeros((2, 8, 8, 3), np.uint8), np.full((2, 2), 9), "do not fit"),
        (np.zeros((2, 8, 8, 3), np.uint8), np.full((2, 2), 0), "do not fit"),
        (np.zeros((2, 8, 8, 3), np.uint8), np.full((1, 2), 8), "do not fit"),
    ],
)
def test_pixels_that_do_not_fit_are_refused_before_they_are_read(
    data: np.ndarray, size: np.ndarray, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        PlainImages(8, MEAN, STD)(Pixels(data, size.astype(np.int32)))
    with pytest.raises(UserError, match=words):
        Views(PIPELINES["simclr"], 8, MEAN, STD)(Pixels(data, size.astype(np.int32)), 0, 0, np.arange(2))


def test_an_index_of_another_length_is_refused() -> None:
    with pytest.raises(UserError, match="index"):
        Views(PIPELINES["simclr"], 8, MEAN, STD)(ragged(4), 0, 0, np.arange(3))
