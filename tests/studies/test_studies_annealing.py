"""Policies for a ring's edge: what is trained is what is named, and the drawn course is the logged one."""

from pathlib import Path

import pytest

from nearfar.core.schedules import Progress, at, parse_value
from nearfar.studies import run_study
from nearfar.studies.annealing import LAST, MEASURES, STUDY, _remarks, policies

TOY = ["data=digits", "on=validation", "images=80", "epochs=4", "size=8", "batch=20", "seeds=1", "jobs=1"]


def test_policies_go_from_everyone_to_the_last_edge() -> None:
    for name, raw in policies(10).items():
        if name in ("no ring", "no annealing"):
            continue
        edge = parse_value(raw)
        assert at(edge) == 0
        assert edge.ends() == (0.0, LAST)  # type: ignore[union-attr]
        if not name.startswith("on "):
            assert at(edge, Progress(50, 100, 10)) == pytest.approx(LAST)
            assert at(edge, Progress(49, 100, 10)) > 0.5


def test_the_study_runs_and_draws_what_was_logged(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, TOY)
    names = list(policies(4))
    for measure, finding in zip(MEASURES, record.result.findings, strict=False):
        assert finding.name == MEASURES[measure]
        assert [row.label for row in finding.rows] == names
    courses = record.result.finding("lower edge at the end").curves
    edges = {name: seeds[0]["edge"] for name, seeds in courses.items()}
    assert set(edges["no ring"]) == {0.0}
    assert set(edges["no annealing"]) == {LAST}
    assert edges["linear"][-1] == pytest.approx(LAST)
    assert edges["linear"][0] < 0.5
    assert all(0 <= edge <= LAST for edge in edges["on score"] + edges["on loss"])
    for seeds in courses.values():
        assert [epoch for epoch, _ in seeds[0]["probes"]] == [0, 1, 2, 3, 4]


def test_policies_are_told_against_no_ring_by_seed() -> None:
    found = {name: [{"knn": 0.3, "linear": 0.2}, {"knn": 0.4, "linear": 0.2}] for name in policies(4)}
    found["step"] = [{"knn": 0.33, "linear": 0.2}, {"knn": 0.41, "linear": 0.2}]
    assert "step +2.0 ± 1.4" in _remarks(found)[0]
    assert "no ring +" not in _remarks(found)[0]
    assert "step +0.0 ± 0.0" in _remarks(found)[1]
