"""`infomin`: the meaning of a strength, nats that are InfoNCE's and below the truth, and a small study."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.config.resolving import resolve
from nearfar.errors import UserError
from nearfar.modalities.image.views import Augment, pipelines
from nearfar.studies import StudyResult, run_study
from nearfar.studies.comparison import make_result
from nearfar.studies.images import ImageSetup
from nearfar.studies.infomin import (
    STRENGTHS,
    TEMPERATURES,
    TUNING_SHARE,
    add_information,
    embedded_views,
    infomin,
    information,
    scaled_views,
    strength_name,
)
from nearfar.studies.run import find_study
from nearfar.train.pretrain import pretrain


def augment(strength: float) -> Augment:
    options = {key.removeprefix("views."): value for key, value in scaled_views(strength).items()}
    return pipelines("simclr", 16, options)[0]


def test_strength_one_is_the_recipes_own_pipeline() -> None:
    assert augment(1.0) == pipelines("simclr", 16)[0]
    assert resolve("simclr", "d", scaled_views(1.0))


def test_strength_zero_shows_the_image_as_it_is() -> None:
    weakest = augment(0.0)
    assert weakest.crop_scale == (1.0, 1.0)
    assert weakest.flip == weakest.greyscale == weakest.blur == weakest.solarise == 0.0
    assert weakest.brightness == weakest.contrast == weakest.saturation == weakest.hue == 0.0


def test_every_knob_moves_one_way() -> None:
    chain = [augment(strength) for strength in STRENGTHS]
    for weak, strong in itertools.pairwise(chain):
        assert weak.crop_scale[0] > strong.crop_scale[0]
        assert weak.crop_scale[1] >= strong.crop_scale[1]
        assert weak.brightness < strong.brightness
        for name in ("hue", "greyscale", "flip"):
            assert getattr(weak, name) <= getattr(strong, name)


def brute_force(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    """Liu 2022, Eq. 25-33 in float64, anchor by anchor: log m + log softmax of the pair's own cosine."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second)]
    f = unit[0] @ unit[1].T / temperature
    terms = [row[i] - row.max() - math.log(np.exp(row - row.max()).sum()) for i, row in enumerate(f)]
    return math.log(len(f)) + float(np.mean(terms))


def noisy_pairs(size: int, dim: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    core = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    first, second = (
        core + noise * torch.randn(size, dim, generator=generator, dtype=torch.float64) for _ in "ab"
    )
    return first, second


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_nats_are_infonce_on_the_rows_the_temperature_was_not_chosen_on(noise: float) -> None:
    first, second = noisy_pairs(300, 4, noise, seed=0)
    a, b = first.numpy(), second.numpy()
    best = max(TEMPERATURES, key=lambda t: brute_force(a[:60], b[:60], t))
    estimate = information(first, second)
    assert round(TUNING_SHARE * 300) == 60
    assert estimate["temperature"] == best
    assert estimate["nats"] == pytest.approx(brute_force(a[60:], b[60:], best), abs=1e-6)
    assert estimate["ceiling"] == pytest.approx(math.log(240))
    assert estimate["status"] == "proven"


def test_nats_stay_below_the_information_of_gaussian_views() -> None:
    """Views core + noise have correlation r = 1 / (1 + noise^2) in each dimension: I = -d/2 log(1 - r^2)."""
    for noise in (0.5, 1.0, 2.0):
        truth = -4 / 2 * math.log(1 - 1 / (1 + noise**2) ** 2)
        estimate = information(*noisy_pairs(4000, 4, noise, seed=1))
        assert 0.0 < estimate["nats"] < truth
    assert information(*noisy_pairs(1000, 16, 0.0, seed=2))["nats"] == pytest.approx(math.log(800), abs=0.05)


def test_too_few_images_are_one_sentence() -> None:
    with pytest.raises(UserError, match="at least 10"):
        information(torch.randn(5, 2), torch.randn(5, 2))


def test_views_are_drawn_and_embedded_as_the_method_does(tmp_path: Path) -> None:
    """Row i of both sides is image i; without augmentation the two sides are equal."""
    images = np.random.default_rng(0).integers(0, 256, (700, 12, 12, 3), dtype=np.uint8)
    unchanged = {key.removeprefix("views."): value for key, value in scaled_views(0.0).items()}
    run = pretrain(
        "simclr", images, tmp_path, quiet=True, backbone="resnet8-w16", epochs=1, batch_size=350,
        image_size=12,
        workers=0, views=unchanged, precision="fp32",
    )  # fmt: skip
    opened = run.open_data(images)
    first, second = embedded_views(run, opened)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(700))
    rows = np.array([3, 650])
    two_rows = run.method().embed(run.views()(opened.load(rows), 1, 0, rows)[0])
    torch.testing.assert_close(first[rows], two_rows, atol=1e-5, rtol=1e-4)


def result_for(*linear: float) -> StudyResult:
    """The study's result for these accuracies in percent, with views that share one nat less per step."""
    shared: dict[str, Any] = {
        "ceiling": 9.0, "temperature": 0.1, "status": "proven", "label_nats": 0.4, "plain_nats": 0.5,
    }  # fmt: skip
    figures = {}
    for place, (strength, value) in enumerate(zip(STRENGTHS, linear, strict=True)):
        seeds = ((8.5 - place, value), (8.7 - place, value + 1 + 0.01 * place))
        figures[strength_name(strength)] = [
            {**shared, "nats": nats, "linear": top1 / 100, "knn": top1 / 100} for nats, top1 in seeds
        ]
    comparison = infomin(ImageSetup())
    return add_information(make_result(figures, comparison), figures, comparison)


def test_remarks_name_the_shape() -> None:
    for values, word in (((30, 40, 45, 50, 47, 40, 30), "an inverted U"), ((30, 31, 32, 33, 34, 35, 36),
    "no inverted U")):  # fmt: skip
        result = result_for(*values)
        first, *_, last = result.remarks
        assert f"is {word}" in first
        assert "strength 0)" in last  # 8.6 nats of a ceiling of 9
        assert "a view says at least 0.40 nats about the label and the whole image 0.50" in result.remarks[2]
        shares = result.tables[1].row("I(v; y) over I(x; y), by strength").ours
        assert shares == ", ".join(["80%"] * len(STRENGTHS))
        linear = result.table("Accuracy, linear top-1 in percent")
        assert linear.row("strength 0").ours == pytest.approx(30.5)
        assert linear.row("strength 0").spread == pytest.approx(0.5**0.5)
        assert result.tables[0].row("falls at every step").ours == "yes"
    assert "no inverted U" in result_for(*[50.0] * 5, 49.5, 49.5).remarks[0]


def test_the_study_runs(tmp_path: Path) -> None:
    toy = ["data=glyphs:train", "images=80", "epochs=1", "size=12", "batch=40", "seeds=1", "jobs=1"]
    result = run_study(find_study("infomin"), tmp_path, toy).result
    assert len(list((tmp_path / "cells").iterdir())) == len(STRENGTHS)
    first, last = strength_name(STRENGTHS[0]), strength_name(STRENGTHS[-1])
    nats, label, plain_table = result.tables[:3]
    assert float(nats.row(first).ours or 0.0) > float(nats.row(last).ours or 0.0)
    # without augmentation a view is the image, so both say the same about the label
    assert label.row(first).ours == pytest.approx(plain_table.row(first).ours, abs=0.02)
    assert (tmp_path / "figure.png").stat().st_size > 1000
