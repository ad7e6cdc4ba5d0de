"""Presets: a paper's settings override the recipe's and are overridden by the user's; each is complete."""

from typing import get_args

import pytest
import torch

import nearfar as nf
from nearfar.cli import main
from nearfar.config.presets import PRESETS, method_of, preset_for
from nearfar.config.recipes import RECIPES
from nearfar.config.recipes.recipe import OptimizerName
from nearfar.config.resolving import resolve
from nearfar.core.optimisers import OPTIMISERS
from nearfar.core.schedules import Plateau, Progress, Schedule, at, parse_value
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError
from nearfar.modalities.image.views import pipelines
from nearfar.train.distill import student_of

EVERY = [(name, recipe) for name in PRESETS for recipe in RECIPES if method_of(name, recipe)]


@pytest.mark.parametrize(("name", "recipe"), EVERY)
def test_every_preset_is_complete_for_its_methods_and_their_variants(name: str, recipe: str) -> None:
    settings = resolve(recipe, "DATA", {"preset": name})
    assert settings.preset == name
    document = settings.as_plain()
    for key, value in preset_for(name, recipe).items():
        room, _, inside = {"temperature": "critic.temperature"}.get(key, key).partition(".")
        got = document[room][inside] if inside else document[room]
        assert parse_value(got) == value if isinstance(value, Schedule) else got == value, key


def test_optimisers_of_recipes_are_all_optimisers() -> None:
    assert set(get_args(OptimizerName)) == set(OPTIMISERS)
    assert set(OPTIMISERS) >= {recipe.training.optimizer for recipe in RECIPES.values()}


def test_settings_override_presets_and_presets_the_recipe() -> None:
    """Wu et al. 2021, sec. 5: SGD, 0.03, 300 epochs; the ring narrows in 100 of them."""
    baseline, ours = resolve("moco-ring", "DATA"), resolve("moco-ring", "DATA", {"preset": "wu2021"})
    mine = resolve("moco-ring", "DATA", {"epochs": 7}, {"preset": "wu2021", "lr": 0.5})
    assert (baseline.optimizer, ours.optimizer, mine.optimizer) == ("adamw", "sgd", "sgd")
    assert (ours.epochs, mine.epochs) == (300, 7)
    assert ours.selection["lower"].written() == "linear(0.0,0.9,100.0)"
    assert ours.selection["upper"] == baseline.selection["upper"]  # not in the paper, so ours
    assert mine.lr == 0.5
    assert resolve("moco-ring", "DATA", {"preset": "none"}).as_plain() == baseline.as_plain()


def test_a_variant_takes_its_own_methods_preset() -> None:
    assert method_of("he2020", "moco-v1-ring") == "moco-v1"
    assert method_of("he2020", "moco-v3") is None
    assert method_of("he2020", "moco-ring") == "moco"
    assert isinstance(resolve("instdisc-annulus", "DATA", {"preset": "wu2020"}).lr, Plateau)


def test_what_a_preset_adds_to_a_selection_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "moco-ring"]) == 0
    assert "selection.lower=linear(0,0.9,100)" in capsys.readouterr().out
    assert main(["recipes", "instdisc-ball"]) == 0
    assert "selection.nearest=4096" in capsys.readouterr().out  # Wu et al. 2020, App. D


def test_wu2020_has_one_background_for_all() -> None:
    """Wu et al. 2020, App. D: the 4096 nearest, of however many rows there are; SGD, 0.03, batches of 256, temperature 0.07,
    a bank that keeps half."""
    settings = resolve("instdisc-ball", "DATA", {"preset": "wu2020"})
    assert (settings.optimizer, settings.momentum, settings.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (settings.batch_size, settings.critic["temperature"], settings.negatives["momentum"]) == (
        256,
        0.07,
        0.5,
    )
    ball = settings.selection
    others = [
        resolve(recipe, "DATA", {"preset": "wu2020"}).selection for recipe in ("instdisc-annulus", "la")
    ]
    assert ball["nearest"] == 4096
    assert [one["background"] for one in others] == [4096, 4096]
    scores = nf.Scores.of(torch.zeros(2), torch.randn(2, 9, generator=torch.Generator().manual_seed(0)))
    kept = nf.Ball(0.0, nearest=4)(scores).negative.matrix()
    expected = kept[0] >= kept[0].sort(dim=1).values[:, -4:-3]
    assert torch.equal(kept[1], expected)
    sampling = nf.Ball(0.0, nearest=4).sampling(NegativeSampling(2, 9))
    assert (sampling.negatives, sampling.cut) == (4, "below")
    assert nf.InfoNCE().certificate(sampling).status == "proven"


def test_song2020_distils_as_its_appendix_says() -> None:
    """Song & Ermon 2020, App. C.3: 240 epochs of SGD, the rate over ten at 150, 180 and 210, 16,384 negatives."""
    settings = resolve("distill", "DATA", {"preset": "song2020"})
    assert (settings.epochs, settings.batch_size, settings.weight_decay) == (240, 64, 5e-4)
    assert (settings.optimizer, settings.momentum) == ("sgd", 0.9)
    rates = [at(settings.lr, Progress(epoch, 240)) for epoch in (0, 149, 150, 180, 210)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])
    assert settings.selection["sample"] == 16_384
    assert settings.critic["temperature"] == 0.07


@pytest.mark.parametrize("classes", [0, 10])
def test_song2020_distils_without_kd(classes: int) -> None:
    """Song & Ermon 2020, App. C.3: no KD beside the contrast, also where the teacher has a classifier."""
    features = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    teacher = nf.Teacher(features, torch.nn.Linear(5, classes) if classes else None, size=8)
    settings, _, _ = student_of(teacher, "DATA", None, {"preset": "song2020", "image_size": 8})
    assert settings.preset == "song2020"
    assert settings.prior["kd"] == 0
    assert settings.bound["name"] == "ml-cpc"
    assert settings.encoders["classes"] == 0
    assert resolve("distill", "DATA", {"preset": "song2020"}).prior["kd"] == 0
    chosen, _, _ = student_of(teacher, "DATA", None, {"preset": "song2020", "image_size": 8}, objective="crd")
    assert chosen.bound["name"] == "nce-constant"


def test_song2020_trains_moco_as_its_appendix_says() -> None:
    """Song & Ermon 2020, App. C.4: batch 256, rate 0.3, temperature 0.07."""
    settings = resolve("moco", "DATA", {"preset": "song2020"})
    assert (settings.batch_size, at(settings.lr), settings.critic["temperature"]) == (256, 0.3, 0.07)


def test_wu2021_has_224_pixels() -> None:
    assert resolve("moco-ring", "DATA", {"preset": "wu2021"}).image_size == 224


def test_byol_views_are_the_thesis_ones() -> None:
    """Sáez Maldonado 2021, sec. 10.2.1: jitter 0.8, greyscale 0.2, blur always, solarise 0.2 of the second view alone."""
    settings = resolve("byol", "DATA", {"preset": "saez2021"})
    views = {key: settings.views[key] for key in ("jitter", "greyscale", "blur", "second")}
    first, second = pipelines("byol", 32, views)
    for view in (first, second):
        assert (view.jitter, view.greyscale, view.blur) == (0.8, 0.2, 1.0)
    assert (first.solarise, second.solarise) == (0.0, 0.2)


@pytest.mark.parametrize("preset", ["grill2020", "saez2021"])
def test_byol_of_a_preset_sums_both_directions(preset: str) -> None:
    """Sáez Maldonado 2021, Eq. 25 and Grill et al. 2020, Eq. 2-3: L + L~, where the recipe has their mean."""
    bound = nf.Agreement(
        **{k: v for k, v in resolve("byol", "DATA", {"preset": preset}).bound.items() if k != "name"}
    )
    cosines = torch.tensor([0.3, -0.2, 0.9])
    scores = nf.Scores.of(cosines, torch.zeros(3, 0))
    assert float(bound(scores)) == pytest.approx(2 * float(nf.Agreement()(scores)))
    assert float(nf.Agreement()(scores)) == pytest.approx(-float((2 - 2 * cosines).mean()))


def test_the_learning_rate_of_cmc_gives_the_papers_steps() -> None:
    """SGD: lr (g + d w) with g = G / 2, lr = 2 L and d = D / 2 is L (G + D w)."""
    summed, rate = (
        resolve("instdisc", "DATA", {"preset": "wu2021"}),
        resolve("cmc", "DATA", {"preset": "wu2021"}),
    )
    assert at(rate.lr) == pytest.approx(2 * at(summed.lr))
    assert rate.weight_decay == pytest.approx(summed.weight_decay / 2)


@pytest.mark.parametrize(
    ("name", "recipe", "sentence"),
    [
        ("wu2031", "moco", "wu2031 is not one of the presets"),
        ("grill2020", "moco", "preset was grill2020 with the recipe moco; it has settings for byol"),
        (3, "moco", "3 is not one of the presets"),
    ],
)
def test_an_unsuitable_preset_is_refused_with_the_suitable_ones(
    name: object, recipe: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve(recipe, "DATA", {"preset": name})
