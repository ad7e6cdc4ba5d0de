"""The page of methods and `nearfar recipes`: complete, computed, and never behind the recipes."""

import json

import pytest

from nearfar.cli import main
from nearfar.config.fields import CHOICES
from nearfar.config.methods_page import CompleteRecipe, base_of, equation_of, methods_page
from nearfar.config.recipes import BASE, RECIPES
from nearfar.config.resolving import resolve
from nearfar.config.sections import PARTS_BY_CHOICE
from nearfar.run.trained import fresh_method


@pytest.fixture(scope="module")
def entries() -> dict[str, CompleteRecipe]:
    return {name: CompleteRecipe.of(name) for name in RECIPES}


@pytest.fixture(scope="module")
def page(entries: dict[str, CompleteRecipe]) -> str:
    return methods_page(entries)


@pytest.mark.parametrize("room", PARTS_BY_CHOICE)
def test_every_part_has_a_line(room: str) -> None:
    assert all(isinstance(getattr(part, "equation", None), str) for part in PARTS_BY_CHOICE[room].values())


def test_every_line_uses_settings_of_its_part() -> None:
    """An unknown name in braces would stop the page; a remaining brace would show in it."""
    changes = {room: list(parts) for room, parts in PARTS_BY_CHOICE.items()}
    for room in ("critic", "negatives", "selection", "bound"):
        for name in changes[room]:
            if name in ("none", "dictionary", "corrupted", "group"):
                continue
            recipe = {"sinkhorn": "swav", "centred": "dino"}.get(name, "simclr")
            choices = {r: getattr(resolve(recipe, "DATA", {room: {"name": name}}), r) for r in CHOICES}
            assert not any("{" in line for line in equation_of(choices).values())


def test_every_recipe_is_on_the_page_with_its_claim(entries: dict[str, CompleteRecipe], page: str) -> None:
    for name, entry in entries.items():
        certificate = entry.certificate()
        if base_of(name, entries) is None:
            section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert entry.command in section
            assert f"**{certificate.status.capitalize()}**" in section
            for line in equation_of(entry.choices).values():
                assert line in section
        else:
            section = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
            assert f"{certificate.status}: " in section
        assert all(clause in section for clause in certificate.condition.split("; "))


@pytest.mark.parametrize("name", ["simclr", "moco", "instdisc-ring", "end-to-end-ball", "byol"])
def test_a_certificate_on_the_page_is_that_of_the_method(
    name: str, entries: dict[str, CompleteRecipe]
) -> None:
    """The certificate is the same with and without the method's memory."""
    settings = resolve(name, "DATA", {"backbone": "resnet8-w16"})
    method = fresh_method(settings, settings.modality.reader.example_description(10_000))
    assert entries[name].certificate() == method.eval().certificate(
        256, settings.views["count"], held_out=True
    )


def test_variants_are_those_that_a_rule_makes(entries: dict[str, CompleteRecipe]) -> None:
    for name, entry in entries.items():
        base = base_of(name, entries)
        if base is not None:
            for room in ("views", "encoders", "critic", "negatives", "bound"):
                assert entry.choices[room] == entries[base].choices[room]
    assert base_of("moco-ring", entries) == "moco"
    assert base_of("moco-v1", entries) is None
    assert base_of("end-to-end", entries) is None


def test_local_aggregation_keeps_its_close_neighbours_whatever_its_negatives(
    entries: dict[str, CompleteRecipe],
) -> None:
    """Under every selection, members of the anchor's clusters are positives in the equation."""
    for selection in ("ring", "ball", "cave", "neighbours"):
        assert "sum over C" in equation_of(entries[f"la-{selection}"].choices)["who counts"]
    assert entries["la-cave"].choices["selection"]["close"] == entries["la"].choices["selection"]["clusters"]
    assert entries["la-ball"].choices["selection"]["upper"] == 1.0
    assert "without C" not in equation_of(entries["instdisc-cave"].choices)["who counts"]


def test_equations_hold_the_settings_in_force() -> None:
    settings = resolve(
        "moco-ring", "x", {"temperature": 0.3, "bound": {"name": "ml-cpc", "alpha": "geometric(10,0.1)"}}
    )
    equation = equation_of({room: getattr(settings, room) for room in CHOICES})
    assert equation["f(u, v)"] == "cos(u, v) / 0.3"
    assert equation["objective"].endswith("alpha = geometric(10.0,0.1)")
    assert "h = 0.99" in equation["who counts"]


def test_the_command_prints_one_recipe_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "moco-ring"]) == 0
    output = capsys.readouterr().out
    for key in (*CHOICES, "claims", "objective", "who counts", "command"):
        assert f"\n  {key:<10} " in output
    assert "nearfar pretrain moco-ring photos/ --out runs/moco-ring" in output


def test_the_command_lists_all_with_their_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--all"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n  claims     ") == len(RECIPES)


def test_the_command_gives_each_base_method_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == list(BASE)


def test_json_keeps_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "moco-ring", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"moco-ring"}
    assert list(printed["moco-ring"]) == [
        "views",
        "encoders",
        "critic",
        "negatives",
        "selection",
        "bound",
        "prior",
    ]
    assert all(isinstance(line, str) for line in printed["moco-ring"].values())


def test_the_command_prints_the_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--markdown"]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.parametrize("words", [["recipes", "simclr", "--markdown"], ["recipes", "--json", "--markdown"]])
def test_the_page_is_of_all(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "--markdown" in capsys.readouterr().err


def test_settings_that_change_the_equation_are_shown() -> None:
    def equation(recipe: str, **changes: object) -> dict[str, str]:
        settings = resolve(recipe, "x", changes)
        return equation_of({room: getattr(settings, room) for room in CHOICES})

    assert "sum over C" in equation("la")["who counts"]
    assert "sum over C" not in equation("la", selection={"keep": "annulus"})["who counts"]
    assert "predictor" in equation("byol")["u, v"]
    assert "no gradient" in equation("simsiam")["u, v"]
    assert "alone" in equation("triplet", bound={"semi_hard": True})["objective"]
    assert "v_k" not in equation("byol")
