"""`nearfar distill` as a run: killed and resumed, evaluated without its teacher, refused in a sentence."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import nearfar as nf
from nearfar.cli import main
from nearfar.errors import UserError
from nearfar.modalities.image import IMAGE
from nearfar.parts.encoders import backbone
from nearfar.run import checkpoints
from nearfar.run.metrics import read_metrics
from nearfar.run.teachers import load_teacher
from nearfar.train.equality import CASES, compare
from tests.forked import Forked, run_command
from tests.helpers import newest_tensors

SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "workers": 0,
    "precision": "fp32",
    "probe_every": 0,
    "held_out": 0,
}
STUDENT: dict[str, Any] = {**SMALL, "backbone": "wrn-10-1"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with and without labels, and a teacher trained on them at another image size."""
    folder = tmp_path_factory.mktemp("distill")
    rng, labels = np.random.default_rng(0), np.arange(64) % 4
    images = rng.integers(0, 80, (64, 16, 16, 3)).astype(np.uint8)
    for row, label in enumerate(labels):
        images[row, 8 * (label // 2) :, 8 * (label % 2) :] += 100
    np.savez(folder / "labelled.npz", images=images, labels=labels)
    np.savez(folder / "plain.npz", images=images)
    np.savez(folder / "three.npz", images=images, labels=labels % 3)
    nf.train(
        str(folder / "labelled.npz"),
        out=folder / "teacher",
        quiet=True,
        backbone="resnet8-w16",
        image_size=12,
        **SMALL,
    )
    return folder


def words(**settings: Any) -> list[str]:
    return [f"{key}={value}" for key, value in {**STUDENT, **settings}.items()]


def test_resuming_after_a_kill_equals_never_stopping(home: Path, tmp_path: Path) -> None:
    """SIGKILL between two checkpoints of `crd+kd`: banks, constant and draws continue exactly."""
    settings_words = words(objective="crd+kd", checkpoint_every=1, epochs=6, **{"selection.sample": 20})
    command = ["distill", home / "teacher", home / "labelled.npz", *settings_words, "--quiet", "--out"]
    one_thread = partial(torch.set_num_threads, 1)
    complete, killed = tmp_path / "whole", tmp_path / "cut"
    assert run_command(*command, complete, setup=one_thread).returncode == 0
    child = Forked(*command, killed, setup=one_thread)
    child.wait_until(lambda: checkpoints.last_named(killed / "ckpt") >= 3)
    child.kill()
    assert child.returncode in (-signal.SIGKILL, 0)
    assert run_command(*command, killed, setup=one_thread).returncode == 0
    expected, result = newest_tensors(complete), newest_tensors(killed)
    assert expected.keys() == result.keys()
    assert [name for name in expected if not torch.equal(expected[name], result[name])] == []
    assert {"method/negatives.rows", "method/bound.log_z"} <= result.keys()
    assert result["method/negatives.rows"].shape == (
        2,
        64,
        128,
    )  # the student's and the teacher's, a row for each picture
    assert torch.isfinite(result["method/bound.log_z"])
    losses = [
        [r["loss"] for r in read_metrics(run / "metrics.jsonl") if r["kind"] == "train"]
        for run in (complete, killed)
    ]
    assert losses[0] == losses[1]


def test_the_teacher_is_frozen_and_no_part_of_the_student(home: Path, tmp_path: Path) -> None:
    teacher = load_teacher(home / "teacher")
    first_weights = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    run = nf.distill(
        teacher, str(home / "plain.npz"), out=tmp_path / "run", objective="infonce+kd", quiet=True, **STUDENT
    )
    later_weights = teacher.train().state_dict()
    assert not teacher.training
    assert all(torch.equal(first_weights[name], later_weights[name]) for name in first_weights)
    stored = newest_tensors(run.path)
    body = sum(weight.numel() for weight in run.encoder().parameters())
    assert (
        sum(t.numel() for name, t in stored.items() if name.startswith("method/encoders.network.backbone"))
        >= body
    )
    assert not any("guide" in name or "teacher" in name for name in stored)


def test_a_student_needs_its_teacher_only_to_resume(home: Path, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(home / "teacher", teacher)
    out, data = tmp_path / "run", str(home / "labelled.npz")
    nf.distill(teacher, data, out=out, objective="ml-cpc+kd", quiet=True, **{**STUDENT, "max_time": None})
    shutil.rmtree(teacher)
    run = nf.Run.open(out)
    assert run.embed(data).shape == (64, 64)
    assert main(["evaluate", str(out), "--json"]) == 0
    assert main(["export", str(out), "--to", str(tmp_path / "out")]) == 0
    assert main(["report", str(out)]) == 0
    assert load_teacher(out).classifier is not None  # a student can teach in turn
    with pytest.raises(UserError, match="was not found; expected a run folder"):
        nf.distill(teacher, data, out=out, objective="ml-cpc+kd", quiet=True, **STUDENT)
    nf.train(data, out=teacher, quiet=True, backbone="resnet8-w16", image_size=12, **{**SMALL, "seed": 1})
    with pytest.raises(UserError, match=r"started with other settings \(encoders.digest: \w+, now \w+\)"):
        nf.distill(teacher, data, out=out, objective="ml-cpc+kd", quiet=True, **STUDENT)
    with pytest.raises(UserError, match="has other weights"):
        run.method().encode_batch(nf.Batch((torch.zeros(2, 3, 16, 16),), torch.arange(2)))


def test_weights_files_teach_with_their_classifier(home: Path, tmp_path: Path) -> None:
    """torchvision's layout with fc, at its size and normalisation, from .pth and from .safetensors."""
    torch.manual_seed(0)
    net = backbone("resnet20", 3, 32)
    weights = {**net.state_dict(), "fc.weight": torch.randn(4, 64), "fc.bias": torch.randn(4)}
    torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}}, tmp_path / "w.pth"
    )
    save_file(weights, tmp_path / "w.safetensors")
    result = [load_teacher(f"resnet20:{tmp_path / name}") for name in ("w.pth", "w.safetensors")]
    assert result[0].digest == result[1].digest
    view = torch.randn(2, 3, 32, 32)
    expected = net.eval()(view)
    torch.testing.assert_close(result[0](view).features, expected)
    torch.testing.assert_close(result[0](view).logits, expected @ weights["fc.weight"].T + weights["fc.bias"])
    run = nf.distill(
        f"resnet20:{tmp_path / 'w.pth'}",
        str(home / "plain.npz"),
        out=tmp_path / "run",
        objective="kd",
        quiet=True,
        **STUDENT,
    )
    assert run.settings.encoders["classes"] == 4
    large = backbone("resnet18", 3, 224).state_dict()
    torch.save(large, tmp_path / "large.pth")
    assert (
        load_teacher(f"resnet18:{tmp_path / 'large.pth'}").size,
        load_teacher(f"resnet20:{tmp_path / 'w.pth'}").size,
    ) == (224, None)
    torch.save({**weights, "fc.bias": torch.zeros(3)}, tmp_path / "short.pth")
    with pytest.raises(UserError, match=r"fc\.weight is \[4, 64\] and fc\.bias \[3\]"):
        load_teacher(f"resnet20:{tmp_path / 'short.pth'}")


def test_views_are_converted_for_the_teacher() -> None:
    """Its mean and deviation in place of the student's, grey for colour and back, its side."""
    ours = IMAGE.reader.example_description(1)
    theirs = IMAGE.reader.description(
        {**ours.as_plain(), "size": 24, "mean": [0.2, 0.3, 0.4], "std": [0.1, 0.2, 0.3]}
    )
    pixels = torch.rand(2, 3, 32, 32)
    converted = IMAGE.view_converter(ours, theirs, "teacher")((pixels - 0.5) / 0.25)
    assert converted.shape == (2, 3, 24, 24)
    flat = IMAGE.view_converter(ours, theirs, "teacher")(torch.full((1, 3, 32, 32), (0.7 - 0.5) / 0.25))
    torch.testing.assert_close(
        flat[0, :, 0, 0], (0.7 - torch.tensor([0.2, 0.3, 0.4])) / torch.tensor([0.1, 0.2, 0.3])
    )
    grey = IMAGE.reader.description({**ours.as_plain(), "channels": 1, "mean": [0.5], "std": [0.25]})
    torch.testing.assert_close(
        IMAGE.view_converter(ours, grey, "teacher")((pixels - 0.5) / 0.25)[:, 0],
        (0.299 * pixels[:, 0] + 0.587 * pixels[:, 1] + 0.114 * pixels[:, 2] - 0.5) / 0.25,
    )
    assert IMAGE.view_converter(grey, ours, "teacher")(torch.zeros(1, 1, 32, 32)).shape == (1, 3, 32, 32)


def test_a_module_teaches(home: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    teacher = nf.Teacher(module, nn.Linear(8, 4), size=12, mean=(0.5,) * 3, std=(0.2,) * 3)
    out = tmp_path / "run"
    first = nf.distill(
        teacher, str(home / "plain.npz"), out=out, objective="cosine+relational+kd", quiet=True, **STUDENT
    )
    assert first.settings.encoders["width"] == 8
    assert nf.Run.open(out).embed(str(home / "plain.npz")).shape == (64, 64)
    opened = nf.Run.open(out, teacher=teacher)
    opened.method().encode_batch(nf.Batch((torch.zeros(2, 3, 16, 16),), torch.arange(2)))
    with pytest.raises(UserError, match="a Python module"):
        nf.Run.open(out).method().encode_batch(nf.Batch((torch.zeros(2, 3, 16, 16),), torch.arange(2)))


def test_the_default_objective_follows_the_teacher(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distill", str(home / "teacher"), str(home / "plain.npz"), "--print-config", *words()]) == 0
    assert "kd: 1.0" in capsys.readouterr().out
    simclr = nf.pretrain(
        "simclr",
        str(home / "plain.npz"),
        out=tmp_path / "simclr",
        quiet=True,
        backbone="resnet8-w16",
        **SMALL,
    )
    assert main(["distill", str(simclr.path), str(home / "plain.npz"), "--print-config", *words()]) == 0
    message = capsys.readouterr().out
    assert "nce-constant" in message
    assert "kd: 0.0" in message


REFUSED = {
    "": "TEACHER is missing",
    "teacher": "DATA is missing",
    "teacher labelled.npz objective=hinton": "objective was 'hinton' (did you mean infonce?); expected "
    "crd, infonce, ml-cpc, kd, cosine, relational",
    "teacher labelled.npz objective=kd+kd": "lists kd twice",
    "teacher three.npz objective=kd": "has 4 classes, but the data have 3",
    "nowhere labelled.npz": "teacher was {home}/nowhere, which was not found",
    "labelled.npz labelled.npz": "which is a file; write the network it is for before it",
    "resnet18:missing.pth labelled.npz": "was not found; name a weights file after the colon",
    "resnet19:labelled.npz labelled.npz": "teacher was resnet19",
    "resnet20:labelled.npz labelled.npz": "is not a weights file",
    "teacher labelled.npz prior.temperature=0": "prior.temperature was 0",
    "teacher labelled.npz encoders.weight=-1": "encoders.weight was -1",
    "teacher table.csv": "is made for pictures, but",
    "simclr labelled.npz objective=kd": "has no classifier, and kd needs class scores",
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_sentence(
    case: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "table.csv").write_text("a,b\n" + "\n".join(f"{k},{k % 7}" for k in range(40)))
    if case.startswith("simclr") and not (home / "simclr").exists():
        nf.pretrain(
            "simclr",
            str(home / "plain.npz"),
            out=home / "simclr",
            quiet=True,
            backbone="resnet8-w16",
            **{**SMALL, "epochs": 1},
        )
    arguments = [
        word
        if "=" in word
        else f"{word.partition(':')[0]}:{home / word.partition(':')[2]}"
        if ":" in word
        else str(home / word)
        for word in case.split()
    ]
    settings = words() if case else []
    assert main(["distill", *arguments, *settings, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert REFUSED[case].format(home=home) in message
    assert message.count("\n") == 1
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_recipe_without_a_teacher_is_explained(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "pretrain",
                "distill",
                str(home / "plain.npz"),
                "--out",
                str(tmp_path / "run"),
                *words(),
                "--quiet",
            ]
        )
        == 2
    )
    assert "nearfar distill TEACHER DATA" in capsys.readouterr().err


def test_two_ranks_equal_one() -> None:
    """Loss, gradient and weights after some steps: banks, constant and class scores of both ranks, in
    float64."""
    result = compare(2, {"distill": CASES["distill"]}, steps=3)["distill"]
    assert max(result.values()) < 1e-9, json.dumps(result)


def test_a_teacher_trained_on_held_out_data_voids_the_proof(tmp_path: Path) -> None:
    """A student of a teacher trained on all data may no longer be called proven (--allow-change)."""
    quick: dict[str, Any] = {"image_size": 8, "batch_size": 64, "workers": 0, "quiet": True, "probe_every": 0}
    common = {"backbone": "resnet8-w8", "epochs": 1, "held_out": 0.1}
    for name, share in (("kept", 0.1), ("all", 0.0)):
        nf.train("digits", tmp_path / name, **{**quick, **common, "held_out": share})
    settings_words: dict[str, Any] = {**quick, **common, "objective": "infonce"}
    out = tmp_path / "student"

    def claim(teacher: str, epochs: int) -> str:
        run = nf.distill(
            str(tmp_path / teacher), "digits", out, allow_change=True, **{**settings_words, "epochs": epochs}
        )
        return [row["status"] for row in run.metrics if row["kind"] == "held-out"][-1]

    assert [claim("kept", 1), claim("all", 2)] == ["proven", "not covered"]


def test_a_temperature_without_a_contrast_is_refused(tmp_path: Path) -> None:
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    with pytest.raises(
        UserError, match="temperature belongs to contrastive objectives, and objective=cosine is not one"
    ):
        nf.distill(
            nf.Teacher(teacher, size=8),
            images,
            tmp_path / "s",
            objective="cosine",
            temperature=0.3,
            quiet=True,
        )


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (nn.Linear(9, 4), "the classifier of the teacher Flatten does not take its 192 features"),
        (nn.Sequential(nn.Linear(192, 4), nn.Unflatten(1, (2, 2))), "must give a tensor of rows and classes"),
    ],
)
def test_a_classifier_that_does_not_fit_its_teacher_is_refused(
    classifier: nn.Module, message: str, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    with pytest.raises(UserError, match=message):
        nf.distill(
            nf.Teacher(nn.Flatten(), classifier, size=8), images, tmp_path / "s", objective="kd", quiet=True
        )
    assert not (tmp_path / "s").exists()
