"""`infomin`: what a strength means, that the nats are InfoNCE's and stay below the truth, and the study in small."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.config.resolving import resolve
from nearfar.errors import UserError
from nearfar.modalities.image.views import Augment, pipelines
from nearfar.studies import run_study
from nearfar.studies.infomin import (
    MEASURES,
    STRENGTHS,
    STUDY,
    TEMPERATURES,
    TUNING,
    _finding,
    _remarks,
    changes,
    embedded_views,
    information,
)
from nearfar.train.pretrain import pretrain


def augment(strength: float) -> Augment:
    named = {key.removeprefix("views__"): value for key, value in changes(strength).items()}
    return pipelines("simclr", 16, named)[0]


def test_strength_one_is_the_recipes_own_pipeline() -> None:
    assert augment(1.0) == pipelines("simclr", 16)[0]
    assert resolve("simclr", "d", {k.replace("__", "."): v for k, v in changes(1.0).items()})


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
    own = [row[i] - row.max() - math.log(np.exp(row - row.max()).sum()) for i, row in enumerate(f)]
    return math.log(len(f)) + float(np.mean(own))


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
    found = information(first, second)
    assert round(TUNING * 300) == 60
    assert found.temperature == best
    assert found.nats == pytest.approx(brute_force(a[60:], b[60:], best), abs=1e-6)
    assert found.ceiling == pytest.approx(math.log(240))
    assert found.status == "proven"


def test_nats_stay_below_the_information_of_gaussian_views() -> None:
    """Views core + noise have correlation r = 1 / (1 + noise^2) in each of d dimensions: I = -d/2 log(1 - r^2)."""
    for noise in (0.5, 1.0, 2.0):
        truth = -4 / 2 * math.log(1 - 1 / (1 + noise**2) ** 2)
        found = information(*noisy_pairs(4000, 4, noise, seed=1))
        assert 0.0 < found.nats < truth
    assert information(*noisy_pairs(1000, 16, 0.0, seed=2)).nats == pytest.approx(math.log(800), abs=0.05)


def test_too_few_images_are_one_sentence() -> None:
    with pytest.raises(UserError, match="at least 10"):
        information(torch.randn(5, 2), torch.randn(5, 2))


def test_views_are_drawn_and_embedded_as_the_method_does(tmp_path: Path) -> None:
    """Row i of both sides is image i; without augmentation the two sides are equal."""
    images = np.random.default_rng(0).integers(0, 256, (700, 12, 12, 3), dtype=np.uint8)
    plainly = {key.removeprefix("views__"): value for key, value in changes(0.0).items()}
    run = pretrain(
        "simclr", images, tmp_path, quiet=True, backbone="resnet8-w16", epochs=1, batch_size=350, image_size=12,
        workers=0, views=plainly, precision="fp32",
    )  # fmt: skip
    opened = run.images(images)
    first, second = embedded_views(run, opened)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(700))
    rows = np.array([3, 650])
    alone = run.method().embed(run.views()(opened.load(rows), 1, 0, rows)[0])
    torch.testing.assert_close(first[rows], alone, atol=1e-5, rtol=1e-4)


def made_up(*linear: float) -> dict[float, list[dict[str, float | str]]]:
    claim: dict[str, float | str] = {
        "ceiling": 9.0, "temperature": 0.1, "status": "proven", "label_nats": 0.4, "plain_nats": 0.5,
    }  # fmt: skip
    return {
        strength: [{**claim, "nats": 8.5 - place, "linear": value / 100, "knn": value / 100}, {**claim, "nats": 8.7 - place, "linear": (value + 1) / 100, "knn": value / 100}]
        for place, (strength, value) in enumerate(zip(STRENGTHS, linear, strict=True))
    }  # fmt: skip


def test_the_shape_is_told_as_it_is() -> None:
    for values, word in (((30, 40, 45, 50, 47, 40, 30), "an inverted U"), ((30, 31, 32, 33, 34, 35, 36), "no inverted U")):  # fmt: skip
        groups = made_up(*values)
        findings = [_finding(groups, measure) for measure in MEASURES]
        first, *_, last = _remarks(groups, findings)
        assert f"is {word}" in first
        assert "strength 0)" in last  # 8.6 nats of a ceiling of 9
        assert (
            "a view tells at least 0.40 nats about the label and the whole image 0.50"
            in _remarks(groups, findings)[2]
        )
        labels = {row.label: row.ours for row in findings[1].rows}
        assert labels["I(v; y) over I(x; y), by strength"] == ", ".join(["80%"] * len(STRENGTHS))
        rows = {row.label: row for row in findings[3].rows}
        assert rows["best strength"].ours == ("1" if word == "an inverted U" else "3")
        assert rows["strength 0"].ours == pytest.approx(30.5)
        assert rows["strength 0"].spread == pytest.approx(0.5**0.5)
    assert {row.label: row.ours for row in findings[0].rows}["falls at every step"] == "yes"
    level = made_up(*[50.0] * 5, 49.5, 49.5)
    assert "no inverted U" in _remarks(level, [_finding(level, measure) for measure in MEASURES])[0]


def test_the_study_runs(tmp_path: Path) -> None:
    toy = ["data=glyphs:train", "images=80", "epochs=1", "size=12", "batch=40", "seeds=1", "jobs=1"]
    record = run_study(STUDY, tmp_path, toy)
    assert len(list((tmp_path / "arms").iterdir())) == len(STRENGTHS)
    assert not list((tmp_path / "runs").iterdir())
    nats, label, plain = (
        record.result.finding(MEASURES[key]).curves["mean"] for key in ("nats", "label_nats", "plain_nats")
    )
    assert nats[0] > nats[-1]
    # without augmentation a view is the image, so it tells the same about the label
    assert label[0] == pytest.approx(plain[0], abs=0.02)
    assert (tmp_path / "figure.png").stat().st_size > 1000
