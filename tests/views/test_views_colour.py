"""Luminance and colour: CIELAB against published values, its inverse, and how views and plain views show
it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.image.views import PlainImages, Views, pipelines
from nearfar.modalities.image.views.colour import AB_SCALE, L_SCALE, MIDDLE, lab, rgb, split

# sRGB primaries, white and middle grey in CIELAB under D65, as colour tables print them
LAB_COLOURS = {
    (255, 0, 0): (53.24, 80.09, 67.20),
    (0, 255, 0): (87.73, -86.18, 83.18),
    (0, 0, 255): (32.30, 79.19, -107.86),
    (255, 255, 255): (100.0, 0.0, 0.0),
    (0, 0, 0): (0.0, 0.0, 0.0),
    (119, 119, 119): (50.03, 0.0, 0.0),
}
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def image(triple: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(triple, dtype=torch.float64).view(1, -1, 1, 1)


@pytest.mark.parametrize(("colour", "expected"), LAB_COLOURS.items())
def test_known_colours(colour: tuple[int, int, int], expected: tuple[float, float, float]) -> None:
    scaled = lab(image(colour) / 255).flatten()
    values = scaled * torch.tensor([L_SCALE, AB_SCALE, AB_SCALE], dtype=torch.float64)
    values[0] += MIDDLE
    torch.testing.assert_close(values, image(expected).flatten(), rtol=0, atol=0.02)


@given(st.tuples(*[st.floats(0, 1)] * 3))
@settings(max_examples=200, deadline=None)
def test_lab_conversion_is_invertible(colour: tuple[float, float, float]) -> None:
    torch.testing.assert_close(rgb(lab(image(colour))), image(colour), rtol=0, atol=1e-6)


@given(st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_grey_has_no_colour_and_luminance_alone_is_grey(grey: float) -> None:
    scaled = lab(image((grey,) * 3))
    assert scaled[:, 1:].abs().max() < 0.01
    restored = rgb(scaled[:, :1]).flatten()
    torch.testing.assert_close(restored, image((grey,) * 3).flatten(), rtol=0, atol=1e-3)


def photographs(count: int = 5) -> Pixels:
    data = np.random.default_rng(0).integers(0, 256, (count, 12, 10, 3), dtype=np.uint8)
    return Pixels(data, np.tile(np.array([12, 10], dtype=np.int32), (count, 1)))


def in_colours(colours: str, aligned: bool) -> tuple[torch.Tensor, ...]:
    views = Views(pipelines("cmc", 8), 8, MEAN, STD, aligned=aligned, colours=colours)  # type: ignore[arg-type]
    return views(photographs(), 3, 1, np.arange(5))


@pytest.mark.parametrize("aligned", [True, False])
def test_the_views_are_luminance_and_colour_of_what_rgb_views_show(aligned: bool) -> None:
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    expected_labs = [lab(view * std + mean) for view in in_colours("rgb", aligned)]
    luminance, colour = in_colours("lab", aligned)
    torch.testing.assert_close(luminance, expected_labs[0][:, :1], rtol=0, atol=1e-4)
    torch.testing.assert_close(colour, expected_labs[1][:, 1:], rtol=0, atol=1e-3)
    # aligned views show one crop, the others do not
    assert torch.equal(*in_colours("rgb", aligned)) == aligned


@pytest.mark.parametrize("aligned", [True, False])
def test_three_views_are_the_three_channels_one_by_one(aligned: bool) -> None:
    """View v shows channel v of the rgb view with the same draws; aligned views together make the whole."""
    first, second = pipelines("cmc", 8)
    views_by_colours = {
        colours: Views([first, second, second], 8, MEAN, STD, aligned=aligned, colours=colours)(
            photographs(), 3, 1, np.arange(5)
        )
        for colours in ("rgb", "lab")
    }
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    for view, (rgb_view, channel) in enumerate(
        zip(views_by_colours["rgb"], views_by_colours["lab"], strict=True)
    ):
        expected = lab(rgb_view * std + mean)[:, view : view + 1]
        torch.testing.assert_close(channel, expected, rtol=0, atol=1e-3)
    show = PlainImages(8, MEAN, STD, colours="lab")
    rgb_view = show(photographs())[0]
    assert torch.equal(torch.cat(show.as_views(rgb_view, 3), dim=1), rgb_view)
    assert torch.equal(show.as_views(rgb_view, 1)[0], rgb_view[:, :1])


def test_plain_shows_all_three_and_as_views_what_each_network_sees() -> None:
    full_view = PlainImages(8, MEAN, STD, colours="lab")(photographs())[0]
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(
        full_view, lab(PlainImages(8, MEAN, STD)(photographs())[0] * std + mean), rtol=0, atol=1e-3
    )
    show = PlainImages(8, MEAN, STD, colours="lab")
    first, second = show.as_views(full_view, 2)
    assert torch.equal(torch.cat([first, second], dim=1), full_view)
    assert torch.equal(first, split(full_view)[0])
    rgb_plain = PlainImages(8, MEAN, STD)
    assert [torch.equal(view, full_view) for view in rgb_plain.as_views(full_view, 3)] == [True] * 3


def test_unnormalised_view_shows_the_picture() -> None:
    show = PlainImages(8, MEAN, STD, colours="lab")
    ours = show.unnormalise(show(photographs())[0])
    theirs = PlainImages(8, MEAN, STD).unnormalise(PlainImages(8, MEAN, STD)(photographs())[0])
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    luminance, colour = in_colours("lab", True)
    views = Views(pipelines("cmc", 8), 8, MEAN, STD, colours="lab")
    grey = views.unnormalise(luminance)
    assert np.ptp(grey.astype(int), axis=3).max() <= 2
    assert views.unnormalise(colour).shape == (5, 8, 8, 3)


def test_lab_views_refuse_grey_pictures() -> None:
    with pytest.raises(UserError, match="1 channels"):
        PlainImages(8, (0.5,), (0.2,), colours="lab")
    for count in (1, 4):
        with pytest.raises(UserError, match=f"lab with {count} views; it has three channels"):
            Views([pipelines("cmc", 8)[0]] * count, 8, MEAN, STD, colours="lab")
