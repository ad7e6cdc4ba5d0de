"""Operations beyond the kernel's, and the strength that stands for four settings of jitter."""

import math

import numpy as np
import pytest
import torch

from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.modalities.image.views import PIPELINES, Augment, Views, pipelines
from nearfar.modalities.image.views.operations import Erase, Pad, Rotate


def mirrored(place: float, side: int) -> float:
    """Where a place outside the image lies inside it, mirrored at the outer edges of the first and last
    pixel."""
    place = abs(place + 0.5) % (2 * side)
    return min(max((place if place <= side else 2 * side - place) - 0.5, 0.0), side - 1.0)


def turned(image: np.ndarray, angle: float) -> np.ndarray:
    """Each pixel is read at its place before a counter-clockwise turn about the centre; bilinear,
    mirrored."""
    height, width = image.shape
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            x, y = column - (width - 1) / 2, row - (height - 1) / 2
            across = math.cos(angle) * x - math.sin(angle) * y + (width - 1) / 2
            down = math.sin(angle) * x + math.cos(angle) * y + (height - 1) / 2
            across, down = mirrored(across, width), mirrored(down, height)
            first_x, top = min(int(across), width - 1), min(int(down), height - 1)
            right, bottom = min(first_x + 1, width - 1), min(top + 1, height - 1)
            a, b = across - first_x, down - top
            upper = (1 - a) * image[top, first_x] + a * image[top, right]
            lower = (1 - a) * image[bottom, first_x] + a * image[bottom, right]
            result[row, column] = (1 - b) * upper + b * lower
    return result


@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 8), (7, 11)])
def test_rotation_is_bilinear_about_the_centre(height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(6, 2, height, width, generator=generator, dtype=torch.float64)
    numbers = torch.tensor([[0.0], [0.25], [0.5], [0.6], [0.9], [0.999]], dtype=torch.float64)
    rotated_images = Rotate(1.0, 50.0)(images, numbers)
    for image, rotated, (number,) in zip(images, rotated_images, numbers.tolist(), strict=True):
        angle = math.radians(50 * (2 * number - 1))
        for channel in range(2):
            expected = turned(image[channel].numpy(), angle)
            np.testing.assert_allclose(rotated[channel].numpy(), expected, atol=1e-9)


def test_pad_is_a_border_and_a_crop() -> None:
    """Every one of the (2p + 1)^2 crops of the padded image, each as the numbers say."""
    images = torch.rand(25, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    places = [(top, left) for top in range(5) for left in range(5)]
    numbers = (torch.tensor(places) + 0.5) / 5
    moved = Pad(1.0, 2)(images, numbers)
    for image, view, (top, left) in zip(images, moved, places, strict=True):
        padded = torch.nn.functional.pad(image, [2] * 4)
        assert torch.equal(view, padded[:, top : top + 6, left : left + 5])


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    quarter = Rotate(1.0, 180.0)(images, torch.tensor([[0.75]], dtype=torch.float64))
    torch.testing.assert_close(quarter, torch.rot90(images, 1, (2, 3)))
    torch.testing.assert_close(Rotate(1.0, 0.0)(images, torch.tensor([[0.2]], dtype=torch.float64)), images)


def test_rotation_changes_no_other_draw() -> None:
    """Images that are not rotated keep every bit, and the draws of other operations do not change."""
    rng = np.random.default_rng(0)
    pixels = Pixels(
        rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8), np.full((40, 2), 12, dtype=np.int32)
    )

    def views_with(*also: Rotate | Erase) -> torch.Tensor:
        return Views([Augment(also=also)], 12, (0.5,) * 3, (0.25,) * 3)(pixels, 3, 1, np.arange(40))[0]

    unrotated, rotated = views_with(), views_with(Rotate(0.5))
    same = (unrotated == rotated).flatten(1).all(dim=1)
    assert 5 < int(same.sum()) < 35
    assert torch.equal(views_with(Rotate(0.0), Erase(0.5)), views_with(Erase(0.5)))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [({"degrees": 181}, r"views\.rotate\.degrees was 181"), (1.5, r"views\.rotate\.probability was 1\.5")],
)
def test_invalid_rotation_is_refused(setting: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pipelines("simclr", 32, {"rotate": setting})


# ---------------------------------------------------------------------------------------------- strength


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize("strength", [0.0, 0.25, 0.5, 1.0, 2.0])
def test_strength_is_simclrs(size: int, strength: float) -> None:
    """Chen et al. 2020, appendix A: ColorJitter(0.8 s, 0.8 s, 0.8 s, 0.2 s), for small and large images."""
    first, second = pipelines("simclr", size, {"strength": strength})
    assert first == second
    assert (first.brightness, first.contrast, first.saturation) == pytest.approx((0.8 * strength,) * 3)
    assert first.hue == pytest.approx(0.2 * strength)
    untouched = {"crop_scale", "greyscale", "jitter", "blur", "flip"}
    pipeline = pipelines("simclr", size)[0]
    assert all(getattr(first, name) == getattr(pipeline, name) for name in untouched)


def test_a_pipelines_own_strength_changes_nothing_and_proportions_stay() -> None:
    for name in PIPELINES:
        default = pipelines(name, 128)
        explicit = pipelines(name, 128, {"strength": default[0].brightness / 0.8})
        for one, second in zip(default, explicit, strict=True):
            for key in ("brightness", "contrast", "saturation", "hue"):
                assert getattr(one, key) == pytest.approx(getattr(second, key))
    byol = pipelines("byol", 128, {"strength": 1.0})[0]
    assert (byol.brightness, byol.contrast, byol.saturation, byol.hue) == pytest.approx((0.8, 0.8, 0.4, 0.2))


def test_one_of_the_four_is_set_beside_a_strength_and_each_view_has_its_own() -> None:
    first, second = pipelines("simclr", 32, {"strength": 0.5, "hue": 0.3, "second": {"strength": 1.0}})
    assert (first.brightness, first.hue) == pytest.approx((0.4, 0.3))
    assert second.brightness == pytest.approx(0.8)
    assert second.hue == 0.5  # 0.3 in proportion to 0.4, doubled: half a turn is all there is


@pytest.mark.parametrize("value", [-0.1, "much", True, None, 126, float("nan")])
def test_invalid_strength_is_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"^views\.second\.strength was .*; expected a number from 0 to 125$"):
        pipelines("simclr", 32, {"second": {"strength": value}})
    with pytest.raises(
        UserError, match=r"views\.second\.strength was 1; strength scales brightness, which is 0 here"
    ):
        pipelines("simclr", 32, {"brightness": 0.0, "second": {"strength": 1.0}})
