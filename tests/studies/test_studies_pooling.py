"""Two small studies of frozen features: before and after pooling, and with and without labels."""

import math
from pathlib import Path

import pytest

from nearfar.studies import run_study
from nearfar.studies.pooling import STUDY as POOLING
from nearfar.studies.pooling import _remarks
from nearfar.studies.quality import MEASURES
from nearfar.studies.quality import STUDY as QUALITY

TOY = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]


def test_the_map_is_told_beside_the_pooled_features(tmp_path: Path) -> None:
    record = run_study(POOLING, tmp_path, [*TOY, "recipes=instdisc"])
    (finding,) = record.result.findings
    assert [row.label for row in finding.rows] == ["instdisc, pooled", "instdisc, before pooling"]
    assert "the map of 128 numbers" in record.result.remarks[0], "at 8 pixels a side one place is left"
    assert finding.rows[0].ours == pytest.approx(finding.rows[1].ours, abs=1e-6), "so both are the same"


def test_gains_are_paired_by_seed() -> None:
    found = {"a": [{"linear": 0.5, "map": 0.6, "map_width": 9}, {"linear": 0.6, "map": 0.8, "map_width": 9}]}
    assert _remarks(found, ["a"]) == (
        "a: the map of 9 numbers is +15.0 ± 7.1 points from pooled, paired by seed.",
    )


def test_measures_are_set_against_probes(tmp_path: Path) -> None:
    record = run_study(QUALITY, tmp_path, [*TOY, "recipes=simclr,instdisc,triplet"])
    (finding,) = record.result.findings
    assert set(MEASURES) < set(finding.curves)
    assert all(math.isfinite(value) for value in finding.curves["rankme"])
    assert any(remark.startswith("RankMe against knn: Spearman") for remark in record.result.remarks)
