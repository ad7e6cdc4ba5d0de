"""Comparisons with a verdict: by Student's interval of paired differences, and every arm of every study resolves."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nearfar.studies import run_study
from nearfar.studies.compared import Comparison, verdict
from nearfar.studies.images import Setup
from nearfar.studies.negatives import comparison as of_negatives
from nearfar.studies.ring import comparison as of_ring
from nearfar.studies.vince import COMPARISON, STUDY

TOY = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]
SETUP = Setup(data="digits", on="validation", images=80, epochs=6, size=8, batch=40, seeds=1, jobs=1)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([2.0, 2.2, 1.9], "holds"),
        ([-2.0, -2.2, -1.9], "does not hold"),
        ([2.0, -1.9], "cannot be told apart"),
    ],
)
def test_a_verdict_is_students_interval(differences: list[float], said: str) -> None:
    found = verdict(differences)
    assert found.startswith(f"{said}: {np.mean(differences):+.1f} points")
    low, high = stats.t.interval(0.95, len(differences) - 1, np.mean(differences), stats.sem(differences))
    assert f"interval {low:+.1f} to {high:+.1f}" in found
    assert verdict([5.0]).startswith("cannot be told apart: +5.0 points with one seed")


@pytest.mark.parametrize("comparison", [COMPARISON, of_ring(SETUP, 0.9, 0.99, 16), of_negatives(SETUP)])
def test_every_arm_can_be_asked_for(comparison: Comparison) -> None:
    for recipe, changes in comparison.arms.values():
        SETUP.recipe(recipe, 0, **changes)  # a wrong setting is said here
    assert {name for claim in comparison.claims for name in (claim.better, claim.worse)} <= {*comparison.arms}
    assert {*comparison.paper} <= {*comparison.arms}


def test_a_comparison_runs(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, TOY)
    labels = ["untrained", "IR", "BALL", "ANN", "LA"]
    assert [row.label for row in record.result.findings[0].rows] == labels
    assert len(record.result.remarks) == 8
    assert all("cannot be told apart" in remark for remark in record.result.remarks)
