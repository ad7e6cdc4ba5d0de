"""Views of several sizes: large crops are the views of one size, small ones show less of the picture."""

import numpy as np
import pytest
import torch

from nearfar.core.types import Pixels
from nearfar.modalities.image.data import ImageDescription
from nearfar.modalities.image.views import BYOLViews, CMCViews, SimCLRViews, draw
from nearfar.modalities.image.views.augment import PIPELINES, small_crops

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def pictures(count: int = 6, side: int = 24) -> Pixels:
    data = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return Pixels(data, np.full((count, 2), side, dtype=np.int32))


def made(settings: object, size: int = 16) -> tuple[torch.Tensor, ...]:
    description = ImageDescription("", 6, 3, size, MEAN, STD)
    return settings.training(description, CPU)(pictures(), 3, 1, np.arange(6))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [SimCLRViews, BYOLViews])
def test_large_crops_equal_views_of_one_size(kind: type) -> None:
    """Randomness is a function of (seed, epoch, index, view), so small crops change no bit of the large ones.
    The size of the crops decides, not that of evaluation."""
    several, single = made(kind(crops="2x16,3x8"), size=32), made(kind(count=2), size=16)
    assert [tuple(view.shape) for view in several] == [(6, 3, 16, 16)] * 2 + [(6, 3, 8, 8)] * 3
    for ours, expected in zip(several, single, strict=False):
        assert torch.equal(ours, expected)
    assert not torch.equal(several[2], several[3])
    assert (kind(crops="2x16,3x8").count, kind(crops="2x16,3x8").key_views, kind().key_views) == (5, 2, None)


def test_views_of_one_size_lie_in_one_block_of_memory() -> None:
    """So that a network takes them without a copy."""
    views = made(SimCLRViews(crops="2x16,2x8"))
    for first, second in (views[:2], views[2:]):
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("size", "changes", "expected"),
    [
        (224, {}, (0.05, 0.4)),
        (32, {}, (0.1, 0.4)),
        (32, {"crop_scale": [0.5, 1.0]}, (0.1, 0.4)),
        (32, {"small": {"crop_scale": [0.2, 0.3]}}, (0.2, 0.3)),
    ],
)
def test_small_crops_show_their_share_of_the_picture(
    size: int, changes: dict[str, object], expected: tuple[float, float]
) -> None:
    augment = small_crops("simclr", size, changes)
    assert augment.crop_scale == expected
    drawn = draw(augment, np.full((500, 2), 1000), 0, 0, np.arange(500), 2)
    share = drawn.box[:, 2].astype(float) * drawn.box[:, 3] / 1000**2
    # sides are rounded to a pixel of at least 200
    assert expected[0] * 0.98 < share.min() < share.max() < expected[1] * 1.02


def test_changes_reach_the_crops_they_name() -> None:
    first, second = PIPELINES["byol"]
    crop = small_crops("byol", 224, {"flip": 0.1, "small": {"hue": 0.3}, "second": {"flip": 0.9}})
    assert (crop.flip, crop.hue, crop.blur, crop.solarise) == (0.1, 0.3, 0.5, 0.0)
    assert (first.blur, second.blur, second.solarise) == (1.0, 0.1, 0.2)


def test_small_crops_repeat_the_channels_of_the_large_ones() -> None:
    """CMC: luminance and colour in turn; aligned crops are shared by the two of each turn."""
    views = made(CMCViews(colours="lab", aligned=True, crops="2x16,4x8"))
    assert [view.shape[1] for view in views] == [1, 2, 1, 2, 1, 2]
    assert not torch.equal(views[2], views[4])
    settings = CMCViews(aligned=True, crops="2x16,4x8")
    plain = made(settings)
    assert torch.equal(plain[0], plain[1])
    assert torch.equal(plain[2], plain[3])
    assert not torch.equal(plain[2], plain[4])


def test_a_plus_may_stand_for_the_comma() -> None:
    """Commas separate the values of a sweep."""
    assert SimCLRViews(crops="2x16+4x8").count == SimCLRViews(crops="2x16,4x8").count == 6
