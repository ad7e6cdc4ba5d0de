"""`nearfar bench quality`: arms train as the commands do, in turns, and resume from a record."""

import json
import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nearfar as nf
from nearfar.bench.quality import (
    QualityArm,
    QualityBudget,
    QualityPoint,
    minutes_to,
    our_trainer,
    quality_arms,
    quality_chart,
    quality_table,
    run_quality,
    serve_arm,
)
from nearfar.bench.records import append_record, read_records
from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import UserError


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Images of four brightnesses, which a linear probe can tell apart."""
    labels = np.arange(96) % 4
    noise = np.random.default_rng(0).integers(0, 60, (96, 16, 16, 3))
    path = tmp_path / "images.npz"
    np.savez(path, images=(noise + 45 * labels[:, None, None, None]).astype(np.uint8), labels=labels)
    return path


SETTINGS = {"backbone": "resnet8-w8", "batch_size": 16, "workers": 1, "precision": "fp32"}


def test_our_arm_trains_what_pretrain_trains(images: Path, tmp_path: Path) -> None:
    """Same settings, same seed: the features are equal bit for bit."""
    data = open_data(str(images))
    run = nf.pretrain(
        "simclr",
        str(images),
        tmp_path / "run",
        epochs=1,
        seed=3,
        config=SETTINGS | {"held_out": 0},
        quiet=True,
    )
    trainer = our_trainer(SETTINGS, data, epochs=1, seed=3)
    assert trainer.steps == len(data) // trainer.batch
    for _ in range(trainer.steps):
        trainer.step()
    assert torch.equal(trainer.embed(data), torch.as_tensor(run.embed(str(images))))


def test_an_arm_may_have_epochs_of_its_own(images: Path) -> None:
    data = open_data(str(images))
    assert our_trainer(SETTINGS | {"epochs": 3}, data, epochs=1, seed=0).steps == 3 * (96 // 16)


def test_arms_take_turns_and_a_record_is_not_measured_again(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    words = [
        "bench",
        "quality",
        "--data",
        str(images),
        "--epochs",
        "2",
        "--probes",
        "2",
        "--batch-size",
        "16",
    ]
    words += [
        "--backbone",
        "resnet8-w8",
        "--only",
        "nearfar",
        "--arm",
        "fast: lr=1e-2 workers=1 views.crop_scale=[0.2,1.0]",
        "--json",
    ]
    words += ["--record", str(record), "--svg", str(tmp_path / "curve.svg")]
    assert main(words) == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["arm"] for point in points] == ["nearfar", "fast"] * 2
    # a tenth of each class is held out: 3 of 24; 84 images in 5 batches of 16
    assert [point["epoch"] for point in points[::2]] == pytest.approx(
        [2 * 16 * 2.5 / 84, 2 * 16 * 5 / 84], abs=0.2
    )
    assert all(
        later["cpu_minutes"] > earlier["cpu_minutes"]
        for earlier, later in zip(points, points[2:], strict=False)
    )
    stored = record.read_bytes()
    assert main(words) == 0
    assert record.read_bytes() == stored
    assert json.loads(capsys.readouterr().out) == points


def test_a_record_that_a_kill_cut_short_resumes_and_another_file_is_refused(tmp_path: Path) -> None:
    record, points = tmp_path / "record.jsonl", [QualityPoint("a", seed, 1.0, 2.0, 0.5) for seed in range(2)]
    for point in points:
        append_record(record, point)
    record.write_bytes(record.read_bytes()[:-9])
    assert read_records(record, QualityPoint) == points[:1]
    append_record(record, points[1])
    assert read_records(record, QualityPoint) == points
    for line in (
        "text",
        "[1]",
        '{"arm": "a"}',
        '{"arm": "a", "seed": 0, "epoch": "x", "cpu_minutes": 1, "top1": 0}',
    ):
        other = tmp_path / "other.jsonl"
        other.write_text(record.read_text() + line + "\n")
        with pytest.raises(UserError, match=r"other\.jsonl has no QualityPoint in line 3"):
            read_records(other, QualityPoint)
        assert other.read_text().endswith(line + "\n")


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(0.01, 0.99),
)
def test_minutes_to_a_goal_is_where_the_curve_first_crosses_it(
    gaps: list[float], accuracies: list[float], goal: float
) -> None:
    """Against a fine grid of the piecewise linear curve, from the first probe on."""
    times = np.cumsum(gaps)
    values = np.array(accuracies[: len(times)])
    points = [QualityPoint("a", 0, t, t, v) for t, v in zip(times, values, strict=True)]
    minutes = minutes_to(points, goal)
    if values.max() < goal:
        assert minutes is None
        return
    grid = np.union1d(np.linspace(times[0], times[-1], 20_001), times)
    expected = grid[np.argmax(np.interp(grid, times, values) >= goal)]
    step = (times[-1] - times[0]) / 20_000
    assert minutes == pytest.approx(expected, abs=step + 1e-9)


def test_the_table_has_mean_and_deviation_over_seeds_and_says_where_a_goal_is_missed() -> None:
    points = [QualityPoint("a", seed, 1.0, 2.0, top1) for seed, top1 in enumerate((0.5, 0.6))]
    points += [QualityPoint("b", seed, 1.0, 4.0, 0.7) for seed in range(2)]
    text = "\n".join(quality_table(points, 0.55))
    assert "| a | 55.0 ± 7.1 % | 1.0 | 2.0 | not reached |" in text
    assert "| b | 70.0 ± 0.0 % | 1.0 | 4.0 | 4.0 |" in text
    assert {line.get_label() for line in quality_chart(points).axes[0].lines} >= {"a", "b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "bench quality needs --data"),
        (["--data", "digits", "--goal", "70"], "--goal was 70"),
        (["--data", "digits", "--arm", "lr=1"], "--arm was 'lr=1'"),
        (["--data", "digits", "--arm", "a: lr"], "'lr' is not a setting"),
        (["--data", "digits", "--arm", "a: lr=1", "--arm", "a: lr=2"], "expected names once each"),
        (["--data", "digits", "--arm", "nearfar: lr=1"], "other than nearfar, lightly (same network)"),
        (["--data", "digits", "--arm", "a: views.crop_scale=[2,3]"], "views.crop_scale was [2, 3]"),
        (["--data", "digits", "--probes", "0"], "--probes was 0"),
        (
            ["--data", "digits", "--only", "zzz"],
            "--only was zzz; expected prefixes of nearfar, lightly (same",
        ),
    ],
)
def test_wrong_options_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quality", *words]) == 2
    assert message in capsys.readouterr().err


BAD_DATA = [
    ("missing.npz", 1, 16, "missing.npz"),
    ("unlabelled.npz", 1, 16, "unlabelled.npz has no labels"),
    ("images.npz", 1, 500, "500"),
    ("images.npz", 6, 16, "probes was 6"),
]


@pytest.mark.parametrize("name", ["nearfar", "lightly (same network)"])
@pytest.mark.parametrize(("data", "probes", "batch", "message"), BAD_DATA)
def test_process_of_an_arm_refuses_unusable_data(
    data: str, probes: int, batch: int, message: str, name: str, images: Path
) -> None:
    """In this process here: it raises the sentence, which `open_process` passes on."""
    if "lightly" in name:
        pytest.importorskip("lightly")
    np.savez(images.parent / "unlabelled.npz", images=np.load(images)["images"])
    budget = QualityBudget(str(images.parent / data), None, 1, probes)
    (chosen,) = (arm for arm in quality_arms("resnet8-w8", batch, {}) if arm.name == name)
    with pytest.raises(UserError, match=message):
        serve_arm(chosen, budget, 0, multiprocessing.Pipe()[0])


def test_error_of_a_process_is_printed_once(images: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "--data",
        str(images),
        "--epochs",
        "1",
        "--probes",
        "6",
        "--batch-size",
        "16",
        "--only",
        "nearfar",
    ]
    assert main(["bench", "quality", *words, "--backbone", "resnet8-w8"]) == 2
    printed = capfd.readouterr().err
    assert "--probes was 6" in printed
    assert printed.count("\n") == 1, printed


def arm(name: str, **settings: Any) -> QualityArm:
    return QualityArm(name, partial(our_trainer, settings), settings)


def test_a_record_of_other_settings_is_refused(tmp_path: Path) -> None:
    """Of all that decides a result. Other arms need the same data alone."""
    record, budget = tmp_path / "record.jsonl", QualityBudget("a.npz", None, 4, 1)
    arms = [arm("a", backbone="resnet8-w8", batch_size=16)]
    for seed in range(2):
        point = QualityPoint("a", seed, 1.0, 2.0, 0.5, budget.settings_of(arms[0]))
        append_record(record, point)
    recorded = read_records(record, QualityPoint)
    assert run_quality(arms, budget, 2, record) == recorded
    # a run that was stopped before these points is left out
    append_record(early := tmp_path / "early.jsonl", replace(recorded[0], epoch=1.5))
    early.write_bytes(early.read_bytes() + record.read_bytes())
    assert run_quality(arms, budget, 2, early) == recorded
    others = {
        "data=a.npz, now b.npz": (arms, budget._replace(train="b.npz")),
        "test=None, now c.npz": (arms, budget._replace(test="c.npz")),
        "epochs=4, now 50": (arms, budget._replace(epochs=50)),
        "probes=1, now 2": (arms, budget._replace(probes=2)),
        "backbone=resnet8-w8, now default": ([arm("a", batch_size=16)], budget),
        "batch_size=16, now 32": ([arm("a", backbone="resnet8-w8", batch_size=32)], budget),
        "lr=default, now 0.1": ([arm("a", backbone="resnet8-w8", batch_size=16, lr=0.1)], budget),
    }
    for difference, (other_arms, other_budget) in others.items():
        with pytest.raises(UserError, match=f"has 'a' measured with {difference}; use another file"):
            run_quality(other_arms, other_budget, 2, record)
    assert run_quality([], budget._replace(epochs=50), 2, record) == recorded
    with pytest.raises(UserError, match=r"has 'a' measured with data=a\.npz, now b\.npz"):
        run_quality([], budget._replace(train="b.npz"), 2, record)
