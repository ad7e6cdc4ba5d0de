"""Comparisons with a verdict: by Student's interval of paired differences, and every arm of every study resolves."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nearfar.errors import UserError
from nearfar.studies import run_study
from nearfar.studies.compared import Comparison, verdict
from nearfar.studies.frame import arm_name
from nearfar.studies.images import Setup
from nearfar.studies.negatives import comparison as of_negatives
from nearfar.studies.ring import comparison as of_ring
from nearfar.studies.ring import short_of
from nearfar.studies.thresholds import arm, moments_of
from nearfar.studies.thresholds import comparison as of_thresholds
from nearfar.studies.vince import COMPARISON, STUDY
from nearfar.train.pretrain import run_pretraining

TOY = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]
SETUP = Setup(data="digits", on="validation", images=80, epochs=6, size=8, batch=40, seeds=1, jobs=1)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([2.0, 2.2, 1.9], "holds"),
        ([-2.0, -2.2, -1.9], "does not hold"),
        ([2.0, -1.9], "cannot be distinguished"),
    ],
)
def test_a_verdict_is_students_interval(differences: list[float], said: str) -> None:
    found = verdict(differences)
    assert found.startswith(f"{said}: {np.mean(differences):+.1f} points")
    low, high = stats.t.interval(0.95, len(differences) - 1, np.mean(differences), stats.sem(differences))
    assert f"interval {low:+.1f} to {high:+.1f}" in found
    assert verdict([5.0]).startswith(
        "cannot be distinguished: +5.0 points, 1 seed (a single difference: no interval)"
    )
    # tops of 1,000 rows: differences of whole rows agree by chance too
    assert verdict([87.6 - 87.1, 86.4 - 85.9]).startswith(
        "cannot be distinguished: +0.5 points, 2 seeds (equal differences"
    )


@pytest.mark.parametrize(
    "comparison",
    [COMPARISON, of_ring(SETUP, 0.9, 0.99, 16), of_negatives(SETUP), of_thresholds(SETUP, [0.0, 0.25, 0.5])],
)
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
    assert all("cannot be distinguished" in remark for remark in record.result.remarks)


def test_a_ring_of_everyone_until_its_moment_is_the_base_until_then(tmp_path: Path) -> None:
    """Going on from the base's checkpoint and an edge that jumps at that moment are one computation: the same losses, bit by bit."""
    losses = {}
    arms = of_thresholds(SETUP, [0.0, 0.5]).arms
    for name in ("everyone (100 %)", arm(10, 0.5), arm(10, 0.0)):
        recipe, changes = arms[name]
        settings = SETUP.settings(recipe, 0, {k.replace("__", "."): v for k, v in changes.items()})
        run = run_pretraining(
            settings.model_copy(update={"log_every": 1}),
            "digits",
            tmp_path / arm_name({"of": name}),
            quiet=True,
        )
        losses[name] = [row["loss"] for row in run.metrics if row["kind"] == "train"]
    base, late, early = losses.values()
    half = len(base) // 2
    assert late[:half] == base[:half]
    assert late[half:] != base[half:]
    assert early[0] != base[0]


def test_a_ring_that_holds_less_than_is_drawn_is_said() -> None:
    """round(0.95 * 2048) - round(0.9 * 2048) = 1946 - 1843 = 103 candidates."""
    said = short_of(128, 2048, {"instdisc": (0.9, 0.95), "cmc": (0.5, 0.95), "moco": (0.9, 0.95)})
    assert said == (
        "IRing: between 0.9 and 0.95 of 2,048 candidates lie 103, which are all taken where its base draws 128.",
    )


@pytest.mark.parametrize("begin", ["", "0.5,0", "0,1", "soon"])
def test_moments_are_rising_shares(begin: str) -> None:
    with pytest.raises(UserError, match="expected rising shares of the run"):
        moments_of(begin)
