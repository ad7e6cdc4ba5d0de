"""Several runs on one page: paired tests, classes, cost, and maps and neighbours side by side."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.core.results import Answers
from nearfar.core.statistics import compare_answers
from nearfar.report import write_report
from nearfar.report.compare import same_points, same_queries, tables_of
from nearfar.report.facts import Detail
from nearfar.report.gather import gather

Page = Any
Make = Callable[..., Any]
GONE = FileNotFoundError("photos/ is gone")
TRUE = np.arange(2000) % 4
E = "document.querySelector('.explorer').explorer"


def answered(make_result: Make, seed: int, right: float, **more: Any) -> dict[str, Any]:
    """A result whose kNN answered 2,000 instances of four classes, class 0 never right."""
    rng = np.random.default_rng(seed)
    predictions = np.where((rng.random(2000) < right) & (TRUE > 0), TRUE, (TRUE + 1) % 4)
    result = make_result(float((predictions == TRUE).mean()), None, **more)
    result["knn"]["answers"] = Answers(predictions, TRUE).to_json()
    result["labels"]["classes"] = {
        name: {"train": n, "test": n} for n, name in enumerate(("ant", "bee", "cat", "<b>"))
    }
    return {"results": [result]}


@pytest.fixture
def two(make_run: Make, make_result: Make, make_digits: Make) -> list[Any]:
    return [
        make_run("one", data=make_digits(80), evaluation=answered(make_result, 0, 0.8)),
        make_run("two", data=make_digits(80), evaluation=answered(make_result, 1, 0.6)),
    ]


def test_pairs_are_tested_on_the_instances_they_share(
    two: list[Any], make_run: Make, make_result: Make
) -> None:
    elsewhere = make_run("three", data=GONE, evaluation=answered(make_result, 2, 0.9, test="elsewhere"))
    facts = [gather(run, Detail(points=60)) for run in (*two, elsewhere)]
    first, second = tables_of(facts)
    (row,) = first.pairs
    a, b = (one.scores[0].answers.correct for one in facts[:2])  # type: ignore[union-attr]
    assert row.difference == compare_answers(a, b)
    assert (row.first, row.second) == (0, 1)
    assert row.difference.p is not None
    assert row.difference.p < 1e-6
    assert second.pairs == ()
    assert second.columns[0].best is None, "nothing is ranked across test sets"
    (classes,) = first.classes
    assert {one.name for one in classes.rows} == {"ant", "bee", "cat", "<b>"}
    ant = next(one for one in classes.rows if one.name == "ant")
    assert ant.shares == (0.0, 0.0, None)
    assert ant is classes.rows[-1], "those that differ most come first"
    assert all(one.samples == 500 for one in classes.rows)


def test_runs_that_differ_in_their_seed_have_a_mean_and_a_deviation(
    make_run: Make, make_result: Make
) -> None:
    def run_with(name: str, seed: int, top1: float, **more: Any) -> Any:
        result = make_result(top1, None)
        del result["knn"]["answers"]
        evaluation = {"results": [result]}
        return make_run(name, data=GONE, evaluation=evaluation, options={"seed": seed, **more})

    runs = [
        run_with("a", 0, 0.5),
        run_with("b", 1, 0.6),
        run_with("c", 2, 0.7),
        run_with("d", 0, 0.9, epochs=7),
    ]
    (table,) = tables_of([gather(run, Detail()) for run in runs])
    (group,) = table.seeds
    assert group.places == (0, 1, 2)
    assert group.cells[0] == pytest.approx((0.6, 0.1, 3))
    assert table.columns[0].best == 0.9


def test_other_instances_under_the_same_name_are_not_paired(two: list[Any]) -> None:
    """Answers whose truth differs are not about the same instances, whatever the result claims."""
    stored = two[1].evaluation["results"][0]["knn"]
    stored["answers"] = Answers(TRUE[::-1], TRUE[::-1]).to_json()
    (table,) = tables_of([gather(run, Detail(points=60)) for run in two])
    assert table.pairs == ()
    assert table.classes == ()


def test_maps_and_neighbours_are_those_of_the_same_instances(
    two: list[Any], make_run: Make, make_digits: Make
) -> None:
    second = make_run("other", data=make_digits(70), evaluation=None)
    facts = [gather(run, Detail(points=60)) for run in (two[0], second, two[1])]
    assert same_points(facts) == [0, 2]
    assert len(same_queries(facts[::2])) == 8
    assert all(len(rows) == 2 for _, rows in same_queries(facts[::2]))
    assert same_points(facts[:2]) == []


def test_the_page_compares(browser: Page, two: list[Any], tmp_path: Path) -> None:
    file = write_report(two, tmp_path / "r.html", points=80)
    for width, dark in ((390, True), (1280, False)):
        browser.open(file.as_uri(), width=width, dark=dark)
        browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        words = browser.value("document.body.innerText")
        for phrase in (
            "Pair by pair",
            "< 0.0001",
            "Class by class",
            "<b>",
            "Cost",
            "images seen",
            "Neighbours of the same query",
        ):
            assert phrase in words, phrase
    assert browser.value(f"{E}.fields.length") == 2
    assert browser.value("document.querySelectorAll('.explorer').length") == 1, "one explorer for both"
    assert browser.value("document.querySelectorAll('.asked-one').length") == 8
    browser.value("document.documentElement.style.scrollBehavior = 'auto'")
    browser.value(f"{E}.fields[0].box.scrollIntoView()")
    x, y = browser.value(
        f"(() => {{ const f = {E}.fields[0], b = f.box.getBoundingClientRect(); return [b.x + f.x[5], b.y "
        f"+ f.y[5]]; }})()"
    )
    browser.point_at(x, y)
    captions = browser.value(
        "[...document.querySelectorAll('.peek')].map(p => !p.hidden && "
        "p.querySelector('.caption').textContent)"
    )
    assert len(captions) == 2
    assert captions[0]
    assert captions[0] == captions[1], "what is pointed at in one map is shown in both"
    browser.value(f"{E}.choose(5)")
    assert browser.value("document.querySelectorAll('.chosen-point .tiles').length") == 2
    assert browser.complaints() == []


def test_page_without_answers_suggests_evaluate(make_run: Make, make_result: Make, tmp_path: Path) -> None:
    result = make_result()
    for name in ("knn", "linear"):
        del result[name]["answers"]
    evaluation = {"results": [result]}
    runs = [make_run(name, data=GONE, evaluation=evaluation) for name in "ab"]
    text = write_report(runs, tmp_path / "r.html").read_text()
    assert "No paired test" in text


@pytest.mark.parametrize("broken", [False, True])
def test_detection_has_its_section(broken: bool, make_run: Make, tmp_path: Path) -> None:
    run = make_run(data=GONE)
    settings = {"task": "boxes", "epochs": 3, "size": 96, "fine_tune": False, "seeds": 1}
    sets = {
        "train": {"name": "a", "samples": 4, "objects": 9},
        "test": {"name": "b", "samples": 2, "objects": 3},
    }
    figures = {"pretrained": {"bbox": {"map": 0.123, "map_50": 0.25}}, "settings": settings, **sets}
    evaluation = {"results": ["nonsense"] if broken else [figures]}
    (run.path / "detection.json").write_text(json.dumps(evaluation))
    text = write_report([run], tmp_path / "r.html").read_text()
    assert ("cannot be read" in text) == broken
    assert ("12.3" in text and "backbone frozen, 3 epochs" in text) != broken
