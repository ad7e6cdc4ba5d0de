"""Settings: what is refused and in which words, and what the named pipelines say."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.errors import UserError
from nearfar.modalities.image.views import PIPELINES, Augment, pipelines

NUMBERS = ["crop", "flip", "jitter", "greyscale", "blur", "solarise", "brightness", "contrast", "saturation"]
NUMBERS += ["hue", "blur_kernel", "solarise_threshold"]
RANGES = ["crop_scale", "crop_ratio", "blur_sigma"]


def test_every_setting_is_covered_here() -> None:
    # `also` is not a setting: operations are named (tests/extending)
    assert {*NUMBERS, *RANGES, "greyscale_first", "also"} == {field.name for field in fields(Augment)}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "much", None, True, [0.5], (0.1, 0.2)])
def test_setting_that_is_not_a_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^views\.{name} was .*; expected .*$"):
        Augment(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [n for n in NUMBERS if n not in ("brightness", "contrast", "saturation")])
def test_shares_end_at_one(name: str) -> None:
    with pytest.raises(UserError, match=rf"^views\.{name} was 1\.01"):
        Augment(**{name: 1.01})  # type: ignore[arg-type]


def test_hue_ends_at_half_the_circle() -> None:
    assert Augment(hue=0.5).hue == 0.5
    with pytest.raises(UserError, match=r"views\.hue was 0\.51.* from 0 to 0\.5"):
        Augment(hue=0.51)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize(
    "value",
    [0.5, "0.1,1", (1.0, 0.5), (0.0, 1.0), (-1, 1), (0.1, 0.2, 0.3), (0.1, float("nan")), (True, True), None],
)
def test_setting_that_is_not_a_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^views\.{name} was .*; expected two numbers .*first$"):
        Augment(**{name: value})  # type: ignore[arg-type]


def test_a_crop_is_no_larger_than_the_image() -> None:
    with pytest.raises(UserError, match=r"views\.crop_scale was \(0\.5, 1\.5\)"):
        Augment(crop_scale=(0.5, 1.5))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_greyscale_first_is_true_or_false(value: object) -> None:
    with pytest.raises(UserError, match=r"views\.greyscale_first"):
        Augment(greyscale_first=value)  # type: ignore[arg-type]


def test_lists_and_whole_numbers_as_yaml_gives_them_are_taken() -> None:
    assert Augment(crop_scale=[1, 1], blur=1) == Augment(crop_scale=(1.0, 1.0), blur=1.0)  # type: ignore[arg-type]


json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(
    key=st.sampled_from([*NUMBERS, *RANGES, "greyscale_first", "first", "second", "blurr"])
    | st.text(max_size=5),
    value=json,
    side=st.sampled_from([None, "first", "second"]),
)
def test_any_change_is_taken_or_refused_by_name(key: str, value: object, side: str | None) -> None:
    changes: dict[str, object] = {key: value} if side is None else {side: {key: value}}
    section = "views" if side is None else f"views.{side}"
    assert outcome(changes).startswith(("taken", f"{section}.{key}"))


def outcome(changes: dict[str, object]) -> str:
    try:
        pipelines("simclr", 96, changes)
    except UserError as error:
        return str(error)
    return "taken"


def test_an_unknown_pipeline_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'simcrl'; expected simclr, .*byol.*moco.*instdisc.*none"):
        pipelines("simcrl", 32)


def test_changes_go_to_both_views_or_to_one() -> None:
    base = PIPELINES["byol"]
    assert pipelines("byol", 224, {"flip": 0.1, "second": {"flip": 0.3, "blur": 0.7}}) == (
        replace(base[0], flip=0.1),
        replace(base[1], flip=0.3, blur=0.7),
    )


@pytest.mark.parametrize(
    ("name", "size", "variant"),
    [
        ("simclr", 65, "simclr"),
        ("simclr", 64, "simclr-small"),
        ("byol", 32, "byol-small"),
        ("byol", 224, "byol"),
        ("moco", 32, "moco"),
        ("none", 32, "none"),
        ("simclr-small", 224, "simclr-small"),
    ],
)
def test_small_images_take_the_small_variant(name: str, size: int, variant: str) -> None:
    assert pipelines(name, size) == PIPELINES[variant]


def test_the_papers_differences_between_views_and_pipelines() -> None:
    first, second = PIPELINES["byol"]
    assert (first.blur, second.blur, first.solarise, second.solarise) == (1.0, 0.1, 0.0, 0.2)
    assert (first.brightness, first.contrast, first.saturation, first.hue) == (0.4, 0.4, 0.2, 0.1)
    simclr = PIPELINES["simclr"][0]
    assert (simclr.brightness, simclr.contrast, simclr.saturation, simclr.hue) == (0.8, 0.8, 0.8, 0.2)
    small = PIPELINES["simclr-small"][0]
    assert (small.brightness, small.contrast, small.saturation, small.hue, small.blur) == (
        0.4,
        0.4,
        0.4,
        0.1,
        0.0,
    )
    assert PIPELINES["moco"][0].greyscale_first


@pytest.mark.parametrize(("size", "width"), [(2, 3), (28, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_the_blurs_window_is_a_tenth_of_the_view_and_odd(size: int, width: int) -> None:
    assert Augment().kernel_width(size) == width
