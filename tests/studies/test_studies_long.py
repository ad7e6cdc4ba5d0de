"""The study of hours: order of its cells, edges by validation alone, and a table that says what is missing."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.errors import UserError
from nearfar.studies import run_study
from nearfar.studies.compared import Claim, Comparison
from nearfar.studies.family_long import (
    QUESTIONS,
    STUDY,
    Drawn,
    LongSetup,
    _best,
    missing,
    named,
    table,
    verdicts,
)
from nearfar.studies.frame import Bench

DATA = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]
TOY = [*DATA, "questions=ring", "recipes=simclr", "sweep_images=80", "sweep_epochs=1", "transfer="]
SETUP = LongSetup(data="digits", on="validation", images=80, epochs=6, size=8, batch=40)
EDGES = dict.fromkeys(("instdisc", "moco", "cmc", "simclr"), (0.5, 0.95))


def figures(linear: float, seconds: float = 1800.0) -> dict[str, Any]:
    return {"linear": linear, "map": linear + 0.1, "knn": linear - 0.1, "seconds": seconds}


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_cell_can_be_asked_for(question: str) -> None:
    comparison = QUESTIONS[question](SETUP, EDGES, Drawn(16, 64))
    for recipe, changes in comparison.arms.values():
        SETUP.recipe(recipe, 0, **changes)  # a wrong setting is said here
    assert {name for claim in comparison.claims for name in (claim.better, claim.worse)} <= {*comparison.arms}
    assert not comparison.paper or {*comparison.paper} & {*comparison.arms}


def test_a_ring_and_its_base_draw_equally_many_negatives() -> None:
    """Wu et al. 2021, sec. 4: k negatives in both, the ring's after it is made; a batch is not drawn from."""
    arms = QUESTIONS["ring"](SETUP, EDGES, Drawn(16, 64)).arms
    for recipe, base, ring in (
        ("instdisc", "IR", "IRing"),
        ("moco", "MoCo", "MoCoRing"),
        ("cmc", "CMC", "CMCRing"),
    ):
        found = [
            resolve(
                recipe, "digits", {key.replace("__", "."): value for key, value in arms[name][1].items()}, {}
            )
            for name in (base, ring)
        ]
        drawn = [one.selection.get("sample") or one.negatives.get("sample") for one in found]
        assert drawn == [16, 16]
        assert found[1].selection["upper"] == 0.95
        assert found[1].negatives.get("sample") == (
            64 if RECIPES[recipe].choices["negatives"]["name"] == "bank" else None
        )
    assert "selection__sample" not in arms["SimCLR ring"][1]


def test_no_arm_is_begun_after_the_moment(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "toy")
    settings = [{"seed": seed} for seed in range(3)]
    double = lambda arm: 2 * arm["seed"]
    assert bench.arms_until(-math.inf, settings, double) == [None, None, None]
    assert bench.arms_until(math.inf, settings[:2], double) == [0, 2]
    assert bench.arms_until(-math.inf, settings, double) == [0, 2, None]
    assert bench.arms_until(-math.inf, settings, double, jobs=2) == [0, 2, None]


def test_of_two_arms_that_are_the_same_one_is_computed(tmp_path: Path) -> None:
    computed: list[int] = []

    def double(arm: Mapping[str, Any]) -> int:
        computed.append(arm["seed"])
        return 2 * arm["seed"]

    # one is left, which needs no process of its own
    assert Bench(tmp_path, "toy").arms([{"seed": 3}, {"seed": 3}], double, jobs=2) == [6, 6]
    assert computed == [3]


def test_the_best_edges_are_those_validation_likes_and_of_equals_the_wider() -> None:
    found: dict[tuple[str, float, float], float | None] = {
        ("moco", 0.5, 0.99): 0.4,
        ("moco", 0.75, 0.99): 0.5,
        ("moco", 0.9, 0.99): 0.5,
        ("cmc", 0.9, 0.99): 0.9,
    }
    assert _best(found, "moco", [(0.5, 0.99), (0.75, 0.99), (0.9, 0.99)]) == (0.75, 0.99)


def test_what_is_missing_is_told_and_nothing_is_made_up() -> None:
    comparison = Comparison(
        "Rings", {"a": ("moco", {}), "b": ("moco", {})}, {"a": 83.1}, "a paper", (), ("map",)
    )
    found: dict[str, list[dict[str, Any] | None]] = {
        "untrained": [{"linear": 0.3, "knn": 0.2, "seconds": 0.0}] * 2,
        "a": [figures(0.5), figures(0.6)],
        "b": [figures(0.45), None],
    }
    linear, before = table(found, comparison, "linear", "pooled"), table(found, comparison, "map", "map")
    assert [row.label for row in linear.rows] == ["untrained", "a (2 of 2 seeds)", "b (1 of 2 seeds)"]
    assert [row.ours for row in linear.rows] == pytest.approx([30, 55, 45])
    assert [row.paper for row in linear.rows] == [None] * 3  # the papers' probes are before pooling
    assert [row.paper for row in before.rows] == [None, 83.1, None]
    assert before.rows[0].ours is None
    # only the seed that both have is compared
    (said,) = verdicts(found, Claim("a", "b"), {"linear": "pooled"})
    assert "+5.0 points with one seed" in said
    done, lacking = missing(found)
    assert "5 of 6 cells" in done
    assert "1.5 hours" in done
    assert "b (1)" in lacking
    assert verdicts({**found, "b": [None, None]}, Claim("a", "b"), {"linear": "pooled"}) == [
        "a above b: not run yet."
    ]


def test_the_long_study_goes_on_from_what_is_there(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, [*TOY, "hours=0"])
    assert "edges are not chosen yet" in record.result.remarks[0]
    whole = run_study(STUDY, tmp_path, TOY).result
    again = run_study(STUDY, tmp_path, [*TOY, "hours=0"]).result
    assert again.as_json() == whole.as_json()
    assert whole.remarks[-1].startswith("3 of 3 cells are done")
    swept = whole.findings[0]
    assert len(swept.rows) == 5  # three depths, and two more inner edges at the best of them
    assert any("before pooling" in finding.name for finding in whole.findings)


def test_questions_are_named() -> None:
    assert named("all", QUESTIONS, "questions") == list(QUESTIONS)
    with pytest.raises(UserError, match="rings is not one of the questions"):
        named("rings", QUESTIONS, "questions")
