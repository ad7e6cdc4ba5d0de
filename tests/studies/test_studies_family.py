"""The study of every image recipe: its arms, the arithmetic of its tables, and its remarks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.config.recipes import RECIPES
from nearfar.studies import run_study
from nearfar.studies.comparison import Comparison, make_result
from nearfar.studies.family import (
    DIFFERENCES,
    PAPER,
    add_differences,
    base_of,
    choose_entries,
    entries,
    family,
    paper_difference,
)
from nearfar.studies.images import ImageSetup
from nearfar.studies.run import find_study

TOY = ["data=digits", "on=validation", "images=120", "epochs=1", "size=8", "batch=40", "seeds=2", "jobs=1"]


def test_every_image_recipe_and_its_selections_are_in() -> None:
    names = set(entries())
    assert set(RECIPES) - names == {
        *("cpc", "mlm", "cebra", "la-neighbours", "supervised", "distill"),
        *("infograph", "graphcl", "dgi", "grace", "clip", "siglip"),
    }
    assert RECIPES["la-neighbours"].settings(9) == RECIPES["la-ring"].settings(9)
    assert {f"moco-ml-cpc-{ends}" for ends in ("1", "2-0.5", "5-0.2", "10-0.1")} <= names
    assert all(arm.recipe in RECIPES for arm in entries().values())


def test_base_of_a_variant() -> None:
    assert base_of("moco-v1-ring") == "moco-v1"
    assert base_of("simclr-cave") == "simclr"
    assert base_of("moco-ml-cpc-10-0.1") == "moco"
    assert base_of("moco-v1") is None
    assert base_of("byol") is None


def test_paper_values_name_their_table_and_differences_are_of_one_paper() -> None:
    assert set(PAPER) <= set(entries())
    column = family(ImageSetup()).paper["linear"].values
    assert column["cmc-ring"] == "87.6, Wu et al. 2021 Table 1a"
    assert "byol" not in column
    assert paper_difference("cmc-ring", "cmc") == "+2, Wu et al. 2021 Table 1a"
    assert paper_difference("instdisc-ball", "instdisc") == "+0.9, Wu et al. 2021 Table 1a and 2a"
    assert paper_difference("moco-ml-cpc-10-0.1", "moco") == "+2.88, Song & Ermon 2020 Table 3a"
    assert paper_difference("simclr-ring", "simclr") is None
    for name in PAPER:
        base = base_of(name)
        if base in PAPER:
            assert PAPER[name][1].partition(" Table")[0] == PAPER[base][1].partition(" Table")[0]


def test_recipes_can_be_chosen() -> None:
    assert list(choose_entries("moco,moco-v1-ring")) == ["moco", "moco-v1-ring"]
    assert choose_entries("all") == entries()
    with pytest.raises(nf.UserError, match=r"simclrr is not one of the recipes \(did you mean simclr, "):
        choose_entries("moco,simclrr")
    with pytest.raises(nf.UserError, match="cpc is not one of the recipes"):
        choose_entries("cpc")  # a recipe for sound


def test_tables_follow_the_cells(tmp_path: Path) -> None:
    study, words = find_study("family"), [*TOY, "recipes=simclr,simclr-ring"]
    record = run_study(study, tmp_path, words)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*/result.json")}
    stored = [json.loads(path.read_text()) for path in files]
    assert len(stored) == 10

    def measured(name: str, measure: str) -> Any:
        by_label = {one["cell"]: one["values"] for one in stored}
        return np.array([100 * by_label[f"{name},seed={seed}"][measure] for seed in (0, 1)])

    for table, measure in zip(record.result.tables[:2], ("knn", "linear"), strict=True):
        assert [row.label for row in table.rows] == [
            "pixels",
            "untrained",
            "supervised",
            "simclr",
            "simclr-ring",
        ]
        for row in table.rows:
            values = measured(row.label, measure)
            assert row.ours == pytest.approx(values.mean())
            assert row.spread == pytest.approx(values.std(ddof=1))
    for measure, name in DIFFERENCES.items():
        (row,) = record.result.table(name).rows
        differences = measured("simclr-ring", measure) - measured("simclr", measure)
        assert row.label == "simclr-ring - simclr"
        assert row.ours == pytest.approx(differences.mean())
        assert row.spread == pytest.approx(differences.std(ddof=1))
    costs = [row.label for row in record.result.table("Cost of a training").rows]
    assert costs == ["supervised, seconds", "simclr, seconds", "simclr-ring, seconds"]
    assert all([path.name for path in file.parent.iterdir()] == ["result.json"] for file in files)
    second = run_study(study, tmp_path, words)
    assert second.result == record.result
    assert {path: path.stat().st_mtime_ns for path in files} == files


def seeds(*linear: float) -> list[dict[str, Any]]:
    return [{"linear": value, "knn": value, "rate": 0.0, "seconds": 0.0} for value in linear]


def test_remarks_follow_the_values() -> None:
    figures = {
        "untrained": seeds(0.30, 0.32),
        "moco": seeds(0.40, 0.42),
        "moco-ring": seeds(0.4200, 0.4402),
        "moco-ball": seeds(0.42, 0.425),
        "moco-cave": seeds(0.34, 0.3801),
    }
    arms = {name: arm for name, arm in entries().items() if name in figures}
    comparison = Comparison("Recipes", arms, baselines=("untrained",))
    margin, linear, *_ = add_differences(make_result(figures, comparison), figures, comparison).remarks
    assert "at least 5 points" in margin
    assert "moco-cave with +5.0" in margin
    assert linear == "linear, against the base: better moco-ring; worse none; not distinguishable 2 of 3."
    figures["moco-cave"] = seeds(0.33, 0.37)
    margin = add_differences(make_result(figures, comparison), figures, comparison).remarks[0]
    assert margin == "less than 5 points above the untrained encoder: moco-cave +4.0."
