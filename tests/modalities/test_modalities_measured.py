"""What views do to pictures: each number equals loops over pixels; the shares are those of the drawn
boxes."""

import numpy as np
import pytest

from nearfar.core.types import Pixels
from nearfar.modalities import MODALITIES
from nearfar.modalities.image.show import brightness, colour, contrast, picture_measures
from nearfar.modalities.image.views import Augment, Views, pipelines


def pixels(count: int, channels: int = 3, side: int = 12) -> Pixels:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return Pixels(data, np.full((count, 2), side, dtype=np.int32))


def views_of(*augments: Augment, channels: int = 3) -> Views:
    return Views(list(augments), 12, (0.5,) * channels, (0.25,) * channels)


UNCHANGED = pipelines("none", 12)[0]


def test_the_measures_are_what_loops_over_pixels_say() -> None:
    picture = np.random.default_rng(1).random((5, 4, 3))
    grey = [0.299 * r + 0.587 * g + 0.114 * b for row in picture for r, g, b in row]
    mean = sum(grey) / 20
    assert brightness(picture) == pytest.approx(mean)
    assert contrast(picture) == pytest.approx((sum((g - mean) ** 2 for g in grey) / 20) ** 0.5)
    assert colour(picture) == pytest.approx(sum(max(p) - min(p) for row in picture for p in row) / 20)
    assert colour(np.repeat(picture[..., :1], 3, axis=2)) == 0
    assert brightness(picture[..., :1]) == pytest.approx(picture[..., 0].mean())


def test_a_view_that_changes_nothing_measures_the_same() -> None:
    measures = picture_measures(pixels(6), views_of(UNCHANGED), 0, np.arange(6))
    assert [one.title for one in measures] == ["Share of the image", "Brightness", "Contrast", "Colour"]
    for one in measures:
        np.testing.assert_allclose(one.views, one.originals, atol=1e-6)


def test_the_share_is_that_of_the_boxes_and_both_views_count() -> None:
    cropping = Augment(crop_scale=(0.2, 0.5), jitter=0.0, greyscale=0.0, blur=0.0)
    share, *_ = picture_measures(pixels(40), views_of(cropping, cropping), 3, np.arange(40))
    assert len(share.views) == 80
    assert 0.1 < share.views.min() < share.views.max() < 0.65  # whole pixels of 12 x 12
    assert (share.originals == 1).all()
    assert not np.allclose(share.views[:40], share.views[40:])


def test_view_measures_show_what_views_change() -> None:
    grey = Augment(crop=0.0, crop_ratio=(1.0, 1.0), flip=0.0, jitter=0.0, greyscale=1.0, blur=0.0)
    measures = {one.title: one for one in picture_measures(pixels(6), views_of(grey), 0, np.arange(6))}
    assert measures["Colour"].views.max() < 1e-9
    assert measures["Colour"].originals.min() > 0.3
    np.testing.assert_allclose(measures["Brightness"].views, measures["Brightness"].originals, atol=0.01)


def test_grey_pictures_have_no_colour_and_split_channels_no_brightness() -> None:
    grey = picture_measures(pixels(4, channels=1), views_of(UNCHANGED, channels=1), 0, np.arange(4))
    assert [one.title for one in grey] == ["Share of the image", "Brightness", "Contrast"]
    split = Views([UNCHANGED, UNCHANGED], 12, (0.5,) * 3, (0.25,) * 3, colours="lab", aligned=True)
    assert [one.title for one in picture_measures(pixels(4), split, 0, np.arange(4))] == [
        "Share of the image"
    ]


def test_user_defined_views_are_not_measured() -> None:
    assert MODALITIES["image"].presenter.view_measures(pixels(2), lambda *given: given, 0, np.arange(2)) == []
