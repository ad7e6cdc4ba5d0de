"""The 40 tasks of `nearfar bench information`: truths, log ratios, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from nearfar.bench.information_tasks import InformationTask, information_tasks
from nearfar.cli import main

TASKS = information_tasks()
ROWS = 20_000
# nats of the published table, to its one decimal
PUBLISHED = {
    "Normal 1 × 1": 0.4,
    "Uniform 1 × 1 (additive noise=0.1)": 1.7,
    "Uniform 1 × 1 (additive noise=0.75)": 0.3,
    "Student-t 1 × 1 (dof=1)": 0.2,
    "Swiss roll 2 × 1": 0.4,
    "Multinormal 2 × 2 (dense)": 0.3,
    "Multinormal 5 × 5 (dense)": 0.6,
    "Multinormal 25 × 25 (dense)": 1.3,
    "Multinormal 50 × 50 (dense)": 1.6,
    "Spiral @ Normal CDF @ Multinormal 25 × 25 (2-pair)": 1.0,
    "Student-t 2 × 2 (dof=1)": 0.4,
    "Student-t 5 × 5 (dof=3)": 0.3,
    "Asinh @ Student-t 5 × 5 (dof=2)": 0.4,
}


def test_there_are_forty_tasks() -> None:
    names = [task.name for task in TASKS]
    assert len(names) == len(set(names)) == 40
    truths = {task.name: task.truth for task in TASKS}
    assert {name: round(truths[name], 1) for name in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_truth_is_the_mean_of_the_log_ratio(task: InformationTask) -> None:
    """Six standard errors; and E_joint[1 / (1 + r)] = E_independent[r / (1 + r)], which only the ratio of the
    two densities satisfies."""
    x, y = task.draw(ROWS, np.random.default_rng(1))
    joint, independent = task.log_ratio(x, y), task.log_ratio(x, np.roll(y, 1, axis=0))
    assert abs(joint.mean() - task.truth) <= 6 * joint.std() / np.sqrt(ROWS)
    joint_mean, independent_mean = expit(-joint), expit(independent)
    assert abs(joint_mean.mean() - independent_mean.mean()) <= 6 * np.sqrt(
        (joint_mean.var() + independent_mean.var()) / ROWS
    )


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_sides_are_mapped_one_to_one(task: InformationTask) -> None:
    x, y, log_ratio = task.sample(500, 0)
    base_x, base_y = task.draw(500, np.random.default_rng([0, 500]))
    assert all(np.isfinite(values).all() for values in (x, y, log_ratio))
    for side, base in ((x, base_x), (y, base_y)):
        assert len(np.unique(side, axis=0)) == len(base) == 500
        if side.shape[1] == base.shape[1] == 1:  # every map of one column keeps the order
            assert np.array_equal(np.argsort(side[:, 0]), np.argsort(base[:, 0]))
    if task.maps[0] and x.shape == base_x.shape:
        assert not np.allclose(x, base_x)


def test_spirals_keep_lengths() -> None:
    task = next(task for task in TASKS if task.name == "Spiral @ Multinormal 5 × 5 (2-pair)")
    x, y, _ = task.sample(100, 0)
    base_x, base_y = task.draw(100, np.random.default_rng([0, 100]))
    for side, base in ((x, base_x), (y, base_y)):
        assert np.allclose((side**2).sum(axis=1), (base**2).sum(axis=1))


def test_bench_information_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, svg = tmp_path / "record.jsonl", tmp_path / "chart.svg"
    command = ["bench", "information", "--only", "Half-cube @ Normal", "--rows", "60", "--no-network"]
    assert main([*command, "--record", str(record), "--svg", str(svg)]) == 0
    text = capsys.readouterr().out
    assert "| mean absolute error |" in text
    assert "| Half-cube @ Normal 1 × 1 | 0.413 |" in text
    assert "Half-cube @ Normal 1 × 1" in svg.read_text(encoding="utf-8")
    changed = json.loads(record.read_text()) | {"nats": 7.25}
    record.write_text(json.dumps(changed) + "\n")
    assert main([*command, "--record", str(record), "--json"]) == 0
    assert [result["nats"] for result in json.loads(capsys.readouterr().out)] == [7.25]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "ten"], "--rows was ten; expected a whole number from 2"),
        (["--rows", "10"], "--rows was 10; a task needs at least 50 rows"),
        (["--only", "nothing"], "--only was nothing; no task has such a name"),
        (["--seeds", "0"], "--seeds was 0; expected a whole number from 1"),
    ],
)
def test_bad_words_get_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "information", *words]) == 2
    assert message in capsys.readouterr().err
