"""Studies on images: who is trained on and who is asked about, arms kept, resumed and run side by side."""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import Stopped
from nearfar.studies.frame import Bench, arm_name
from nearfar.studies.images import Setup, figures_of, moments, percent, repeated, sets_of, written
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import run_pretraining

TOY = Setup("digits", on="validation", images=120, epochs=2, size=8, batch=40)


def doubled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An arm that takes no time; at module level, where a worker finds it."""
    if settings["x"] < 0:
        raise nf.UserError(f"x was {settings['x']}")
    return {"x": 2 * settings["x"]}


# ------------------------------------------------------------------------------------------- arms side by side


def test_arms_come_in_their_order_and_are_kept(tmp_path: Path) -> None:
    arms = [{"x": x} for x in (3, 1, 2)]
    bench = Bench(tmp_path, "s")
    with pytest.raises(nf.UserError, match="x was -1"):
        bench.arms([*arms, {"x": -1}], doubled, jobs=2)
    assert len(list((tmp_path / "arms").iterdir())) == 3

    def refuses(settings: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("computed again")

    assert Bench(tmp_path, "s").arms(arms, refuses, jobs=2) == [{"x": 6}, {"x": 2}, {"x": 4}]


def test_what_was_computed_now_is_no_earlier_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "s")
    bench.arms([{"x": 1}], doubled)
    assert bench.earlier == 0
    later = Bench(tmp_path, "s")
    later.arms([{"x": 1}, {"x": 2}], doubled)
    assert later.earlier > 0


def test_after_a_failing_arm_the_finished_are_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "s")
    with pytest.raises(nf.UserError, match="x was -1"):
        bench.arms([{"x": 1}, {"x": -1}, {"x": 2}], doubled)
    assert [path.name for path in (tmp_path / "arms").iterdir()] == [f"{arm_name({'x': 1})}.json"]
    assert bench.arms([{"x": 1}], lambda settings: {"x": 0}) == [{"x": 2}]


SLEEPER = """
import os, sys, time
from pathlib import Path
from nearfar.studies.frame import Bench

def sleep(settings):
    Path(settings["pid"]).write_text(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    Bench(Path(sys.argv[1]), "s").arms([{"pid": sys.argv[1] + "/" + name} for name in "ab"], sleep, jobs=2)
"""


def test_workers_do_not_outlive_the_study(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    study = subprocess.Popen([sys.executable, tmp_path / "sleeper.py", tmp_path])
    pids = [tmp_path / name for name in "ab"]
    try:
        while not all(path.exists() and path.read_text() for path in pids):
            assert study.poll() is None
            time.sleep(0.1)
        workers = [int(path.read_text()) for path in pids]
    finally:
        study.kill()
        study.wait()
    while any(map(_alive, workers)):  # for ever, if they were left behind
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


# ------------------------------------------------------------------------------------------------------ the sets


def test_validation_images_are_held_out_of_the_training_images() -> None:
    whole = open_data("digits")
    train, asked = sets_of(TOY)
    assert len(train) == 120
    assert len(asked) == round(0.2 * len(whole))
    assert not set(train.paths) & set(asked.paths)
    assert set(train.paths) | set(asked.paths) <= set(whole.paths)


def test_the_test_set_belongs_to_the_data() -> None:
    glyphs = Setup("glyphs:train", images=120, size=12, batch=40)
    train, asked = sets_of(glyphs)
    assert (train.name, asked.name) == ("glyphs:train", "glyphs:test")
    assert sets_of(replace(glyphs, test="glyphs:train"))[1].name == "glyphs:train"
    with pytest.raises(nf.UserError, match="test was digits with 1 channels; glyphs:train has 3"):
        sets_of(replace(glyphs, test="digits"))
    counts = np.bincount(np.asarray(train.labels), minlength=len(train.classes))
    assert counts.max() - counts.min() <= 2  # in proportion within every class


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"images": 1}, "images was 1; expected whole numbers from 2"),
        ({"epochs": 0}, "epochs was 0"),
        ({"size": 4}, "size was 4"),
        ({"seeds": 0}, "seeds was 0; expected whole numbers from 1"),
        ({"jobs": 0}, "jobs was 0; expected whole numbers from 1"),
        ({"batch": 500, "images": 100}, "batch was 500; with images=100 expected 2 to 100"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        Setup("glyphs:train", **options)


@pytest.mark.parametrize(
    ("data", "images", "sentence"),
    [
        ("digits", 100, "test was not given; beside data=digits name a labelled set to ask about"),
        ("nowhere", 100, "'nowhere' was not found"),
    ],
)
def test_data_that_cannot_be_used_get_a_sentence(data: str, images: int, sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        sets_of(Setup(data, images=images, batch=10))
    with pytest.raises(nf.UserError, match="images was 1700; there are 1438 in digits to train on"):
        sets_of(replace(TOY, images=1700))


def test_a_wrong_change_is_said_before_the_work() -> None:
    with pytest.raises(nf.UserError, match=r"selection\.lower"):
        TOY.recipe("simclr-ring", 0, selection__lower=1.5)


def test_an_arm_is_named_by_all_that_it_depends_on() -> None:
    arms = [
        TOY.recipe("simclr", 0),
        TOY.recipe("simclr", 1),
        TOY.recipe("moco", 0),
        TOY.recipe("simclr", 0, lr=1e-3),
        TOY.recipe("simclr", 0, watch=("loss",)),
        TOY.baseline("untrained", 0),
        replace(TOY, epochs=3).recipe("simclr", 0),
        replace(TOY, images=130).recipe("simclr", 0),
        replace(TOY, size=10).recipe("simclr", 0),
        replace(TOY, batch=30).recipe("simclr", 0),
        replace(TOY, backbone="resnet8-w8").recipe("simclr", 0),
        replace(TOY, changes=(("weight_decay", 0.5),)).recipe("simclr", 0),
        replace(TOY, on="test", test="digits").recipe("simclr", 0),
    ]
    assert len({arm_name(arm) for arm in arms}) == len(arms)
    assert arm_name(arms[0]) == arm_name(TOY.recipe("simclr", 0))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("batch_size", 9, "batch_size is not a setting that a study takes; write batch="),
        ("sise", 9, r"sise is not one of the options of studies or settings of recipes \(did you mean size"),
        ("views.blurr", 1, r"views\.blurr is not a setting"),
        ("temperature", 1.0, r"temperature was 1\.0, but the study sets it itself, to 0\.5"),
        ("critic.temperature", 1.0, r"critic\.temperature was 1\.0, but the study sets it itself, to 0\.5"),
        ("backbone", "resnet9", "backbone was 'resnet9'"),
    ],
)
def test_a_setting_of_every_recipe_that_cannot_be_is_refused(key: str, value: Any, sentence: str) -> None:
    changed: dict[str, Any] = {"backbone": value} if key == "backbone" else {"changes": ((key, value),)}
    with pytest.raises(nf.UserError, match=sentence):  # some are said by the setup, some by the arm
        replace(TOY, **changed).recipe("simclr", 0, temperature=0.5)


def test_any_setting_of_a_recipe_goes_to_every_arm() -> None:
    setup = replace(TOY, backbone="resnet8-w8", changes=(("views.rotate", 0.5), ("lr", 1e-4)))
    arm = setup.recipe("simclr", 0, temperature=0.5)
    assert arm["changes"] == {"critic.temperature": 0.5, "views.rotate": 0.5, "lr": 1e-4}
    settings = setup.settings("simclr", 0, arm["changes"])
    assert (settings.backbone, settings.lr, settings.views["rotate"]) == ("resnet8-w8", 1e-4, 0.5)


# ---------------------------------------------------------------------------------------------- training, judging


def test_an_arm_is_trained_on_the_budget_it_names(tmp_path: Path) -> None:
    """Arms of one study may differ in batch, length and network; the study's own is only the default."""
    other = replace(TOY, batch=20, epochs=1, backbone="resnet8-w8")
    arm = other.recipe("simclr", 0, watch=("loss",))
    found = figures_of(arm, TOY, tmp_path / "a")
    assert found == {
        **figures_of(arm, other, tmp_path / "b"),
        "rate": found["rate"],
        "seconds": found["seconds"],
    }
    assert found["parameters"] < 80_000
    assert found["course"]["epoch"][-1] == 1.0
    assert found["linear"] <= found["linear_top5"] <= 1


def test_an_interrupted_arm_goes_on_and_ends_where_it_would_have(tmp_path: Path) -> None:
    arm = TOY.recipe("simclr", 0, watch=("loss",))
    whole = figures_of(arm, TOY, tmp_path / "whole")
    settings = TOY.settings("simclr", 0, {}, probe_every=1.0)
    out = tmp_path / "parts" / arm_name(arm)
    with one_thread(), pytest.raises(Stopped):
        run_pretraining(settings.model_copy(update={"max_time": 1e-3}), sets_of(TOY)[0], out, quiet=True)
    assert list(out.glob("ckpt/step-*"))
    parts = figures_of(arm, TOY, tmp_path / "parts")
    for key in ("knn", "linear", "probes", "parameters"):
        assert parts[key] == whole[key]
    assert parts["course"]["loss"][-1] == whole["course"]["loss"][-1]
    assert not out.exists()
    assert [epoch for epoch, _ in whole["probes"]] == [0, 1, 2]


def test_two_jobs_find_what_one_finds(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    arms = {
        "simclr": [TOY.recipe("simclr", 0)],
        "labels": [TOY.baseline("supervised", 0)],
        "pixels": [TOY.baseline("pixels", 0)],
    }
    one, two = (repeated(Bench(tmp_path / str(jobs), "s"), replace(TOY, jobs=jobs), arms) for jobs in (1, 2))
    assert {name: [(f["knn"], f["linear"]) for f in group] for name, group in one.items()} == {
        name: [(f["knn"], f["linear"]) for f in group] for name, group in two.items()
    }
    assert torch.get_num_threads() == threads
    assert one["pixels"][0]["parameters"] == 0
    assert one["simclr"][0]["rate"] == pytest.approx(240 / one["simclr"][0]["seconds"])


def test_labels_teach_more_than_nothing(tmp_path: Path) -> None:
    setup = replace(TOY, images=600, epochs=6, batch=50)
    untrained, supervised = (
        figures_of(setup.baseline(kind, 0), setup, tmp_path)["linear"] for kind in ("untrained", "supervised")
    )
    assert supervised > untrained + 0.03


def test_percent_is_the_mean_and_the_sample_deviation() -> None:
    assert percent([{"knn": 0.25}, {"knn": 0.75}], "knn") == pytest.approx((50.0, 25 * 2**0.5))
    assert moments([3.0]) == (3.0, None)
    assert written((-3.04, 1.26), "+") == "-3.0 ± 1.3"
    assert written((3.04, None)) == "3.0"
