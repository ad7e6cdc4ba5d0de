"""The bank's momentum: every arm has its own, and the figures are told against the default's."""

import json
from pathlib import Path

import pytest

from nearfar.studies import run_study
from nearfar.studies.bank_momentum import MEASURES, MOMENTA, STUDY, _against_default, _remarks, name_of

TOY = ["data=digits", "on=validation", "images=80", "epochs=1", "size=8", "batch=40", "seeds=1", "jobs=1"]


def test_the_study_runs(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, TOY)
    arms = [json.loads(path.read_text())["settings"] for path in (tmp_path / "arms").iterdir()]
    momenta = sorted(arm["changes"]["negatives.momentum"] for arm in arms if arm["kind"] == "recipe")
    assert momenta == sorted(MOMENTA)
    first = record.result.findings[0]
    assert [row.label for row in first.rows] == ["untrained", *map(name_of, MOMENTA)]
    assert first.curves["mean"] == [row.ours for row in first.rows[1:]]
    assert first.curves["untrained"] == first.rows[0].ours


def test_momenta_are_told_against_the_default_by_seed() -> None:
    found = {name_of(m): [{"knn": 0.3, "linear": 0.3}, {"knn": 0.4, "linear": 0.4}] for m in MOMENTA}
    found[name_of(0.99)] = [{"knn": 0.25, "linear": 0.3}, {"knn": 0.37, "linear": 0.4}]
    assert _against_default(found, 0.99, "knn") == pytest.approx((-4.0, 2**0.5))
    knn, linear = _remarks(found)
    assert knn == "knn, points from m=0.5, paired by seed: m=0 by +0.0 ± 0.0, m=0.99 by -4.0 ± 1.4."
    assert linear.startswith("linear, points from m=0.5")
    assert len(MEASURES) == 2
