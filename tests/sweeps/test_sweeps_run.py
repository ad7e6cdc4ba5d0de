"""What a sweep says is what its cells gave: chosen on data that no cell saw, told of data that no choice saw, seeds never chosen."""

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

import nearfar as nf
from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities import modality_of
from nearfar.run.trained import Run
from nearfar.sweeps.objectives import ProbeReporter
from nearfar.sweeps.search import Search, SearchTrial, probe_curve
from nearfar.sweeps.space import space_of
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
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("sweep")
    return nf.sweep(
        "simclr", data / "train.npz", out, test=data / "test.npz", temperature=[0.1, 0.5], seed=[0, 1], quiet=True, **QUICK
    )  # fmt: skip


def test_the_table_is_what_the_runs_say(found: Any, data: Path) -> None:
    """Each value is evaluated again from the run's folder: fitted on four fifths, asked about the fifth that the run never saw."""
    fit, held = open_data(data / "train.npz").split(0.2, 0)
    assert not set(fit.rows) & set(held.rows)
    assert len(fit) + len(held) == 120
    folders = sorted((Path(found.folder) / "cells").iterdir())
    assert len(folders) == 4
    by_settings = {
        (row.point["temperature"], seed): row.values[seed] for row in found.rows for seed in (0, 1)
    }
    for folder in folders:
        run = Run.open(folder, data=fit)
        assert run.facts["data"]["fingerprint"] == fit.fingerprint
        value = nf.evaluate(run, data=held, protocols=["linear"], same_labels=True)["linear"]["top1"]
        key = (run.settings.critic["temperature"], run.settings.seed)
        assert by_settings[key] == value


def test_mean_and_deviation_are_over_seeds_and_the_best_is_a_setting(found: Any) -> None:
    for row in found.rows:
        assert row.mean == pytest.approx(np.mean(row.values), abs=1e-15)
        assert row.spread == pytest.approx(np.std(row.values, ddof=1), abs=1e-15)
    assert found.best.mean == max(row.mean for row in found.rows)
    assert set(found.best.point) == {"temperature"}


def test_the_test_figure_is_of_the_chosen_alone(found: Any, data: Path) -> None:
    told = found.as_json()["best"]
    assert told["validation"]["values"] == list(found.best.values)
    assert told["test"]["set"]["samples"] == 60
    assert {"untrained"} <= set(told["test"]["baselines"])
    tested = [
        folder.name
        for folder in (Path(found.folder) / "cells").iterdir()
        for result in json.loads((folder / "evaluation.json").read_text())["results"]
        if result["test"]["name"].endswith("test.npz")
    ]
    assert len(tested) == 2
    assert all(f"temperature={found.best.point['temperature']}," in name for name in tested)


def test_files_hold_the_table(found: Any) -> None:
    out = Path(found.folder)
    assert json.loads((out / "sweep.json").read_text()) == json.loads(json.dumps(found.as_json()))
    lines = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
    assert [float(line["mean"]) for line in lines] == [row.mean for row in found.rows]
    assert (out / "figure.svg").stat().st_size > 1000


def test_a_longer_axis_keeps_what_is_there(found: Any, data: Path) -> None:
    """Cells are named by what they depend on: one more value is one more training for each seed."""
    before = {path: path.stat().st_mtime_ns for path in Path(found.folder).glob("cells/*/result.json")}
    again = nf.sweep(
        "simclr",
        data / "train.npz",
        found.folder,
        temperature=[0.1, 0.5, 1.0],
        seed=[0, 1],
        quiet=True,
        **QUICK,
    )
    after = {path: path.stat().st_mtime_ns for path in Path(found.folder).glob("cells/*/result.json")}
    assert len(after) == 6
    assert before.items() <= after.items()
    assert [row.values for row in again.rows[:2]] == [row.values for row in found.rows]


def test_the_table_of_another_sweep_is_not_overwritten(found: Any, data: Path) -> None:
    before = (Path(found.folder) / "sweep.json").read_bytes()
    with pytest.raises(UserError, match="belongs to the sweep pretrain simclr"):
        nf.sweep("moco", data / "train.npz", found.folder, temperature=[0.1, 0.5], quiet=True, **QUICK)
    assert (Path(found.folder) / "sweep.json").read_bytes() == before


def test_a_cell_that_cannot_be_done_does_not_stop_the_others(data: Path, tmp_path: Path) -> None:
    found = nf.sweep("simclr", data / "train.npz", tmp_path, epochs=1, batch_size=[16, 4096], quiet=True)
    good, bad = found.rows
    assert (good.state, bad.state) == ("done", "failed")
    assert "4096" in bad.reason
    assert found.best is good
    assert "failed: " in str(found)


@pytest.mark.parametrize("year", [1990, 2090])
def test_what_failed_is_tried_again_whatever_the_clock_says(year: int, data: Path, tmp_path: Path) -> None:
    """At once after a full disk, and with a file that is dated anyhow: who failed before a command began is not who failed in it."""
    asked: dict[str, Any] = {"epochs": 1, "batch_size": [16, 32], "quiet": True}
    found = nf.sweep("simclr", data / "train.npz", tmp_path, **asked)
    file = next(path for path in tmp_path.glob("cells/*/result.json") if "batch_size=32" in path.parent.name)
    whole = file.read_text()
    file.write_text(whole.replace('"done"', '"failed"').replace('"values": {', '"values": {}, "was": {'))
    os.utime(file, (when := 3e7 * (year - 1970), when))
    again = nf.sweep("simclr", data / "train.npz", tmp_path, **asked)
    assert [row.state for row in again.rows] == ["done", "done"]
    assert [row.values for row in again.rows] == [row.values for row in found.rows]


@pytest.mark.parametrize("command", ["train", "distill", "mi"])
def test_other_commands_are_swept_alike(command: str, data: Path, tmp_path: Path, capsys: Any) -> None:
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
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert len(told["rows"]) == 2
    assert all(math.isfinite(row["mean"]) for row in told["rows"])
    assert told["best"]["test"]["set"]["samples"] == (200 if command == "mi" else 60)
    assert told["best"]["command"].startswith(f"nearfar {command} ")
    assert told["metric"] == ("at_least" if command == "mi" else "accuracy")


def test_data_without_labels_are_chosen_by_what_needs_none(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x=rows(120, 0)["x"])
    with pytest.raises(UserError, match=r"bare\.npz has no labels to select by.*--metric rankme or lidar"):
        nf.sweep("simclr", tmp_path / "bare.npz", tmp_path / "out", temperature=[0.1, 0.5], **QUICK)
    found = nf.sweep(
        "simclr",
        tmp_path / "bare.npz",
        tmp_path / "out",
        metric="rankme",
        temperature=[0.1, 0.5],
        quiet=True,
        **QUICK,
    )
    assert all(row.mean is not None and row.mean >= 1 for row in found.rows)


def test_a_search_gone_on_with_is_the_search_never_stopped(data: Path, tmp_path: Path) -> None:
    """Three trials, then up to five, against five in one go: the same proposals, values and prunings."""
    given: dict[str, Any] = {
        "search": "tpe", "quiet": True, "lr": "1e-4..1e-1:log", "temperature": [0.1, 0.5], "epochs": 2, "batch_size": 16
    }  # fmt: skip
    nf.sweep("simclr", data / "train.npz", tmp_path / "a", trials=3, **given)
    parts = nf.sweep("simclr", data / "train.npz", tmp_path / "a", trials=5, **given)
    whole = nf.sweep("simclr", data / "train.npz", tmp_path / "b", trials=5, **given)
    assert parts.as_json() == whole.as_json()
    assert len(parts.rows) == 5
    assert all(1e-4 <= row.point["lr"] <= 1e-1 for row in parts.rows)
    assert len({row.point["lr"] for row in parts.rows}) == 5


def test_runs_below_the_median_are_ended_and_others_are_not(tmp_path: Path) -> None:
    """Of trials that came to epoch 2, the median of the best probe so far decides; the first epoch and the first trials go free."""
    search = Search(space_of({"lr": "1e-4..1e-1"}), tmp_path, 20)
    others = [
        SearchTrial(number, {"lr": 0.01}, "done", value, {1: value, 2: value})
        for number, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5))
    ]
    now = SearchTrial(9, {"lr": 0.02})
    assert search.is_behind(now, others, {1: 0.1, 2: 0.29})
    assert not search.is_behind(now, others, {1: 0.1, 2: 0.31})
    assert not search.is_behind(now, others[:4], {1: 0.1, 2: 0.11})
    assert not Search(space_of({"lr": "1e-4..1e-1"}), tmp_path, 20, prune=False).is_behind(
        now, others, {1: 0.0, 2: 0.0}
    )


def test_pruned_trials_stay_in_the_table_without_a_value(data: Path, tmp_path: Path) -> None:
    """Which runs were ended is decided again from their logs: the median over earlier trials that came to their end, from five of those on."""
    found = nf.sweep(
        "supcon", data / "train.npz", tmp_path, search="random", trials=8, quiet=True, lr="1e-7..1e-1:log", epochs=2, batch_size=32
    )  # fmt: skip
    ended: list[dict[int, float]] = []
    for row in found.rows:
        (folder,) = (tmp_path / "cells").glob(f"lr={row.point['lr']},*")
        curve = probe_curve(folder)
        behind = [
            epoch
            for epoch, value in sorted(curve.items())
            if len(ended) >= 5
            and max(v for e, v in curve.items() if e <= epoch) < np.median([c[epoch] for c in ended])
        ]
        assert (row.state == "pruned") == bool(behind)
        assert (row.mean is None) == bool(behind)
        if behind:
            assert max(curve) == behind[0]
            assert "below the median" in row.reason
        else:
            ended.append(curve)
    assert found.best is not None


def test_probes_of_a_watched_run_ask_what_is_not_trained_on(data: Path, tmp_path: Path) -> None:
    """The last probe is the kNN vote of the fitted part's features about the validation part, and nothing of the training moves by it."""
    fit, held = open_data(data / "train.npz").split(0.2, 0)
    heard: list[dict[str, Any]] = []
    settings, _ = resolve_here("simclr", "table", None, {**QUICK, "held_out": 0.0}, modality=modality_of(fit))
    run = run_pretraining(
        settings, fit, tmp_path / "a", quiet=True, validation=held, loggers=[ProbeReporter(heard.append)]
    )
    plain = run_pretraining(settings, fit, tmp_path / "b", quiet=True)
    features = [run.embed(part) for part in (fit, held)]
    labels = [torch.from_numpy(part.labels) for part in (fit, held)]
    expected = nf.knn(features[0], labels[0], features[1], labels[1])["top1"]
    assert heard[-1]["knn_top1"] == expected
    assert [row["step"] for row in heard] == [0, run.facts["step"]]
    weights = plain.weights()
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
            "--search was 'grid'; expected tpe or random",
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
    said = capsys.readouterr().err
    assert sentence in said
    assert not re.search("Traceback", said)
    assert not (tmp_path / "out").exists()


def test_a_part_without_rows_is_told_as_it_is(tmp_path: Path, capsys: Any) -> None:
    """Two rows of two classes: a fifth held out is nobody. It was said to have no labels."""
    np.savez(tmp_path / "two.npz", **rows(2, 0))
    words = ["sweep", "simclr", str(tmp_path / "two.npz"), "temperature=0.1,0.2", "batch_size=2"]
    assert main([*words, "--out", str(tmp_path / "out"), "--jobs", "1"]) == 2
    said = capsys.readouterr().err
    assert "has 2 vectors; holding out 20% leaves none to select by" in said


def test_a_sweep_in_which_every_cell_failed_is_no_success(tmp_path: Path, data: Path, capsys: Any) -> None:
    words = ["sweep", "simclr", str(data / "train.npz"), "batch_size=4096,8192", "epochs=1"]
    assert main([*words, "--out", str(tmp_path), "--jobs", "1"]) == 2
    told = capsys.readouterr()
    assert "failed" in told.out  # the table is shown all the same
    assert "no cell of the sweep ended with a value; the first: " in told.err
