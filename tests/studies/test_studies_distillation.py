"""The study of distillation: arms match their names, remarks match their numbers, and it resumes."""

from pathlib import Path

import numpy as np
import pytest

from nearfar.errors import UserError
from nearfar.studies import distillation
from nearfar.studies.distillation import PAIRS, STUDENT_ALONE, TEACHER, make_remarks, objectives
from nearfar.studies.run import find_study, run_study


def words(data: Path) -> list[str]:
    small = {"on": "validation", "images": 48, "epochs": 1, "teacher_epochs": 1, "size": 8, "batch": 16}
    rest = {"data": data, "seeds": 1, "jobs": 1, "pairs": "resnet8>wrn-10-1"}
    return [f"{key}={value}" for key, value in {**small, **rest}.items()]


def test_a_small_study_has_a_figure_for_every_objective_and_is_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, labels = np.random.default_rng(0), np.arange(80) % 4
    images = rng.integers(0, 60, (80, 8, 8, 3)) + 40 * labels[:, None, None, None]
    np.savez(tmp_path / "data.npz", images=images.astype(np.uint8), labels=labels)
    first = run_study(find_study("distillation"), tmp_path / "out", words(tmp_path / "data.npz"))
    names = {row.label.partition(", ")[2] for row in first.result.tables[0].rows}
    assert names == {TEACHER, STUDENT_ALONE, *objectives()}
    assert len(objectives()) == 11
    # the teacher's run is kept; students' are removed
    assert len(list((tmp_path / "out" / "cells").glob("*/config.yaml"))) == 1
    monkeypatch.setattr(distillation, "run_pretraining", lambda *_, **__: pytest.fail("trained again"))
    second = run_study(find_study("distillation"), tmp_path / "out", words(tmp_path / "data.npz"))
    assert second.result == first.result


def test_paper_values_stand_beside_similar_pairs() -> None:
    """Song & Ermon 2020, Tables 1 and 2: teacher, student, KD, CRD, L_1, L_0.1, J_1, J_0.05."""
    assert all(len(figures) == len(distillation.PAPER) for _, _, figures in PAIRS.values())
    assert all(figures[0] > figures[1] for _, _, figures in PAIRS.values())
    kinds = [kind for kind, *_ in PAIRS.values()]
    assert kinds.count("same") == kinds.count("other") == 3


def test_remarks_have_verdicts_and_name_weak_teachers() -> None:
    figures = {
        pair: {
            TEACHER: [teacher],
            STUDENT_ALONE: [0.40, 0.401],
            **{name: [0.40 + gain, 0.402 + gain] for name in objectives()},
        }
        for pair, teacher, gain in (("a>b", 0.50, 0.03), ("c>d", 0.39, 0.001))
    }
    remarks = make_remarks(figures)
    assert remarks[0].startswith("a>b: the teacher above its student alone holds: +9.9")
    assert remarks[1].startswith("c>d: the teacher above its student alone does not hold: -1.1")
    crd = next(remark for remark in remarks if remark.startswith("CRD above the student alone"))
    assert crd.startswith("CRD above the student alone not distinguishable: +1.6 points")
    assert crd.endswith("(+3.1 ± 0.1, +0.2 ± 0.1).")
    assert any(remark.startswith("L_0.1 above CRD not distinguishable: +0.0") for remark in remarks)


def test_one_pair_is_judged_by_its_seeds() -> None:
    one = {TEACHER: [0.5], STUDENT_ALONE: [0.400, 0.410, 0.405], "KD": [0.420, 0.431, 0.424]}
    assert make_remarks({"a>b": one})[1].startswith("KD above the student alone holds: +2.0 points")


def test_bad_pair_is_one_sentence(tmp_path: Path) -> None:
    for pairs, sentence in (
        ("resnet8", "expected TEACHER>STUDENT"),
        ("resnet8>resnet9", "backbone was 'resnet9'"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_study(find_study("distillation"), tmp_path, [f"pairs={pairs}"])
