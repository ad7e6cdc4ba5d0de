"""Studies on images: training and test sets, the identity of a cell, resuming, and several jobs."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import Stopped
from nearfar.studies.comparison import Comparison, compute_figures
from nearfar.studies.family import map_probe
from nearfar.studies.family_long import map_and_transfer_probes
from nearfar.studies.frame import Workspace, mean_row
from nearfar.studies.images import ImageSetup, StudyArm, compute_arm, image_sets
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import run_pretraining

TOY = ImageSetup("digits", on="validation", images=120, epochs=2, size=8, batch=40)


# ------------------------------------------------------------------------------------------ the sets


def test_validation_images_are_held_out_of_the_training_images() -> None:
    complete = open_data("digits")
    train, test = image_sets(TOY)
    assert len(train) == 120
    assert len(test) == round(0.2 * len(complete))
    assert not set(train.paths) & set(test.paths)
    assert set(train.paths) | set(test.paths) <= set(complete.paths)


def test_the_test_set_belongs_to_the_data() -> None:
    glyphs = ImageSetup("glyphs:train", images=120, size=12, batch=40)
    train, test = image_sets(glyphs)
    assert (train.name, test.name) == ("glyphs:train", "glyphs:test")
    assert image_sets(replace(glyphs, test="glyphs:train"))[1].name == "glyphs:train"
    with pytest.raises(nf.UserError, match="test was digits with 1 channels; glyphs:train has 3"):
        image_sets(replace(glyphs, test="digits"))
    counts = np.bincount(np.asarray(train.labels), minlength=len(train.classes))
    assert counts.max() - counts.min() <= 2  # in proportion within every class


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"images": 1}, "images was 1; expected a whole number from 2"),
        ({"epochs": 0}, "epochs was 0"),
        ({"size": 4}, "size was 4"),
        ({"seeds": 0}, "seeds was 0; expected a whole number from 1"),
        ({"jobs": 0}, "jobs was 0; expected a whole number from 1"),
        ({"batch": 500, "images": 100}, "batch was 500; with images=100 expected 2 to 100"),
    ],
)
def test_bad_budget_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        ImageSetup("glyphs:train", **options)


@pytest.mark.parametrize(
    ("data", "images", "sentence"),
    [
        ("digits", 100, "test was not given; with data=digits, name a labelled test set"),
        ("nowhere", 100, "'nowhere' was not found"),
    ],
)
def test_unusable_data_is_one_sentence(data: str, images: int, sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        image_sets(ImageSetup(data, images=images, batch=10))
    with pytest.raises(nf.UserError, match="images was 1700; there are 1438 in digits to train on"):
        image_sets(replace(TOY, images=1700))


def test_bad_change_is_refused_before_the_work() -> None:
    with pytest.raises(nf.UserError, match=r"selection\.lower"):
        TOY.cell("x", StudyArm("simclr-ring", {"selection.lower": 1.5}), 0)


def test_a_cell_is_identified_by_everything_it_depends_on() -> None:
    simclr = StudyArm("simclr")
    cells = [
        TOY.cell("x", simclr, 0),
        TOY.cell("x", simclr, 1),
        TOY.cell("x", StudyArm("moco"), 0),
        TOY.cell("x", StudyArm("simclr", {"lr": 1e-3}), 0),
        TOY.cell("x", StudyArm("simclr", watch=("loss",)), 0),
        TOY.cell("x", StudyArm("simclr", budget={"epochs": 4}), 0),
        TOY.cell("x", StudyArm("untrained"), 0),
        TOY.cell("x", simclr, 0, map_probe),
        TOY.cell("x", simclr, 0, partial(map_and_transfer_probes, targets=("digits",))),
        replace(TOY, epochs=3).cell("x", simclr, 0),
        replace(TOY, images=130).cell("x", simclr, 0),
        replace(TOY, size=10).cell("x", simclr, 0),
        replace(TOY, batch=30).cell("x", simclr, 0),
        replace(TOY, backbone="resnet8-w8").cell("x", simclr, 0),
        replace(TOY, changes=(("weight_decay", 0.5),)).cell("x", simclr, 0),
        replace(TOY, on="test", test="digits").cell("x", simclr, 0),
    ]
    assert len({cell.digest for cell in cells}) == len(cells)
    assert cells[0] == TOY.cell("x", simclr, 0)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("batch_size", 9, "batch_size is not an option of a study; write batch="),
        ("sise", 9, r"sise is not one of the options of studies or settings of recipes \(did you mean size"),
        ("views.blurr", 1, r"views\.blurr is not a setting"),
        ("temperature", 1.0, r"temperature was 1\.0, but the study sets it itself, to 0\.5"),
        ("critic.temperature", 1.0, r"critic\.temperature was 1\.0, but the study sets it itself, to 0\.5"),
        ("backbone", "resnet9", "backbone was 'resnet9'"),
    ],
)
def test_bad_setting_of_every_recipe_is_refused(key: str, value: Any, sentence: str) -> None:
    changed: dict[str, Any] = {"backbone": value} if key == "backbone" else {"changes": ((key, value),)}
    with pytest.raises(nf.UserError, match=sentence):  # some are refused by the setup, some by the cell
        replace(TOY, **changed).cell("x", StudyArm("simclr", {"temperature": 0.5}), 0)


def test_settings_of_recipes_apply_to_every_arm() -> None:
    setup = replace(TOY, backbone="resnet8-w8", changes=(("views.rotate", 0.5), ("lr", 1e-4)))
    identity = setup.cell("x", StudyArm("simclr", {"temperature": 0.5}), 0).identity
    assert identity["changes"] == {"critic.temperature": 0.5, "views.rotate": 0.5, "lr": 1e-4}
    settings = setup.settings("simclr", 0, identity["changes"])
    assert (settings.backbone, settings.lr, settings.views["rotate"]) == ("resnet8-w8", 1e-4, 0.5)


# ------------------------------------------------------------------------------------------ training, judging


def test_a_cell_is_trained_on_its_own_budget(tmp_path: Path) -> None:
    """Arms of one study may differ in batch, length and network; those of the setup are defaults."""
    budget = {"batch": 20, "epochs": 1, "backbone": "resnet8-w8"}
    cell = TOY.cell("x", StudyArm("simclr", budget=budget, watch=("loss",)), 0)
    values = compute_arm(cell, tmp_path / "a", TOY)
    second = compute_arm(cell, tmp_path / "b", replace(TOY, **budget))  # type: ignore[arg-type]
    assert values == {**second, "rate": values["rate"], "seconds": values["seconds"]}
    assert values["parameters"] < 80_000
    assert values["course"]["epoch"][-1] == 1.0
    assert values["linear"] <= values["linear_top5"] <= 1


def test_resuming_an_interrupted_cell_equals_never_stopping(tmp_path: Path) -> None:
    cell = TOY.cell("x", StudyArm("simclr", watch=("loss",)), 0)
    complete = compute_arm(cell, tmp_path / "whole", TOY)
    settings = TOY.settings("simclr", 0, {}, probe_every=1.0)
    out = tmp_path / "parts"
    with one_thread(), pytest.raises(Stopped):
        run_pretraining(replace(settings, max_time=1e-3), image_sets(TOY)[0], out, quiet=True)
    assert list(out.glob("ckpt/step-*"))
    parts = compute_arm(cell, out, TOY)
    for key in ("knn", "linear", "probes", "parameters"):
        assert parts[key] == complete[key]
    assert parts["course"]["loss"][-1] == complete["course"]["loss"][-1]
    assert not out.exists()
    assert [epoch for epoch, _ in complete["probes"]] == [0, 1, 2]


def test_two_jobs_compute_what_one_computes(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    arms = {name: StudyArm(name) for name in ("simclr", "supervised", "pixels")}
    one, two = (
        compute_figures(
            Workspace(tmp_path / str(jobs), "s"),
            replace(TOY, jobs=jobs, seeds=1),
            Comparison("x", arms, baselines=()),
        )
        for jobs in (1, 2)
    )
    for name, seeds in one.items():
        assert [(v["knn"], v["linear"]) for v in seeds] == [(v["knn"], v["linear"]) for v in two[name]]
    assert torch.get_num_threads() == threads
    assert one["pixels"][0]["parameters"] == 0
    assert one["simclr"][0]["rate"] == pytest.approx(240 / one["simclr"][0]["seconds"])


def test_training_on_labels_beats_no_training(tmp_path: Path) -> None:
    setup = replace(TOY, images=600, epochs=6, batch=50)
    untrained, supervised = (
        compute_arm(setup.cell("x", StudyArm(kind), 0), tmp_path, setup)["linear"]
        for kind in ("untrained", "supervised")
    )
    assert supervised > untrained + 0.03


def test_rows_are_means_and_sample_deviations() -> None:
    row = mean_row("a", [0.25, 0.75], scale=100)
    assert (row.ours, row.spread) == pytest.approx((50.0, 25 * 2**0.5))
    assert mean_row("a", [3.0]).spread is None
    assert mean_row("a", []).ours is None
