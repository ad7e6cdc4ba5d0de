"""The lesions of augmentations: what each arm sees, and what is made of the figures."""

from pathlib import Path
from typing import Any

import pytest

from nearfar.config.resolving import resolve
from nearfar.errors import UserError
from nearfar.modalities.image.views import pipelines
from nearfar.studies import run_study
from nearfar.studies.views import AUGMENTATIONS, KINDS, RECIPES, STUDY, _finding, _remarks, changes

TOY = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_sees_its_own_augmentation_and_no_other(recipe: str, kind: str) -> None:
    layer = {key.replace("__", "."): value for key, value in changes(kind).items()}
    chosen = dict(resolve(recipe, "d", layer).views)
    own = {
        key: value
        for key, value in chosen.items()
        if key not in ("name", "count", "symmetric", "colours", "aligned")
    }
    usual = pipelines(chosen["name"], 16)[0]
    for view in pipelines(chosen["name"], 16, own):
        seen = {name for name in (*AUGMENTATIONS, "blur", "solarise") if getattr(view, name) > 0}
        assert seen == {"none": set(), "all": set(AUGMENTATIONS)}.get(kind, {kind})
        for name in seen:
            assert getattr(view, name) == getattr(usual, name)


def figures(**knn: tuple[float, float]) -> dict[str, list[dict[str, Any]]]:
    return {
        name.replace("_", ", "): [{"knn": value, "linear": value} for value in values] for name, values in knn.items()
    }  # fmt: skip


def test_steps_and_sentences_follow_the_figures() -> None:
    found = figures(
        simclr_none=(0.20, 0.24), simclr_flip=(0.23, 0.25), simclr_greyscale=(0.3, 0.3), simclr_jitter=(0.3, 0.3),
        simclr_crop=(0.30, 0.32), simclr_all=(0.40, 0.42), untrained=(0.2, 0.3),
        instdisc_none=(0.20, 0.24), instdisc_flip=(0.30, 0.30), instdisc_crop=(0.25, 0.26), instdisc_all=(0.5, 0.5),
        instdisc_greyscale=(0.3, 0.3), instdisc_jitter=(0.3, 0.3),
    )  # fmt: skip
    rows = {row.label: row for row in _finding(found, "simclr", "knn").rows}
    assert rows["none"].ours == pytest.approx(22.0)
    assert rows["none"].spread == pytest.approx(8**0.5)
    assert rows["none to crop, crop to all"].ours == "+9.0, +10.0"
    assert rows["none to flip"].ours == "+2.0"
    assert {row.paper for row in rows.values()} == {None}, "Wu et al. 2020 says nothing of SimCLR here"
    said = {row.label: row.paper for row in _finding(found, "instdisc", "knn").rows if row.paper}
    assert set(said) == {"none", "flip", "crop", "none to flip"}
    simclr, instdisc = _remarks(found, RECIPES)
    assert "none < crop alone < all holds" in simclr
    assert "near it" in simclr
    assert "does not hold" in instdisc
    assert "flip alone is +8.0 points from none, not near it" in instdisc


def test_the_study_runs(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, TOY)
    assert len(list((tmp_path / "arms").iterdir())) == 13
    assert [finding.name.split(", ")[1:3] for finding in record.result.findings] == [
        [recipe, f"{measure} top-1 in percent"] for measure in ("knn", "linear") for recipe in RECIPES
    ]
    assert {row.label for row in record.result.findings[0].rows} >= {"untrained", *KINDS}
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_one_recipe_can_be_asked_for(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, [*TOY, "recipes=moco"])
    assert len(list((tmp_path / "arms").iterdir())) == len(KINDS) + 1
    assert [finding.name.split(", ")[1] for finding in record.result.findings] == ["moco", "moco"]
    with pytest.raises(UserError, match="moko"):
        run_study(STUDY, tmp_path, [*TOY, "recipes=moko"])
