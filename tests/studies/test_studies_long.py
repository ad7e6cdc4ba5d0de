"""The long study: edges by validation only, equally many negatives in ring and base, missing cells
reported."""

from pathlib import Path
from typing import Any

import pytest

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.errors import UserError
from nearfar.studies import run_study
from nearfar.studies.family_long import (
    QUESTIONS,
    LongSetup,
    SampleSizes,
    best_edges,
    progress_remarks,
)
from nearfar.studies.frame import choose
from nearfar.studies.run import find_study

DATA = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]
TOY = [*DATA, "questions=ring", "recipes=simclr", "sweep_images=80", "sweep_epochs=1", "transfer="]
SETUP = LongSetup(data="digits", on="validation", images=80, epochs=6, size=8, batch=40)
EDGES = dict.fromkeys(("instdisc", "moco", "cmc", "simclr"), (0.5, 0.95))


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_arm_can_be_trained(question: str) -> None:
    comparison = QUESTIONS[question](SETUP, EDGES, SampleSizes(16, 64))
    for name, arm in comparison.arms.items():
        SETUP.cell(name, arm, 0)  # refuses bad settings
    assert {name for claim in comparison.claims for name in (claim.better, claim.worse)} <= {*comparison.arms}
    assert all({*column.values} & {*comparison.arms} for column in comparison.paper.values())


def test_ring_and_base_draw_equally_many_negatives() -> None:
    """Wu et al. 2021, sec. 4: k negatives in both, the ring's after it is made; a batch is not drawn from."""
    arms = QUESTIONS["ring"](SETUP, EDGES, SampleSizes(16, 64)).arms
    for recipe, names in (
        ("instdisc", ("IR", "IRing")),
        ("moco", ("MoCo", "MoCoRing")),
        ("cmc", ("CMC", "CMCRing")),
    ):
        base, ring = (resolve(recipe, "digits", arms[name].changes, {}) for name in names)
        for settings in (base, ring):
            assert (settings.selection.get("sample") or settings.negatives.get("sample")) == 16
        assert ring.selection["upper"] == 0.95
        pool = 64 if RECIPES[recipe].choices["negatives"]["name"] == "bank" else None
        assert ring.negatives.get("sample") == pool
    assert "selection.sample" not in arms["SimCLR ring"].changes


def test_best_edges_are_those_of_validation_and_of_equals_the_wider() -> None:
    scores: dict[tuple[str, float, float], float | None] = {
        ("moco", 0.5, 0.99): 0.4,
        ("moco", 0.75, 0.99): 0.5,
        ("moco", 0.9, 0.99): 0.5,
        ("cmc", 0.9, 0.99): 0.9,
    }
    assert best_edges(scores, "moco", [(0.5, 0.99), (0.75, 0.99), (0.9, 0.99)]) == (0.75, 0.99)


def test_missing_cells_are_reported() -> None:
    trained: dict[str, Any] = {"linear": 0.5, "seconds": 1800.0}
    figures: dict[str, list[Any]] = {
        "untrained": [{"linear": 0.3, "seconds": 0.0}] * 2,
        "a": [trained, trained],
        "b": [trained, None],
    }
    finished, missing = progress_remarks(figures)
    assert "5 of 6 cells" in finished
    assert "1.5 hours" in finished
    assert "b (1)" in missing


def test_long_study_resumes(tmp_path: Path) -> None:
    study = find_study("family-long")
    record = run_study(study, tmp_path, [*TOY, "hours=0"])
    assert "edges are not selected yet" in record.result.remarks[0]
    complete = run_study(study, tmp_path, TOY).result
    second = run_study(study, tmp_path, [*TOY, "hours=0"]).result
    assert second.as_json() == complete.as_json()
    assert complete.remarks[-1].startswith("3 of 3 cells are done")
    assert len(complete.tables[0].rows) == 5  # three depths, and two more upper edges at the best of them
    assert any("before pooling" in table.name for table in complete.tables)


def test_questions_are_named() -> None:
    assert list(choose("all", QUESTIONS, "questions")) == list(QUESTIONS)
    with pytest.raises(UserError, match="rings is not one of the questions"):
        choose("rings", QUESTIONS, "questions")
