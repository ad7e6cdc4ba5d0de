"""The command line in real processes: exit codes, one sentence per mistake, JSON and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import nearfar as nf
from nearfar.cli import main
from nearfar.config.fields import CHOICES, FIELDS, KEYS
from nearfar.core.results import Result
from nearfar.system.hardware import environment
from nearfar.system.machine import machine_facts
from tests.forked import run_command
from tests.helpers import run_python


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of real files, one of them broken."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        (root / label).mkdir()
        for number in range(40):
            noise = rng.integers(0, 40, (24, 30, 3)) + np.array(colour)
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(root / label / f"{number}.png")
    (root / "red" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    settings = ("backbone=resnet8-w16", "epochs=2", "batch_size=16", "checkpoint_every=4")
    process = run_command("pretrain", "simclr", photos, "--out", out, *settings)
    assert process.returncode == 0, process.stderr
    assert "80 images, 2 classes" in process.stderr
    return out


def test_run_folder_has_the_documented_files(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "tb", "ckpt", "env.json", "quarantine.csv"} <= names
    assert "broken.png" in (run / "quarantine.csv").read_text()
    assert (
        json.loads((run / "env.json").read_text())["packages"]["torch"] == torch.__version__.partition("+")[0]
    )


def test_evaluate_prints_one_json_object(run: Path, photos: Path) -> None:
    process = run_command("evaluate", run, "--data", photos, "--json")
    result = json.loads(process.stdout)
    assert set(result["knn"]) >= {"top1", "top5", "interval"}
    assert set(result["linear"]) >= {"top1", "top5", "interval"}
    assert set(result["baselines"]) == {"pixels", "untrained"}
    assert set(result["baselines"]["pixels"]) == {"knn", "linear"}
    assert result["baselines"]["pixels"]["knn"]["top1"] == 1.0  # red and blue
    assert set(result["test"]) == set(result["train"]) == {"name", "samples", "fingerprint", "unit"}
    stored = json.loads((run / "evaluation.json").read_text())[
        "results"
    ]  # and the answer for each instance, which is not printed
    assert result in [Result.from_json(entry) for entry in stored]


def test_unnamed_labels_of_two_sets_are_not_matched(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Integer labels in an .npz say nothing of which class is which, until a word or names do."""
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        images, labels = rng.integers(0, 256, (30, 24, 24, 3), np.uint8), np.arange(30) % 2
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
        np.savez(
            tmp_path / f"{name}-named.npz", images=images, labels=labels, classes=np.array(["cat", "dog"])
        )
    words = ["evaluate", str(run), "--no-baselines", "--protocol", "knn"]
    pair = lambda kind="": [
        "--train",
        str(tmp_path / f"one{kind}.npz"),
        "--data",
        str(tmp_path / f"two{kind}.npz"),
    ]
    assert main([*words, *pair()]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "numbers without names" in message
    assert "--same-labels" in message
    assert main([*words, *pair(), "--same-labels"]) == 0
    assert "matched by number" in capsys.readouterr().out
    assert main([*words, *pair("-named")]) == 0
    assert "2 classes matched by name" in capsys.readouterr().out
    assert main([*words, "--data", str(tmp_path / "two-named.npz")]) == 2, "photos have other classes"
    assert "which" in capsys.readouterr().err
    assert main([*words, "--train", str(tmp_path / "two.npz")]) == 0
    assert "a held-out 20% of" in capsys.readouterr().out


def test_embed_writes_features_with_paths_and_labels(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.parquet"
    assert main(["embed", str(run), str(photos), "--out", str(out)]) == 0
    table = pq.read_table(out)
    assert table.column_names == ["path", "label", "class", "feature"]
    features = np.stack(table["feature"].to_numpy())
    np.testing.assert_allclose(features, nf.Run.open(run).embed(str(photos)).numpy(), rtol=1e-4, atol=1e-5)


def test_features_open_in_other_libraries(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.parquet"
    assert main(["embed", str(run), str(photos), "--out", str(out)]) == 0
    table = pq.read_table(out)
    expected, paths = np.stack(table["feature"].to_numpy()), table["path"].to_pylist()
    pandas_frame, polars_frame = pd.read_parquet(out), pl.read_parquet(out)
    rows = duckdb.execute("select path, feature, class from read_parquet(?)", [str(out)]).fetchall()
    dataset = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
    readings: dict[str, tuple[Any, Any]] = {
        "pandas": (pandas_frame["path"], pandas_frame["feature"]),
        "polars": (polars_frame["path"], polars_frame["feature"]),
        "duckdb": ([row[0] for row in rows], [row[1] for row in rows]),
        "datasets": (dataset["path"], dataset["feature"]),
    }
    for library, (names, features) in readings.items():
        assert list(names) == paths, library
        np.testing.assert_array_equal(
            np.array([list(row) for row in features], np.float32), expected, library
        )
    assert {row[2] for row in rows} == set(pandas_frame["class"])


def test_report_is_one_file(run: Path) -> None:
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").stat().st_size > 10_000


def test_python_api_equals_command_line(photos: Path, run: Path, tmp_path: Path) -> None:
    same = nf.pretrain(
        "simclr", data=str(photos), out=tmp_path / "again", quiet=True,
        backbone="resnet8-w16", epochs=2, batch_size=16, checkpoint_every=4,
    )  # fmt: skip
    ours, theirs = same.method().state_dict(), nf.Run.open(run).method().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    by_path, by_run = (nf.evaluate(subject, protocols=["knn"]) for subject in (str(same.path), same))
    assert by_path == by_run


def test_recipes_and_doctor() -> None:
    process = run_python("-m", "nearfar", "recipes", "--json")
    recipes = json.loads(process.stdout)
    assert {"simclr", "moco", "byol", "instdisc"} <= set(recipes)
    for choices in recipes.values():
        assert set(choices) == {"views", "encoders", "critic", "negatives", "selection", "bound", "prior"}
    assert "bf16" in json.loads(run_command("doctor", "--json").stdout)


def test_recipe_in_full_shows_the_choices_and_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "simclr"]) == 0
    output = capsys.readouterr().out
    for room in ("views", "encoders", "critic", "negatives", "selection", "bound", "claims"):
        assert f"\n  {room} " in output


def test_print_config_round_trips_through_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["pretrain", "moco", "photos", "epochs=7", "--print-config", "encoders.momentum=cosine(0.9,1)"]
    assert main(words) == 0
    first = capsys.readouterr().out
    (tmp_path / "run.yaml").write_text(first)
    assert main(["pretrain", "--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == first


MISTAKES = {
    "unknown command": (["pretrian"], "'pretrian' (did you mean pretrain"),
    "unknown option": (["recipes", "--jsn"], "--jsn"),
    "setting with dashes": (["pretrain", "simclr", "x", "--out", "o", "--epochs", "10"], "epochs=10"),
    "setting with dashes and =": (
        ["pretrain", "simclr", "x", "--batch-size=8", "--out", "o"],
        "batch_size=8",
    ),
    "setting with dashes last": (["pretrain", "simclr", "x", "--out", "o", "--lr"], "lr=VALUE"),
    "unknown recipe": (["pretrain", "simclir", "x", "--out", "o"], "did you mean simclr"),
    "unknown recipe to show": (["recipes", "simclir"], "did you mean simclr"),
    "unknown part": (
        ["pretrain", "simclr", "digits", "--out", "o", "bound=infonec"],
        "(did you mean infonce",
    ),
    "no data": (["pretrain", "simclr", "--out", "o"], "DATA is missing"),
    "no recipe": (["pretrain", "--out", "o"], "RECIPE is missing"),
    "data alone": (
        ["pretrain", ".", "--out", "o"],
        "RECIPE is missing before .; for instance nearfar pretrain simclr .",
    ),
    "data before the recipe": (
        ["pretrain", ".", "simclr", "--out", "o"],
        "did you mean nearfar pretrain simclr .?",
    ),
    "no out": (["pretrain", "simclr", "digits"], "--out is missing"),
    "data not there": (["pretrain", "simclr", "no/such/folder", "--out", "o"], "no/such/folder"),
    "bad setting": (["pretrain", "simclr", "digits", "--out", "o", "epochs=ten"], "epochs was 'ten'"),
    "batch too large": (["pretrain", "simclr", "digits", "--out", "o", "batch_size=5000"], "5000"),
    "queue too small": (["pretrain", "moco", "digits", "--out", "o", "negatives.size=10"], "Queue(size=10)"),
    "not a run": (["evaluate", "nowhere"], "nowhere is not a run"),
    "embed to csv": (["embed", "nowhere", "digits", "--out", "x.csv"], "x.csv"),
    "config missing": (["pretrain", "simclr", "digits", "--config", "none.yaml", "--out", "o"], "none.yaml"),
    "no such device": (
        ["pretrain", "simclr", "digits", "--out", "o", "device=cuda:7"],
        "device was 'cuda:7'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_prints_one_sentence_and_exits_with_2(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, phrase = MISTAKES[name]
    assert main(words) == 2
    output = capsys.readouterr()
    last = output.err.strip().splitlines()[-1]
    assert last.startswith("nearfar: ")
    assert phrase in last
    assert "Traceback" not in output.err


def test_unknown_protocol_and_bad_out(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["evaluate", str(run), "--protocol", "knm"]) == 2
    assert "--protocol" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["pretrain", "simclr", "digits", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_run_inside_another_run_folder_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in (run / "ckpt").iterdir()}
    assert main(["pretrain", "simclr", "digits", "--out", str(run / "ckpt" / "x"), "epochs=1"]) == 2
    assert f"is inside the run {run.resolve()}" in capsys.readouterr().err
    assert names == {path.name for path in (run / "ckpt").iterdir()}
    assert main(["semi", "simclr", "digits", "--labels", "4", "--out", str(run)]) == 2
    assert "which is a run; choose another folder" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("words", "streams", "unbuffered"),
    [
        ("--help", ">/dev/full", "1"),
        ("recipes", ">/dev/full", ""),
        ("recipes", ">/dev/full 2>/dev/full", ""),
        ("recipes", ">&-", ""),
        ("recipes", "2>&- >/dev/full", "1"),
        ("recipes nosuch", "2>/dev/full", ""),
    ],
)
def test_closed_stderr_still_gives_the_exit_code(words: str, streams: str, unbuffered: str) -> None:
    """2 if the answer could not be written or the input was wrong; 0 if all was written or no reader is
    left."""
    process = subprocess.run(
        f"exec {sys.executable} -m nearfar {words} {streams}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    answer_lost = ">/dev/full" in streams.replace("2>/dev/full", "")
    assert process.returncode == (2 if answer_lost or words == "recipes nosuch" else 0)
    assert "Traceback" not in process.stderr
    if streams == ">/dev/full" and words != "recipes nosuch":
        assert "standard output, cannot be used: No space left on device" in process.stderr


def test_command_without_arguments_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "pretrain" in capsys.readouterr().out


def test_help_describes_every_setting_and_imports_no_torch() -> None:
    assert {*FIELDS, *CHOICES, "recipe", "data"} == {*KEYS}
    program = (
        "import sys; from nearfar.cli.settings_help import settings_help; text = settings_help(); "
        "assert not {'torch', 'numpy', 'pydantic', 'yaml'} & set(sys.modules); print(text)"
    )
    text = run_python("-c", program, check=True).stdout
    for name, field in FIELDS.items():
        words = r"\s+".join(map(re.escape, field.description.split()))  # long lines are wrapped
        assert re.search(rf"^  {name} +{words}\s+\[", text, re.MULTILINE)
    assert f"[{FIELDS['epochs'].default_text()}]" in " ".join(text.split())
    assert FIELDS["epochs"].default_text().startswith("100; ")


def test_doctor_agrees_with_torch() -> None:
    our_facts, torch_facts = machine_facts(), environment()
    assert {key: torch_facts[key] for key in our_facts if key != "threads"} == {
        key: our_facts[key] for key in our_facts if key != "threads"
    }


def test_doctor_reports_broken_packages(tmp_path: Path) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("raise OSError('libnothing.so: cannot open')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = (
        "from nearfar.system import machine; machine.EXTRAS = {'timm': 'timm'}; machine.CORE = (); "
        "print(machine.broken_packages())"
    )
    process = run_python("-c", code, check=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout.strip() == str({"timm": "OSError: libnothing.so: cannot open"})


@pytest.mark.parametrize(
    "words", [["--help"], ["pretrain", "--help"], ["evaluate", "--help"], ["demo", "--help"]]
)
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert exit_info.value.code == 0
    assert "nearfar" in capsys.readouterr().out


def test_the_demo_names_the_extra_of_its_report_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert "jinja2 is not installed; pip install 'nearfar[report]'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
