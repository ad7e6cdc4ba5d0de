"""The demo data's promises: reproducible, balanced, legible, and tested on typefaces training never saw."""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from jaxtyping import Int64, UInt8
from matplotlib.ft2font import FT2Font

from nearfar.errors import UserError
from nearfar.modalities.image.glyphs import CLASSES, FAMILIES, PICTURES_PER_FACE, _covers, _outline, glyphs

SPLITS = ("train", "test")
Pictures = tuple[UInt8[np.ndarray, "image 32 32 3"], Int64[np.ndarray, "image"], tuple[str, ...]]


@cache
def draw_split(split: str) -> Pictures:
    return glyphs(split)


def faces(split: str) -> list[str]:
    return [face for family in FAMILIES[split].values() for face in family]


def font(face: str) -> FT2Font:
    return FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"))


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_uint8_pictures_with_int64_labels_of_named_letters(split: str) -> None:
    images, labels, classes = draw_split(split)
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), 32, 32, 3)
    assert labels.dtype == np.int64
    assert labels.shape == (len(faces(split)) * len(classes) * PICTURES_PER_FACE,)
    assert len(set(classes)) == len(classes) == 20


def test_the_same_split_is_drawn_again_bit_for_bit() -> None:
    images, labels, classes = glyphs("test")
    np.testing.assert_array_equal(images, draw_split("test")[0])
    np.testing.assert_array_equal(labels, draw_split("test")[1])
    assert classes == draw_split("test")[2]


@pytest.mark.parametrize("split", SPLITS)
def test_every_letter_is_equally_frequent(split: str) -> None:
    _, labels, classes = draw_split(split)
    counts = np.bincount(labels)
    assert len(counts) == len(classes)
    assert len(set(counts.tolist())) == 1


def test_every_run_of_twenty_pictures_holds_every_letter() -> None:
    _, labels, classes = draw_split("train")
    for start in (0, 20, 6380):
        assert sorted(labels[start : start + 20].tolist()) == list(range(len(classes)))


def test_no_typeface_and_no_family_is_in_both_splits() -> None:
    assert not set(faces("train")) & set(faces("test"))
    names = {split: {font(face).family_name for face in faces(split)} for split in SPLITS}
    assert not names["train"] & names["test"]
    # The files' own family names, not our labels: the whole of Computer Modern is on one side.
    assert all(name.startswith("cm") for name in names["test"])
    assert not any(name.startswith("cm") for name in names["train"])


@pytest.mark.parametrize("face", faces("train") + faces("test"))
def test_every_typeface_has_every_letter_as_a_shape_of_its_own(face: str) -> None:
    charmap = font(face).get_charmap()
    glyph_ids = {charmap.get(ord(letter), 0) for letter in CLASSES}
    assert 0 not in glyph_ids  # 0 is the empty box of a missing letter
    assert len(glyph_ids) == len(CLASSES)


def test_letterforms_of_the_two_splits_differ() -> None:
    shapes = {split: {np.asarray(_outline(face, "R")).tobytes() for face in faces(split)} for split in SPLITS}
    assert len(shapes["train"]) == len(faces("train"))
    assert len(shapes["test"]) == len(faces("test"))
    assert not shapes["train"] & shapes["test"]


@pytest.mark.parametrize("split", SPLITS)
def test_no_picture_is_blank(split: str) -> None:
    images = draw_split(split)[0].astype(np.float32).mean(-1)
    assert images.std((1, 2)).min() > 12


def test_every_letter_is_legible() -> None:
    outlines = [_outline(face, letter) for face in faces("test") for letter in CLASSES]
    letter, clutter = _covers(outlines, seed=7)
    ink = letter.sum((1, 2))
    border = letter.sum((1, 2)) - letter[:, 1:-1, 1:-1].sum((1, 2))
    assert ink.min() > 25
    assert (border / ink).max() < 0.25
    assert 0 <= clutter.min() <= clutter.max() <= 1


@pytest.mark.parametrize("split", SPLITS)
def test_no_two_pictures_are_the_same(split: str) -> None:
    images = draw_split(split)[0]
    assert len({image.tobytes() for image in images}) == len(images)


def test_dark_on_light_and_light_on_dark_are_both_common() -> None:
    images, labels, _ = draw_split("train")
    faces_of = [faces("train")[i // len(CLASSES) % len(faces("train"))] for i in range(2000)]
    outlines = [_outline(face, CLASSES[label]) for face, label in zip(faces_of, labels[:2000], strict=True)]
    letter, clutter = _covers(outlines, seed=1)
    grey = images[:2000].astype(np.float32).mean(-1)
    inside = (grey * letter).sum((1, 2)) / letter.sum((1, 2))
    bare = (1 - letter) * (1 - clutter)
    outside = (grey * bare).sum((1, 2)) / bare.sum((1, 2))
    assert 0.45 < (inside > outside).mean() < 0.55
    assert np.quantile(np.abs(inside - outside), 0.01) > 40


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'validation'.*train or test"):
        glyphs("validation")
