"""A sweep selects on a validation split and reports on test data; seeds are never selected."""

import csv
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar as nf
from nearfar.cli import main
from nearfar.data import locate, open_data
from nearfar.errors import UserError
from nearfar.run.trained import Run
from nearfar.sweeps.engine import COMPLETED
from nearfar.sweeps.objectives import ProbeReporter
from nearfar.sweeps.search import Search, SearchTrial, probe_curve
from nearfar.sweeps.space import space_of
from nearfar.sweeps.table import SweepResult, SweepRow
from nearfar.train.defaults import resolve_here
from nearfar.train.pretrain import run_pretraining

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16}


def rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    x = rng.normal(size=(count, 6)) + 1.2 * np.eye(6)[labels]
    return {"x": x.astype(np.float32), "labels": labels}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "train.npz", **rows(120, 0))
    np.savez(folder / "test.npz", **rows(60, 1))
    return folder


@pytest.fixture(scope="module")
def result(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("sweep")
    return nf.sweep(
        "simclr", data / "train.npz", out, test=data / "test.npz", temperature=[0.1, 0.5], seed=[0, 1],
        quiet=True, **QUICK
    )  # fmt: skip


def test_every_point_as_good_as_the_best_is_marked() -> None:
    points = {0.1: 0.7, 0.2: 0.9, 0.3: 0.9}
    table_rows = tuple(SweepRow({"temperature": t}, (value,), COMPLETED) for t, value in points.items())
    facts = {"validation": {"name": "photos", "samples": 10}}
    sweep = SweepResult("simclr", "knn", True, (0,), {}, facts, table_rows)
    _, first, second, third = sweep._table().splitlines()
    assert first.startswith("0.2")
    assert first.endswith("  best")
    assert second.endswith("  equal to the best")
    assert "best" not in third


def test_table_equals_evaluation_of_the_runs(result: Any, data: Path) -> None:
    """Each value equals a recomputation: fitted on four fifths, evaluated on the held-out fifth."""
    fit, held_out = open_data(data / "train.npz").split(0.2, 0)
    assert not set(fit.rows) & set(held_out.rows)
    assert len(fit) + len(held_out) == 120
    folders = sorted((Path(result.folder) / "cells").iterdir())
    assert len(folders) == 4
    by_settings = {
        (row.point["temperature"], seed): row.values[seed] for row in result.rows for seed in (0, 1)
    }
    for folder in folders:
        run = Run.open(folder, data=fit)
        assert run.facts["data"]["fingerprint"] == fit.fingerprint
        value = nf.evaluate(run, data=held_out, protocols=["linear"], same_labels=True)["linear"]["top1"]
        key = (run.settings.critic["temperature"], run.settings.seed)
        assert by_settings[key] == value


def test_mean_and_deviation_are_over_seeds_and_the_best_is_a_setting(result: Any) -> None:
    for row in result.rows:
        assert row.mean == pytest.approx(np.mean(row.values), abs=1e-15)
        assert row.spread == pytest.approx(np.std(row.values, ddof=1), abs=1e-15)
    assert result.best.mean == max(row.mean for row in result.rows)
    assert set(result.best.point) == {"temperature"}


def test_only_the_selected_setting_is_tested(result: Any, data: Path) -> None:
    content = result.as_json()["best"]
    assert content["validation"]["values"] == list(result.best.values)
    assert content["test"]["set"]["samples"] == 60
    assert {"untrained"} <= set(content["test"]["baselines"])
    tested = [
        folder.name
        for folder in (Path(result.folder) / "cells").iterdir()
        for result in json.loads((folder / "evaluation.json").read_text())["results"]
        if result["test"]["name"].endswith("test.npz")
    ]
    assert len(tested) == 2
    assert all(f"temperature={result.best.point['temperature']}," in name for name in tested)


def test_files_contain_the_table(result: Any) -> None:
    out = Path(result.folder)
    assert json.loads((out / "sweep.json").read_text()) == json.loads(json.dumps(result.as_json()))
    lines = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
    assert [float(line["mean"]) for line in lines] == [row.mean for row in result.rows]
    assert (out / "figure.svg").stat().st_size > 1000


def test_a_longer_axis_reuses_finished_cells(result: Any, data: Path) -> None:
    """Cells are named by everything they depend on: one more value is one more training for each seed."""
    first_files = {path: path.stat().st_mtime_ns for path in Path(result.folder).glob("cells/*/result.json")}
    second = nf.sweep(
        "simclr",
        data / "train.npz",
        result.folder,
        temperature=[0.1, 0.5, 1.0],
        seed=[0, 1],
        quiet=True,
        **QUICK,
    )
    files_now = {path: path.stat().st_mtime_ns for path in Path(result.folder).glob("cells/*/result.json")}
    assert len(files_now) == 6
    assert first_files.items() <= files_now.items()
    assert [row.values for row in second.rows[:2]] == [row.values for row in result.rows]


def test_another_sweep_is_not_overwritten(result: Any, data: Path) -> None:
    first_files = (Path(result.folder) / "sweep.json").read_bytes()
    with pytest.raises(UserError, match="belongs to the sweep pretrain simclr"):
        nf.sweep("moco", data / "train.npz", result.folder, temperature=[0.1, 0.5], quiet=True, **QUICK)
    assert (Path(result.folder) / "sweep.json").read_bytes() == first_files


def test_a_failed_cell_does_not_stop_the_others(data: Path, tmp_path: Path) -> None:
    result = nf.sweep("simclr", data / "train.npz", tmp_path, epochs=1, batch_size=[16, 4096], quiet=True)
    good, bad = result.rows
    assert (good.state, bad.state) == ("done", "failed")
    assert "4096" in bad.reason
    assert result.best is good
    assert "failed: " in str(result)


@pytest.mark.parametrize("year", [1990, 2090])
def test_failed_cells_are_computed_again_whatever_the_clock(year: int, data: Path, tmp_path: Path) -> None:
    """A failure of an earlier command is computed again, whatever the time of its file."""
    options: dict[str, Any] = {"epochs": 1, "batch_size": [16, 32], "quiet": True}
    result = nf.sweep("simclr", data / "train.npz", tmp_path, **options)
    file = next(path for path in tmp_path.glob("cells/*/result.json") if "batch_size=32" in path.parent.name)
    text = file.read_text()
    file.write_text(text.replace('"done"', '"failed"').replace('"values": {', '"values": {}, "was": {'))
    os.utime(file, (when := 3e7 * (year - 1970), when))
    second = nf.sweep("simclr", data / "train.npz", tmp_path, **options)
    assert [row.state for row in second.rows] == ["done", "done"]
    assert [row.values for row in second.rows] == [row.values for row in result.rows]


@pytest.mark.parametrize("command", ["train", "distill", "mi"])
def test_other_commands_can_be_swept(command: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    tables = [str(data / "train.npz"), "epochs=2", "batch_size=16", "--data", str(data / "test.npz")]
    if command == "train":
        words = [*tables, "lr=1e-3,1e-2"]
    elif command == "distill":
        teacher = nf.train(data / "train.npz", tmp_path / "teacher", quiet=True, **QUICK)
        words = [str(teacher.path), *tables, "objective=kd,crd+kd"]
    else:
        rng = np.random.default_rng(0)
        x = rng.normal(size=400)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", x + rng.normal(size=400))
        words = [
            str(tmp_path / "x.npy"),
            str(tmp_path / "y.npy"),
            "bound=infonce,nwj",
            "critic=bilinear",
            "folds=2",
        ]
    code = main(
        ["sweep", "--command", command, *words, "--out", str(tmp_path / "out"), "--jobs", "1", "--json"]
    )
    content = json.loads(capsys.readouterr().out)
    assert code == 0
    assert len(content["rows"]) == 2
    assert all(math.isfinite(row["mean"]) for row in content["rows"])
    assert content["best"]["test"]["set"]["samples"] == (200 if command == "mi" else 60)
    assert content["best"]["command"].startswith(f"nearfar {command} ")
    assert content["metric"] == ("at_least" if command == "mi" else "accuracy")


def test_unlabelled_data_needs_a_label_free_metric(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x=rows(120, 0)["x"])
    with pytest.raises(UserError, match=r"bare\.npz has no labels to select by.*; metric rankme or lidar"):
        nf.sweep("simclr", tmp_path / "bare.npz", tmp_path / "out", temperature=[0.1, 0.5], **QUICK)
    result = nf.sweep(
        "simclr",
        tmp_path / "bare.npz",
        tmp_path / "out",
        metric="rankme",
        temperature=[0.1, 0.5],
        quiet=True,
        **QUICK,
    )
    assert all(row.mean is not None and row.mean >= 1 for row in result.rows)


def test_resuming_a_search_equals_never_stopping(data: Path, tmp_path: Path) -> None:
    """Three trials, then up to five, against five in one go: the same proposals, values and prunings."""
    options: dict[str, Any] = {
        "search": "tpe", "quiet": True, "lr": "1e-4..1e-1:log", "temperature": [0.1, 0.5], "epochs": 2,
        "batch_size": 16
    }  # fmt: skip
    nf.sweep("simclr", data / "train.npz", tmp_path / "a", trials=3, **options)
    parts = nf.sweep("simclr", data / "train.npz", tmp_path / "a", trials=5, **options)
    uninterrupted = nf.sweep("simclr", data / "train.npz", tmp_path / "b", trials=5, **options)
    assert parts.as_json() == uninterrupted.as_json()
    assert len(parts.rows) == 5
    assert all(1e-4 <= row.point["lr"] <= 1e-1 for row in parts.rows)
    assert len({row.point["lr"] for row in parts.rows}) == 5


def test_only_runs_below_the_median_are_pruned(tmp_path: Path) -> None:
    """The median of the best probes at epoch 2 decides; the first epoch and the first trials are never
    pruned."""
    search = Search(space_of({"lr": "1e-4..1e-1"}), tmp_path, 20)
    earlier = [
        SearchTrial(number, {"lr": 0.01}, "done", value, {1: value, 2: value})
        for number, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5))
    ]
    current = SearchTrial(9, {"lr": 0.02})
    assert search.is_behind(current, earlier, {1: 0.1, 2: 0.29})
    assert not search.is_behind(current, earlier, {1: 0.1, 2: 0.31})
    assert not search.is_behind(current, earlier[:4], {1: 0.1, 2: 0.11})
    assert not Search(space_of({"lr": "1e-4..1e-1"}), tmp_path, 20, prune=False).is_behind(
        current, earlier, {1: 0.0, 2: 0.0}
    )


def test_pruned_trials_stay_in_the_table_without_a_value(data: Path, tmp_path: Path) -> None:
    """Decisions equal a recomputation from the logs: the median over earlier trials, from the sixth trial
    on."""
    result = nf.sweep(
        "supcon", data / "train.npz", tmp_path, search="random", trials=8, quiet=True, lr="1e-7..1e-1:log",
        epochs=2, batch_size=32
    )  # fmt: skip
    finished_curves: list[dict[int, float]] = []
    for row in result.rows:
        (folder,) = (tmp_path / "cells").glob(f"lr={row.point['lr']},*")
        curve = probe_curve(folder)
        behind = [
            epoch
            for epoch, value in sorted(curve.items())
            if len(finished_curves) >= 5
            and max(v for e, v in curve.items() if e <= epoch)
            < np.median([c[epoch] for c in finished_curves])
        ]
        assert (row.state == "pruned") == bool(behind)
        assert (row.mean is None) == bool(behind)
        if behind:
            assert max(curve) == behind[0]
            assert "below the median" in row.reason
        else:
            finished_curves.append(curve)
    assert result.best is not None


def test_probes_use_the_validation_split(data: Path, tmp_path: Path) -> None:
    """The last probe is the kNN accuracy on the validation split, and probing does not change the
    training."""
    fit, held_out = open_data(data / "train.npz").split(0.2, 0)
    probe_rows: list[dict[str, Any]] = []
    settings, _ = resolve_here("simclr", "table", None, {**QUICK, "held_out": 0.0}, located=locate(fit))
    run = run_pretraining(
        settings,
        fit,
        tmp_path / "a",
        quiet=True,
        validation=held_out,
        loggers=[ProbeReporter(probe_rows.append)],
    )
    without_probes = run_pretraining(settings, fit, tmp_path / "b", quiet=True)
    features = [run.embed(part) for part in (fit, held_out)]
    labels = [torch.from_numpy(part.labels) for part in (fit, held_out)]
    expected = nf.knn(features[0], labels[0], features[1], labels[1])["top1"]
    assert probe_rows[-1]["knn_top1"] == expected
    assert [row["step"] for row in probe_rows] == [0, run.facts["step"]]
    weights = without_probes.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.weights().items())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "RECIPE is missing"),
        (["simclr"], "DATA is missing"),
        (["simclr", "DATA", "temperatur=0.1,0.5"], "temperatur is not one of the settings"),
        (["simclr", "DATA", "temperature=0.1,warm"], "critic.temperature was 'warm'"),
        (["simclr", "DATA", "lr=1e-4..1e-1"], "lr was the range 0.0001..0.1; a grid needs values"),
        (["simclr", "DATA", "lr=1,2", "--trials", "3"], "--trials was given without --search"),
        (["simclr", "DATA", "--search", "tpe"], "--search has nothing to vary"),
        (
            ["simclr", "DATA", "lr=1e-3,1e-2", "--search", "grid"],
            "search was 'grid'; expected tpe or random",
        ),
        (["simclr", "DATA", "lr=1e-3,1e-2", "--metric", "top1"], "--metric was 'top1'"),
        (["simclr", "DATA", "lr=1e-3,1e-2", "--validation", "2"], "--validation was 2; expected a share"),
        (["simclr", "DATA", "lr=1e-3,1e-2", "--jobs", "0"], "--jobs was 0"),
        (["--command", "evaluate", "DATA", "x"], "--command was 'evaluate'"),
        (["simclr", "DATA", "seed=0..999999999"], "seed was 0..1e+09; a sweep has at most 100,000 cells"),
        (["simclr", "DATA", "seed=0..1e300"], "a sweep has at most 100,000 cells"),
        (["simclr", "DATA", "seed=0..99999", "lr=1,2"], "make 200,000 cells; a sweep has at most 100,000"),
        (["simclr", "DATA", "lr=1..2", "--search", "tpe", "--trials", "999999"], "from 1 to 100,000"),
        (["--command", "mi", "DATA", "DATA", "epochs=1,2"], "epochs is not one of the options of mi"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    words: list[str], sentence: str, data: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [str(data / "train.npz") if word == "DATA" else word for word in words]
    if "mi" in words:
        np.save(tmp_path / "x.npy", np.arange(20.0))
        words = [str(tmp_path / "x.npy") if word.endswith("train.npz") else word for word in words]
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert not re.search("Traceback", message)
    assert not (tmp_path / "out").exists()


def test_folder_of_the_data_is_refused(tmp_path: Path, capsys: Any) -> None:
    """There, `cells` and `claims` would become classes."""
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    words = ["sweep", "simclr", str(tmp_path), "lr=0.1,0.2", "--out", str(tmp_path), "backbone=resnet8-w8"]
    assert main(words) == 2
    assert "holds the data; choose another folder for the sweep" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cats", "dogs"]


def test_an_empty_split_is_refused(tmp_path: Path, capsys: Any) -> None:
    """Two rows of two classes: a held-out fifth is empty."""
    np.savez(tmp_path / "two.npz", **rows(2, 0))
    words = ["sweep", "simclr", str(tmp_path / "two.npz"), "temperature=0.1,0.2", "batch_size=2"]
    assert main([*words, "--out", str(tmp_path / "out"), "--jobs", "1"]) == 2
    message = capsys.readouterr().err
    assert "has 2 vectors; holding out 20% leaves none to select by" in message


def test_a_sweep_of_failed_cells_exits_with_an_error(tmp_path: Path, data: Path, capsys: Any) -> None:
    words = ["sweep", "simclr", str(data / "train.npz"), "batch_size=4096,8192", "epochs=1"]
    assert main([*words, "--out", str(tmp_path), "--jobs", "1"]) == 2
    content = capsys.readouterr()
    assert "failed" in content.out  # the table is shown all the same
    assert "no cell of the sweep ended with a value; the first: " in content.err
