"""The drawn parameters follow the papers' laws and depend on nothing but (seed, epoch, index, view)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp, kstest
from torchvision.transforms import RandomResizedCrop

from nearfar.modalities.image.views import Augment, Parameters, draw
from nearfar.modalities.image.views.parameters import GREYSCALE, NEVER

MANY = 20_000
UNLIKELY = 1e-3  # the draws are fixed by their seeds: either a law holds on them or it does not


def draw_parameters(
    augment: Augment, height: int = 32, width: int = 32, count: int = MANY, view: int = 0
) -> Parameters:
    size = np.tile(np.array([height, width], dtype=np.int32), (count, 1))
    return draw(augment, size, 7, 3, np.arange(count), view)


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (224, 224, (0.08, 1.0), (3 / 4, 4 / 3)),
        (96, 128, (0.2, 1.0), (3 / 4, 4 / 3)),
        (40, 150, (0.3, 1.0), (3 / 4, 4 / 3)),  # many attempts, some central crops
        (150, 40, (0.5, 1.0), (0.9, 1.2)),  # mostly central crops
        (64, 64, (0.5, 0.5), (1.0, 1.0)),
    ],
)
def test_crops_follow_torchvisions_law(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(4000)], dtype=float
    )
    ours = draw_parameters(Augment(crop_scale=scale, crop_ratio=ratio), height, width).box.astype(float)
    for measure in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2],
        lambda box: box[:, 3],
        lambda box: box[:, 2] * box[:, 3],
        lambda box: np.log(box[:, 3] / box[:, 2]),
        lambda box: box[:, 0] - box[:, 2],
        lambda box: box[:, 1] + box[:, 3],
    ):
        assert ks_2samp(measure(ours), measure(theirs)).pvalue > UNLIKELY


@settings(deadline=None, max_examples=200)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    scale=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted),
    ratio=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)).map(sorted),
    crop=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_every_crop_lies_within_its_image(
    height: int, width: int, scale: list[float], ratio: list[float], crop: float
) -> None:
    augment = Augment(crop=crop, crop_scale=(scale[0], scale[1]), crop_ratio=(ratio[0], ratio[1]))
    top, first_column, tall, width_of_crop = draw_parameters(augment, height, width, count=50).box.T
    assert (tall >= 1).all()
    assert (width_of_crop >= 1).all()
    assert (top >= 0).all()
    assert (first_column >= 0).all()
    assert (top + tall <= height).all()
    assert (first_column + width_of_crop <= width).all()


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(30, 100, (0, 30, 30, 40)), (100, 30, (30, 0, 40, 30)), (50, 60, (0, 0, 50, 60))],
)
def test_without_a_random_crop_the_largest_central_one_is_taken(
    height: int, width: int, box: tuple[int, ...]
) -> None:
    assert (draw_parameters(Augment(crop=0.0), height, width, count=20).box == box).all()


PROBABILITIES = {
    "flip": lambda p: p.flip,
    "jitter": lambda p: (p.factors != np.array([1, 1, 1, 0], dtype=np.float32)).all(axis=1),
    "greyscale": lambda p: p.greyscale,
    "blur": lambda p: p.sigma > 0,
    "solarise": lambda p: p.solarise != NEVER,
    "crop": lambda p: (p.box != np.array([0, 0, 32, 32])).any(axis=1),
}


@pytest.mark.parametrize("name", PROBABILITIES)
@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_operations_happen_with_their_probability(name: str, probability: float) -> None:
    # The smallest crop scale keeps a random crop from being the whole image.
    augment = replace(Augment(crop_scale=(0.1, 0.5)), **{name: probability})  # type: ignore[arg-type]
    share = PROBABILITIES[name](draw_parameters(augment)).mean()
    assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / MANY)


def test_decisions_are_independent_of_one_another() -> None:
    first, second = (draw_parameters(replace(Augment(), solarise=0.5), view=view) for view in (0, 1))
    columns = [
        column
        for p in (first, second)
        for column in (*p.box.T, p.flip, *p.factors.T, p.order[:, 0], p.greyscale, p.sigma, p.solarise)
    ]
    correlation = np.corrcoef(np.stack(columns).astype(float))
    # A crop's place and size do depend on each other.
    within = np.arange(len(columns)) % (len(columns) // 2) < 4
    same_view = np.arange(len(columns)) // (len(columns) // 2)
    crops = within[:, None] & within[None, :] & (same_view[:, None] == same_view[None, :])
    # The four factors share the decision to jitter; their deviations are symmetric, so uncorrelated.
    correlation[crops | np.eye(len(columns), dtype=bool)] = 0
    assert np.abs(correlation).max() < 5 / math.sqrt(MANY)


def test_factors_and_deviations_are_uniform() -> None:
    p = draw_parameters(Augment(jitter=1.0, brightness=0.8, contrast=0.4, saturation=1.5, hue=0.2, blur=1.0))
    for values, low, high in (
        (p.factors[:, 0], 0.2, 1.8),
        (p.factors[:, 1], 0.6, 1.4),
        (p.factors[:, 2], 0.0, 2.5),  # never below none at all
        (p.factors[:, 3], -0.2, 0.2),
        (p.sigma, 0.1, 2.0),
    ):
        assert kstest(values, "uniform", (low, high - low)).pvalue > UNLIKELY


def test_every_order_of_the_jitter_is_equally_likely() -> None:
    orders = draw_parameters(Augment()).order
    assert (orders[:, 4] == GREYSCALE).all()
    kinds, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(kinds) == 24
    assert chisquare(counts).pvalue > UNLIKELY


def test_greyscale_can_come_first() -> None:
    orders = draw_parameters(Augment(greyscale_first=True), count=100).order
    assert (orders[:, 0] == GREYSCALE).all()
    assert (np.sort(orders, axis=1) == np.arange(5)).all()


def test_strength_zero_draws_the_neutral_factor() -> None:
    p = draw_parameters(Augment(jitter=1.0, brightness=0, contrast=0, saturation=0, hue=0))
    assert (p.factors == np.array([1, 1, 1, 0], dtype=np.float32)).all()


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_draws_do_not_depend_on_the_rest_of_the_batch(data: st.DataObject) -> None:
    size = np.random.default_rng(0).integers(3, 200, (64, 2)).astype(np.int32)
    augment = Augment(crop_scale=(0.5, 1.0), solarise=0.3)
    joint = draw(augment, size, 5, 2, np.arange(64) + 1000, 1)
    some = np.array(data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=20)))
    single = draw(augment, size[some], 5, 2, some + 1000, 1)
    for name, values in vars(joint).items():
        np.testing.assert_array_equal(values[some], getattr(single, name))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"epoch": 1}, {"view": 1}, {"index": np.arange(100) + 1}])
def test_seed_epoch_view_and_index_each_change_what_is_drawn(changes: dict[str, object]) -> None:
    base = {"seed": 0, "epoch": 0, "view": 0, "index": np.arange(100)}
    size = np.full((100, 2), 50, dtype=np.int32)
    one, two = (draw(Augment(), size, **{**base, **change}) for change in ({}, changes))  # type: ignore[arg-type]
    assert (one.factors[:, 0] == two.factors[:, 0]).mean() < 0.3
    assert (one.box == two.box).all(axis=1).mean() < 0.3
