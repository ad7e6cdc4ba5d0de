"""Few labels: the cut head, the choice of labels, resuming, and a table that equals evaluation of the
runs."""

import html
import itertools
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nearfar as nf
from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.parts.encoders import HeadConfig
from nearfar.run import checkpoints
from nearfar.run.trained import Run
from nearfar.simclrv2.labels import choose_labels, read_labels
from nearfar.system.hardware import one_thread
from nearfar.train.init import start_from
from tests.forked import Forked

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "encoders": {"hidden": 24, "layers": 3, "dim": 8}}
WORDS = ["epochs=1", "batch_size=16", "encoders.hidden=24", "encoders.layers=3", "encoders.dim=8"]
STAGES = ["finetune.epochs=2", "distil.epochs=2", "distil.batch_size=16", "seed=3"]


def rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    x = rng.normal(size=(count, 6)) + 1.5 * np.eye(6)[labels]
    return {"x": x.astype(np.float32), "labels": labels}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "train.npz", **rows(96, 0))
    np.savez(folder / "test.npz", **rows(48, 1))
    return folder


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return nf.pretrain("simclr", data / "train.npz", tmp_path_factory.mktemp("pre"), quiet=True, **QUICK)


@pytest.mark.parametrize("layers", [2, 3, 5])
@pytest.mark.parametrize("norm", [True, False])
def test_a_cut_head_is_the_first_layers_of_the_full_head(layers: int, norm: bool) -> None:
    """Chen et al. 2020b, sec. 2: with a head g = W3 s(W2 s(W1 .)), fine-tuning keeps s(W1 f(x))."""
    head_config: dict[str, Any] = {
        "head": "mlp" if norm else "mlp-plain",
        "hidden": 7,
        "dim": 4,
        "layers": layers,
    }
    complete = HeadConfig(**head_config).make_head(5)
    x = torch.randn(6, 5)
    for cut in range(1, layers):
        part = HeadConfig(**head_config, cut=cut).make_head(5)
        part.load_state_dict({name: complete.state_dict()[name] for name in part.state_dict()})
        ours = part.eval()(x)
        expected, relu_count = x, 0
        for layer in complete.eval():  # type: ignore[attr-defined]
            expected = layer(expected)
            relu_count += isinstance(layer, torch.nn.ReLU)
            if relu_count == cut:
                break
        assert torch.equal(ours, expected)
    for wrong in (-1, layers):
        with pytest.raises(UserError, match=re.escape(f"encoders.cut was {wrong}")):
            HeadConfig(**head_config, cut=wrong)


def test_fine_tuning_starts_from_the_pretrained_layers(pretrained: Run, data: Path) -> None:
    """Before its first step the fine-tuned network is W s(W1 f(x)) + b with the pretrained W1 and f."""
    head = {key: pretrained.settings.encoders[key] for key in ("head", "hidden", "layers")}
    method = nf.recipe(
        "supervised",
        data=data / "train.npz",
        backbone=pretrained.settings.backbone,
        encoders={**head, "cut": 1},
    )
    message = start_from(method, str(pretrained.path), cut=1)
    assert "first 1 of its head's layers" in message
    trained: Any = pretrained.method().encoders
    network = trained.network
    x = torch.from_numpy(rows(8, 5)["x"])
    inner = F.relu(network.head[1](network.head[0](network.backbone(x))))
    encoders: Any = method.eval().encoders
    assert torch.equal(encoders.network(x), inner)
    second = nf.recipe(
        "supervised",
        data=data / "train.npz",
        backbone=pretrained.settings.backbone,
        encoders={**head, "hidden": 25, "cut": 1},
    )
    with pytest.raises(
        UserError, match=r"encoders\.cut was 1 with init=.*set encoders\.head, encoders\.hidden"
    ):
        start_from(second, str(pretrained.path), cut=1)


def test_labels_are_a_share_a_number_or_a_file(data: Path, tmp_path: Path) -> None:
    complete: Any = open_data(data / "train.npz")
    assert len(choose_labels(complete, read_labels("0.25"), 0)) == 24
    two: Any = choose_labels(complete, read_labels("2"), 0)
    assert np.bincount(two.labels).tolist() == [2, 2, 2]
    one, second = (choose_labels(complete, 0.25, draw).paths for draw in (0, 1))
    assert set(one) != set(second)
    (tmp_path / "a.csv").write_text("index,label\n5,cat\n1,dog\n")
    few: Any = choose_labels(complete, read_labels(str(tmp_path / "a.csv")), 0)
    assert (few.paths, few.labels.tolist(), few.classes) == (
        (complete.paths[1], complete.paths[5]),
        [1, 0],
        ("cat", "dog"),
    )
    (tmp_path / "b.csv").write_text(f"path,label\n{complete.paths[7]},2\n")
    by_path: Any = choose_labels(complete, tmp_path / "b.csv", 0)
    assert by_path.labels.tolist() == [2]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("name,label\na,1\n", "has the columns name, label; expected label, and path or index"),
        ("path,label\nnowhere.jpg,1\n", "names nowhere.jpg, which is not in"),
        ("index,label\n96,1\n", "index must be whole numbers from 0 to 95"),
        ("index,label\n3,1\n3,2\n", "names 1 instances twice"),
    ],
)
def test_bad_label_file_is_refused(content: str, sentence: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text(content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        choose_labels(open_data(data / "train.npz"), tmp_path / "few.csv", 0)


def test_pipe_or_folder_as_label_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "few.csv")
    (tmp_path / "many.csv").mkdir()
    with pytest.raises(UserError, match=r"few\.csv, which is a pipe, a socket or a device"):
        read_labels(str(tmp_path / "few.csv"))
    with pytest.raises(UserError, match=r"many\.csv, which is a folder"):
        read_labels(str(tmp_path / "many.csv"))


def test_unusable_label_file_is_refused_before_training(data: Path, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("name,label\na,1\n")
    with pytest.raises(UserError, match="has the columns name, label"):
        nf.semi("simclr", data / "train.npz", tmp_path / "few.csv", tmp_path / "semi")
    assert not (tmp_path / "semi").exists()


@pytest.fixture(scope="module")
def complete(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, never interrupted."""
    out = tmp_path_factory.mktemp("semi")
    words = [
        str(data / "train.npz"),
        "--labels",
        "4",
        "--data",
        str(data / "test.npz"),
        "--same-labels",
        "--quiet",
    ]
    with one_thread():  # how sums are split moves bits
        assert main(["semi", "simclr", *words, *WORDS, *STAGES, "--out", str(out)]) == 0
    return out


def test_table_equals_evaluation_of_the_runs(complete: Path, data: Path) -> None:
    """Top-1 of each classifier computed again from the checkpoint; the student has no head."""
    content = json.loads((complete / "semi.json").read_text())
    assert list(content["figures"]) == ["from scratch", "linear probe", "fine-tuned", "distilled"]
    assert content["labels"] == 12
    assert content["test"]["samples"] == 48
    test = rows(48, 1)
    for way, stage in (("from scratch", "scratch"), ("fine-tuned", "finetune"), ("distilled", "distil")):
        run = Run.open(complete / stage)
        encoders: Any = run.method().encoders
        description: Any = run.description
        mean, std = (torch.tensor(values) for values in (description.mean, description.std))
        x = (torch.from_numpy(test["x"]) - mean) / std
        with torch.no_grad():
            inner = encoders.network(x)
            predicted = encoders.table(inner).argmax(1).numpy()
        assert content["figures"][way]["top1"] == pytest.approx(
            (predicted == test["labels"]).mean(), abs=1e-12
        )
    assert Run.open(complete / "finetune").settings.encoders["cut"] == 1
    assert Run.open(complete / "distil").settings.init == str(complete / "pretrain")


def test_report_shows_the_table_and_every_stage(complete: Path) -> None:
    content = json.loads((complete / "semi.json").read_text())
    page = (complete / "report.html").read_text()
    summary = page[page.index('id="in-short"') : page.index('id="compared"')]
    for way, result in content["figures"].items():
        assert f'<th scope="row">{way}</th><td>{100 * result["top1"]:.1f}</td>' in summary
    assert all(html.escape(verdict) in summary for verdict in content["verdicts"])
    assert page.count('class="run"') == len(content["runs"]) == 4


def test_the_student_trains_without_labels(complete: Path) -> None:
    """Its description of the data has no classes, and its loss uses the teacher only."""
    student = Run.open(complete / "distil")
    assert student.facts["data"]["class_count"] is None
    assert student.settings.encoders["teacher"] == str(complete / "finetune")


@pytest.mark.slow
def test_resuming_after_a_kill_equals_never_stopping(complete: Path, data: Path, tmp_path: Path) -> None:
    """SIGKILL while the student trains, then the same command: every checkpoint equals the uninterrupted
    one."""
    out = tmp_path / "cut"
    words = [
        str(data / "train.npz"),
        "--labels",
        "4",
        "--data",
        str(data / "test.npz"),
        "--same-labels",
        "--quiet",
    ]
    command = ["semi", "simclr", *words, *WORDS, *STAGES, "distil.checkpoint_every=1", "--out", str(out)]
    child = Forked(*command, setup=partial(torch.set_num_threads, 1))
    child.wait_until(lambda: list((out / "distil" / "ckpt").glob("step-*")))
    assert child.returncode is None
    child.kill()
    with one_thread():
        assert main(command) == 0
    assert (
        json.loads((out / "semi.json").read_text())["figures"]
        == json.loads((complete / "semi.json").read_text())["figures"]
    )
    for stage in ("pretrain", "scratch", "finetune", "distil"):
        one, second = (checkpoints.newest(folder / stage / "ckpt") for folder in (complete, out))
        assert one is not None
        assert second is not None
        mine, theirs = checkpoints.load(one)[0], checkpoints.load(second)[0]
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_existing_run_smaller_student_and_several_draws(
    pretrained: Run, data: Path, tmp_path: Path, capsys: Any
) -> None:
    result = nf.semi(
        "simclr", data / "train.npz", 0.25, tmp_path, test=data / "test.npz", init=pretrained.path, draws=2,
        same_labels=True,
        finetune={"epochs": 2}, distil={"epochs": 1, "batch_size": 16}, from_layer=2,
    )  # fmt: skip
    progress = capsys.readouterr().err
    for draw, stage in itertools.product((0, 1), ("scratch", "finetune", "distil")):
        stage_output = progress.partition(f"semi: stage draw-{draw}/{stage}: ")[2]
        epochs = 1 if stage == "distil" else 2
        assert f"epoch {epochs}.0/{epochs}  loss " in stage_output.partition("semi: ")[0], stage
    assert not (tmp_path / "pretrain").exists()
    assert all(len(draws) == 2 for draws in result.figures.values())
    assert Run.open(tmp_path / "draw-1" / "finetune").settings.encoders["cut"] == 2
    assert [line.split(" above ")[0] for line in result.verdicts] == ["fine-tuned", "fine-tuned", "distilled"]
    assert "over 2 draws" in str(result)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simclr", "DATA"], "--labels is missing"),
        (["simclr", "DATA", "--labels", "1.5"], "--labels was 1.5; expected a share below 1"),
        (["simclr", "DATA", "--labels", "few.txt"], "--labels was few.txt; expected a share"),
        (["simclr", "DATA", "--labels", "4", "--draws", "0"], "--draws was 0"),
        (["simclr", "DATA", "--labels", "4", "--init", "PRE", "epochs=3"], "epochs was given with --init"),
        (
            ["simclr", "DATA", "--labels", "4", "--init", "PRE", "from_layer=3"],
            "from_layer was 3; the head of",
        ),
        (
            ["simclr", "DATA", "--labels", "4", "--init", "PRE", "finetune.epoch=3"],
            "epoch is not one of the settings",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, data: Path, pretrained: Run, tmp_path: Path, capsys: Any
) -> None:
    places = {"DATA": str(data / "train.npz"), "PRE": str(pretrained.path)}
    assert (
        main(["semi", *(places.get(word, word) for word in words), "--out", str(tmp_path / "out"), "--quiet"])
        == 2
    )
    message = capsys.readouterr().err
    assert sentence in message
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()


def test_bad_test_data_labels_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the test data are digits, which is also the training data"):
        nf.semi("simclr", "digits", 0.1, tmp_path / "a", test="digits", quiet=True)
    with pytest.raises(UserError, match=r"the test data are digits, which is also the training data"):
        nf.sweep("simclr", "digits", tmp_path / "b", test="digits", temperature=[0.1, 0.5], quiet=True)
    listed = tmp_path / "l.csv"
    listed.write_text("index,label\n0,a\n1,\n2,b\n")
    with pytest.raises(UserError, match="has 1 rows without a label; leave those rows out"):
        choose_labels(open_data("digits"), listed, 0)
    with pytest.raises(UserError, match="backbone was 'nope'"):  # before any stage is trained
        nf.semi("simclr", "digits", 0.1, tmp_path / "c", student="nope", quiet=True)
    assert not (tmp_path / "c").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: simclr\n")
    with pytest.raises(UserError, match="is a run; choose another folder for the sweep"):
        nf.sweep("simclr", "digits", tmp_path / "run", temperature=[0.1, 0.5], quiet=True)
    with pytest.raises(UserError, match="objective was 3; expected crd"):
        nf.distill("runs/none", "digits", tmp_path / "d", objective=3)  # type: ignore[arg-type]
