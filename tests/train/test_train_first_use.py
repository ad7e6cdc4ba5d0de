"""What a user meets first: folders, disks, versions, messages, and methods that were built from a recipe."""

import json
import shlex
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.cli import main
from nearfar.config.recipes.distillation import OBJECTIVES, layer_of, objective_of
from nearfar.config.resolving import resolve
from nearfar.data.open import locate
from nearfar.errors import UserError, counted, naming_flags, near_names
from nearfar.run import trained
from nearfar.sweeps import objectives
from nearfar.sweeps.objectives import TrainingObjective
from nearfar.train.defaults import resolve_here
from tests.helpers import IMAGES, LABELS
from tests.helpers import QUICK as WITHOUT_BACKBONE

QUICK = {**WITHOUT_BACKBONE, "backbone": "resnet8-w16"}


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """A list that gets an entry for each call of a function."""
    calls: list[str] = []
    original = getattr(module, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        calls.append(name)
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, name, call)
    return calls


# ----------------------------------------------------------------------------- methods built from a recipe


@pytest.mark.parametrize("name", ["simclr", "moco-ring", "instdisc", "byol"])
def test_method_of_a_recipe_opens_without_the_object(name: str, tmp_path: Path) -> None:
    method = nf.recipe(name, data=IMAGES, backbone="resnet8-w16")
    run = nf.pretrain(method, IMAGES, tmp_path / "run", **WITHOUT_BACKBONE)
    opened = nf.Run.open(tmp_path / "run")
    assert torch.equal(opened.embed(IMAGES), run.embed(IMAGES))
    assert nf.Run.open(tmp_path / "run", method=method).settings == opened.settings
    nf.pretrain(method, IMAGES, tmp_path / "run", **WITHOUT_BACKBONE)  # finished, and the same


def test_changed_method_of_a_recipe_is_an_object(tmp_path: Path) -> None:
    """Other layers than the settings describe are not forgotten."""
    method = nf.recipe("simclr", data=IMAGES, backbone="resnet8-w16")
    method.encoders.network.head.append(torch.nn.Tanh())  # type: ignore[attr-defined]
    nf.pretrain(method, IMAGES, tmp_path / "run", **WITHOUT_BACKBONE)
    with pytest.raises(UserError, match="was created with Python objects: method"):
        nf.Run.open(tmp_path / "run").encoder()


def test_method_with_memories_of_other_sizes_needs_the_object(tmp_path: Path) -> None:
    method = nf.recipe("instdisc", instances=64, image_size=12, backbone="resnet8-w16")
    run = nf.pretrain(method, IMAGES, tmp_path / "run", **WITHOUT_BACKBONE)
    with pytest.raises(UserError, match=r"a Method of other sizes: pass it again, .*method=…"):
        nf.Run.open(tmp_path / "run").method()
    assert torch.equal(nf.Run.open(tmp_path / "run", method=method).embed(IMAGES), run.embed(IMAGES))


def test_method_of_a_run_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nf.pretrain("moco", IMAGES, tmp_path / "run", **QUICK)
    calls = count_calls(monkeypatch, trained, "build_method")
    method = nf.Run.open(tmp_path / "run").method()
    assert len(calls) == 1
    assert not any(tensor.is_meta for tensor in method.state_dict().values())
    weights = nf.Run.open(tmp_path / "run").weights()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in method.state_dict().items())


def test_cells_of_a_sweep_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, objectives, "resolve_here")
    objective = TrainingObjective("pretrain", "simclr", (IMAGES, LABELS), "knn")
    first = objective.identity({"backbone": "resnet8-w16"}, 0)
    assert objective.identity({"backbone": "resnet8-w16"}, 0) == first
    assert len(calls) == 1


# -------------------------------------------------------------------------------------- settings and hooks


def test_size_of_a_bank_is_a_setting(tmp_path: Path) -> None:
    run = nf.pretrain("instdisc", IMAGES, tmp_path / "run", negatives={"size": 50}, **QUICK)
    assert run.weights()["negatives.rows"].shape[1] == 50
    with pytest.raises(
        UserError, match=r"negatives\.size was 40; a bank needs a row for each of the 48 instances"
    ):
        nf.pretrain("instdisc", IMAGES, tmp_path / "small", negatives={"size": 40}, **QUICK)


class StopAtOnce(nf.Hook):
    def on_start(self, session: Any) -> None:
        session.stop("not today")


def test_stop_before_the_first_step_trains_nothing(tmp_path: Path) -> None:
    run = nf.pretrain("simclr", IMAGES, tmp_path / "run", hooks=[StopAtOnce()], **QUICK)
    assert (run.facts["step"], run.facts["ended"]) == (0, "not today")


@pytest.mark.parametrize("objective", [*OBJECTIVES, "crd+kd", "infonce+kd+cosine"])
def test_objective_is_read_from_settings(objective: str) -> None:
    teacher = {
        "encoders": {"teacher": "x", "digest": "d0", "width": 8, "classes": 3 if "kd" in objective else 0}
    }
    settings = resolve("distill", "x", layer_of(objective), teacher)
    assert objective_of(settings.as_plain()) == objective
    assert objective_of(resolve("simclr", "x").as_plain()) is None


def test_conflict_of_a_distillation_shows_the_objective(tmp_path: Path) -> None:
    teacher = nf.train((IMAGES, LABELS), tmp_path / "teacher", **QUICK)
    nf.distill(teacher.path, IMAGES, tmp_path / "student", objective="kd", **QUICK)
    with pytest.raises(UserError, match=r"other settings \(objective: kd, now cosine\); resume"):
        nf.distill(teacher.path, IMAGES, tmp_path / "student", objective="cosine", **QUICK)


# -------------------------------------------------------------------------------------- folders and disks


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.jpg").touch()
    with pytest.raises(UserError, match=r"is not a run folder: it contains a\.jpg and 1 more"):
        nf.pretrain("simclr", IMAGES, tmp_path, **QUICK)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jpg", "b.jpg"}


def test_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("kept")
    with pytest.raises(UserError, match=r"taken is a file; choose a new or empty folder"):
        nf.pretrain("simclr", IMAGES, tmp_path / "taken", **QUICK)
    assert (tmp_path / "taken").read_text() == "kept"


def test_lazy_network_without_weights_is_refused(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
    with pytest.raises(UserError, match=r"lazy layers without weights; call it once on a batch"):
        nf.pretrain("simclr", IMAGES, tmp_path, **{**WITHOUT_BACKBONE, "backbone": network})


def test_start_that_failed_does_not_decide_the_defaults(tmp_path: Path) -> None:
    """Settings were written, and no step was made: another recipe chooses as in a new folder."""
    nf.pretrain("simclr", IMAGES, tmp_path / "run", **QUICK, hooks=[StopAtOnce()])
    located = locate(IMAGES)
    fresh, note = resolve_here("byol", "arrays", tmp_path / "new", located=located)
    assert resolve_here("byol", "arrays", tmp_path / "run", located=located) == (fresh, note)
    assert "batch_size=8" in str(note)


def test_disk_without_room_for_the_checkpoints_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 3_130_000))
    with pytest.raises(UserError, match=r"the run writes 3 checkpoints of .* MB, but only 3.13 MB are free"):
        nf.pretrain("simclr", IMAGES, tmp_path / "run", **QUICK)


def test_changed_versions_are_reported_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**QUICK, "quiet": False}
    nf.pretrain("simclr", IMAGES, tmp_path / "run", **settings)
    file = tmp_path / "run" / "env.json"
    first = json.loads(file.read_text())
    first["packages"]["torch"] = "1.0"
    file.write_text(json.dumps(first))
    nf.pretrain("simclr", IMAGES, tmp_path / "run", **{**settings, "epochs": 2}, allow_change=True)
    now = json.loads(file.read_text())
    assert (
        f"versions changed since step 3: torch 1.0, now {now['packages']['torch']}" in capsys.readouterr().err
    )
    assert [entry["packages"]["torch"] for entry in now["history"]] == ["1.0"]
    nf.pretrain("simclr", IMAGES, tmp_path / "run", **{**settings, "epochs": 2})
    assert json.loads(file.read_text())["history"] == now["history"]
    assert "versions changed" not in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- messages


def test_messages_name_arguments_in_python_and_options_in_commands() -> None:
    problem = UserError("give --data, or add --same-labels; nearfar pretrain --help lists all")
    assert str(problem) == "give data, or add same_labels=True; nearfar pretrain --help lists all"
    with naming_flags():
        assert str(problem) == "give --data, or add --same-labels; nearfar pretrain --help lists all"


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(count, "classes") for count in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
    assert [counted(count, "images") for count in (1, 1024)] == ["1 image", "1,024 images"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SimCLR", " (did you mean simclr?)"),
        ("mocco", " (did you mean moco?)"),
        ("dino", " (nearest: dim)"),
        ("zzzz", ""),
    ],
)
def test_similar_names_are_suggested(name: str, hint: str) -> None:
    assert near_names(name, ["simclr", "simclr-ring", "moco", "dim"]) == hint


def test_unknown_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["foo"]) == 2
    assert "expected demo, pack, pretrain" in capsys.readouterr().err


def test_labels_are_missed_before_the_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "bare.npz", images=IMAGES)
    words = ["train", str(tmp_path / "bare.npz"), "--out", str(tmp_path / "run"), "batch_size=256"]
    assert main(words) == 2
    assert (
        "supervised training (encoders=prototypes) needs labels, but the data have none"
        in capsys.readouterr().err
    )


def test_packed_images_are_trained_at_the_size_they_were_packed_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), dtype=np.uint8)
    np.savez(tmp_path / "large.npz", images=large)
    assert main(["pack", str(tmp_path / "large.npz"), "--out", str(tmp_path / "p"), "image_size=32"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("--out runs/packed image_size=32")


def test_next_command_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The defaults are said before the first step, and paths with spaces are quoted."""
    np.savez(tmp_path / "my images.npz", images=IMAGES)
    settings = ["epochs=1", "workers=0", "held_out=0", "device=cpu"]
    words = ["pretrain", "simclr", str(tmp_path / "my images.npz"), "--out", str(tmp_path / "my run")]
    assert main([*words, *settings]) == 0
    printed = capsys.readouterr()
    assert "backbone=resnet8-w16 batch_size=8 chosen for a CPU and 48 images; set them" in printed.err
    command = printed.out.rstrip().partition("next: ")[2]
    assert shlex.split(command) == ["nearfar", "report", str(tmp_path / "my run")]
    assert main(["pack", str(tmp_path / "my images.npz"), "--out", str(tmp_path / "my pack")]) == 0
    command = capsys.readouterr().out.rstrip().partition("next: ")[2]
    assert shlex.split(command)[:4] == ["nearfar", "pretrain", "simclr", str(tmp_path / "my pack")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mi", "x.npy", "y.npy"], "interrupted"),
        (
            ["pretrain", "simclr", "digits", "--out", "r"],
            "interrupted; the same command resumes from what was saved",
        ),
    ],
)
def test_interrupted_command_promises_only_what_it_saves(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearfar.estimate.read.read_pair", interrupt)
    monkeypatch.setattr("nearfar.data.locate", interrupt)
    assert main(words) == 75
    assert capsys.readouterr().err == f"nearfar: {sentence}\n"
