"""Presets: a paper's settings override the recipe's and are overridden by the user's; each is complete."""

import pytest

from nearfar.cli import main
from nearfar.config.presets import PRESETS, method_of, preset_for
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.core.schedules import Plateau, at, parse_value
from nearfar.errors import UserError

EVERY = [(name, recipe) for name in PRESETS for recipe in RECIPES if method_of(name, recipe)]


@pytest.mark.parametrize(("name", "recipe"), EVERY)
def test_every_preset_is_complete_for_its_methods_and_their_variants(name: str, recipe: str) -> None:
    settings = resolve(recipe, "DATA", {"preset": name})
    assert settings.preset == name
    document = settings.as_plain()
    for key, value in preset_for(name, recipe).items():
        room, _, inside = {"temperature": "critic.temperature"}.get(key, key).partition(".")
        got = document[room][inside] if inside else document[room]
        assert str(parse_value(got)) == str(parse_value(value)) if "(" in str(value) else got == value, key


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
    assert (
        "selection.lower=0.9968" in capsys.readouterr().out
    )  # of ImageNet all but 4,096 (Wu et al. 2020, App. D)


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
