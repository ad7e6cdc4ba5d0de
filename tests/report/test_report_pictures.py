"""Pictures inside the page hold the pixels they stand for."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from nearfar.core.types import Pixels
from nearfar.modalities.image import IMAGE
from nearfar.modalities.showing import coloured
from nearfar.report import pictures
from nearfar.report.pictures import atlas_of, data_uri, square, within


def opened(uri: str) -> np.ndarray:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/webp;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_a_small_picture_keeps_every_pixel() -> None:
    image = noise(32, 32, 3)
    np.testing.assert_array_equal(opened(data_uri(coloured(image))), image)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_any_number_of_channels_has_a_colour(channels: int) -> None:
    image = noise(8, 8, channels)
    pixels = np.asarray(coloured(image))
    if channels >= 3:
        np.testing.assert_array_equal(pixels, image[..., :3])
    else:
        assert np.abs(pixels - image.mean(axis=-1, keepdims=True)).max() <= 0.5


def test_padding_is_cut_away() -> None:
    pixels = Pixels(noise(2, 9, 7, 3), np.array([[9, 5], [4, 7]], dtype=np.int32))
    assert [
        picture.size for picture in IMAGE.presenter.pictures(pixels, IMAGE.reader.example_description(2))
    ] == [(5, 9), (7, 4)]


def test_a_limit_is_kept_where_a_quality_reaches_it() -> None:
    picture = coloured(noise(256, 256, 3))
    unlimited, tight = (len(opened_bytes(data_uri(picture, limit))) for limit in (None, 30_000))
    assert tight <= 30_000 < unlimited


def opened_bytes(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])


def test_tile_i_of_an_atlas_is_picture_i(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PER_SHEET", 4)  # three sheets, the last with three tiles
    colours = [(40 * i % 256, 90 * i % 256, 200 * i % 256) for i in range(11)]
    atlas = atlas_of([Image.new("RGB", (32, 32), colour) for colour in colours], 11, 32, 100_000)
    assert (len(atlas.sheets), atlas.columns, atlas.per_sheet, atlas.tile) == (3, 2, 4, 32)
    for place, colour in enumerate(colours):
        sheet = opened(atlas.sheets[place // 4])
        row, column = divmod(place % 4, atlas.columns)
        middle = sheet[row * 32 + 8 : row * 32 + 24, column * 32 + 8 : column * 32 + 24].mean(axis=(0, 1))
        np.testing.assert_allclose(middle, colour, atol=12)


def test_squares_are_the_middle_and_enlarge_without_blur() -> None:
    broad = np.zeros((20, 60, 3), dtype=np.uint8)
    broad[:, 20:40] = 255
    assert (np.asarray(square(coloured(broad), 20)) == 255).all()
    board = (np.indices((8, 8)).sum(axis=0) % 2 * 255).astype(np.uint8)[..., None]
    assert set(np.unique(np.asarray(square(coloured(board), 32)))) == {0, 255}


def test_within_keeps_the_whole_picture() -> None:
    assert within(coloured(noise(50, 200, 3)), 100).size == (100, 25)
    assert within(coloured(noise(10, 20, 3)), 100).size == (20, 10)
