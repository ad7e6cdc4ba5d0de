"""Selections that remember, in real runs: clusters are renewed by the loop, travel with checkpoints, and a
run that was stopped ends as one that was not. Warnings about a tight start."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import geometric, linear
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.parts.selections import Ball, Cave, Everyone, Neighbours, Ring
from nearfar.run.metrics import read_metrics
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.helpers import newest_tensors

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 64,
    "epochs": 2,
    "probe_every": 0,
    "workers": 1,
    "image_size": 8,
    "encoders.hidden": 32,
    "encoders.dim": 16,
    "selection.clusters": 8,
}
# between them: clusters from a bank, by embedding with the network, by embedding with its slow copy
RUNS: dict[str, dict[str, Any]] = {
    "la": {"selection.background": 64},
    "simclr-cave": {},
    "moco-neighbours": {"negatives.size": 256},
}
STEPS_PER_EPOCH = 4


def run(recipe: str, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    images = open_data("digits").subset(range(256))
    pretrain(recipe, images, out, quiet=True, config={**SMALL, **RUNS.get(recipe, {}), **changes})
    return newest_tensors(out)


def plain_run(recipe: str, out: Path, changes: dict[str, Any]) -> None:
    """A run of a recipe whose selection has no clusters."""
    small = {key: value for key, value in SMALL.items() if key != "selection.clusters"}
    images = open_data("digits").subset(range(256))
    pretrain(recipe, images, out, quiet=True, config={**small, **changes})


def clusters(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for name, tensor in tensors.items() if name.endswith(".ids")]


@pytest.mark.parametrize("recipe", RUNS)
def test_stopping_before_and_after_a_refresh_changes_nothing(recipe: str, tmp_path: Path) -> None:
    """What a kill after step s leaves behind is the run's folder with no checkpoint beyond s."""
    uninterrupted = run(recipe, tmp_path / "whole", checkpoint_every=2, keep=100)
    for stop, has_clusters in ((STEPS_PER_EPOCH, False), (STEPS_PER_EPOCH + 2, True)):
        cut = tmp_path / f"cut-{stop}"
        shutil.copytree(tmp_path / "whole", cut)
        for saved in (cut / "ckpt").glob("step-*"):
            if int(saved.name.removeprefix("step-")) > stop:
                shutil.rmtree(saved)
        (initial,) = clusters(newest_tensors(cut))
        assert bool((initial >= 0).all()) == bool((initial >= 0).any()) == has_clusters
        resumed = run(recipe, cut)
        assert uninterrupted.keys() == resumed.keys()
        assert [name for name in uninterrupted if not torch.equal(uninterrupted[name], resumed[name])] == []
        (final,) = clusters(resumed)
        assert final.min() >= 0
        assert 1 < len(final.unique()) <= 8


@pytest.mark.parametrize(
    ("selection", "speaks"),
    [
        (Ball(0.5), True),
        (Ring(0.9, 0.99), True),
        (Ring(linear(0.6, 0.9), 0.99), True),
        (Ring(linear(0.0, 0.9), 0.99), False),
        (Ball(0.4), False),
        (Everyone(), False),
        (Cave(), False),
        (Neighbours(lower=0.9), False),  # everyone counts until there are clusters
    ],
)
def test_a_tight_start_gives_a_warning(selection: AbstractSelection, speaks: bool) -> None:
    message = selection.startup_warning()
    assert (message is not None) == speaks
    if message is not None:
        assert "selection.lower=linear(0,0.9)" in message


def test_the_warning_is_logged_once_and_not_again_when_resuming(tmp_path: Path) -> None:
    changes = {"selection": {"name": "ball", "lower": 0.8}, "epochs": 1}
    for _ in range(2):
        plain_run("simclr", tmp_path, changes)
    events = [row["message"] for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "event"]
    assert sum("selection.lower is 0.8 from the first step" in message for message in events) == 1


def test_every_recipe_with_negatives_comes_with_every_selection() -> None:
    for base in ("simclr", "moco", "moco-v1", "instdisc"):
        for selection in ("ring", "ball", "cave", "neighbours"):
            variant, base_settings = resolve(f"{base}-{selection}", "x"), resolve(base, "x")
            assert variant.selection["name"] == selection
            assert variant.bound == base_settings.bound
            assert variant.negatives == base_settings.negatives
    assert not any(name.startswith(("byol-", "simsiam-")) for name in RECIPES)
    assert resolve("la", "x").selection["background"] == 0.1  # a share, whatever the size of the bank


@pytest.mark.parametrize(("epochs", "share"), [(300, 100.0), (30, 10.0), (1, 0.3333)])
def test_the_rings_outer_edge_rises_in_the_first_third_of_any_run(epochs: int, share: float) -> None:
    """Wu et al. 2021, App. E: from everyone to the most similar tenth in 100 of 300 epochs."""
    settings = resolve("moco-ring", "x", {"epochs": 7}, {"epochs": epochs})
    assert settings.selection == {
        "name": "ring",
        "lower": linear(0.0, 0.9, share),
        "upper": 0.99,
        "sample": None,
    }
    with pytest.raises(UserError, match="epochs was"):
        resolve("moco-ring", "x", {"epochs": 10**400})
    explicit = resolve("moco-ring", "x", {"epochs": epochs, "selection.lower": 0.2})
    assert explicit.selection["lower"] == 0.2


@pytest.mark.parametrize(
    ("changes", "speaks"),
    [({"selection.every": 5}, True), ({"selection.after": 2.0}, True), ({"epochs": 1}, True), ({}, False)],
)
def test_a_selection_that_never_gets_groups_gives_a_warning(
    changes: dict[str, Any], speaks: bool, tmp_path: Path
) -> None:
    tensors = run("simclr-cave", tmp_path, **changes)
    (ids,) = clusters(tensors)
    assert bool((ids < 0).all()) == speaks
    events = [row["message"] for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "event"]
    assert any("never computes its clusters" in message for message in events) == speaks


def test_logged_values_are_those_the_step_used(tmp_path: Path) -> None:
    """ML-CPC's ceiling is log(m / alpha): both are of the same step."""
    changes = {"bound": {"name": "ml-cpc", "alpha": geometric(10.0, 0.1)}, "negatives.size": 256, "epochs": 3}
    plain_run("moco", tmp_path, changes)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    assert rows[0]["bound.alpha"] == 10.0
    for row in rows:
        assert row["ceiling"] == pytest.approx(math.log(257 / row["bound.alpha"]))
        step = row["step"] - 1
        assert row["bound.alpha"] == pytest.approx(10.0 * 0.01 ** (step / (3 * STEPS_PER_EPOCH)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bound": {"name": "alpha-cpc", "alpha": 20.0}},
            "bound.alpha was 20 with 1[0-9] negatives to a positive",
        ),
        (
            {"selection.lower": "linear(0,0.99,1)", "selection.upper": "linear(0.5,1,2)"},
            r"selection.lower, linear\(0.0,0.99,1.0\), is .* where selection.upper, "
            r"linear\(0.5,1.0,2.0\), is",
        ),
        (
            {"negatives": {"name": "queue", "size": 64}},
            r"Queue\(size=64\) is smaller than the batch of 64 in 2 views",
        ),
    ],
)
def test_settings_that_would_fail_later_are_refused_at_the_start(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        plain_run("simclr-ring", tmp_path / "run", changes)
    assert not (tmp_path / "run" / "ckpt").exists()


def test_extremes_that_never_coincide_are_accepted(tmp_path: Path) -> None:
    """alpha = 20 with all 126 negatives, 0.1 with the nearest few: the two extremes never coincide."""
    changes = {"bound": {"name": "alpha-cpc", "alpha": geometric(20.0, 0.1)}, "epochs": 2}
    plain_run("simclr-ring", tmp_path, {**changes, "selection.lower": "linear(0,0.9)"})
    assert (tmp_path / "ckpt" / f"step-{2 * STEPS_PER_EPOCH:08d}").exists()


@pytest.mark.parametrize("views", [{}, {"views.count": 3}, {"views.symmetric": False}])
def test_maps_have_rows_in_a_bank(views: dict[str, Any], tmp_path: Path) -> None:
    changes = {"encoders.local_weight": 0.0, "negatives": {"name": "bank"}, "epochs": 1, **views}
    plain_run("dim", tmp_path, changes)
    rows = newest_tensors(tmp_path)["method/negatives.rows"]
    expected_keys = [3 * view for view in range(views.get("views.count", 2))][
        0 if views.get("views.symmetric", True) else 1 :
    ]
    filled_keys = [key for key in range(len(rows)) if bool((rows[key] != 0).any())]
    assert filled_keys == expected_keys


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"bound": {"name": "alpha-cpc", "alpha": "on_loss(0.5,2000,8)"}}, True),
        ({"selection.lower": "linear(0,0.6)", "selection.upper": "on_loss(0.5,1,4)"}, False),
        ({"selection.lower": "on_loss(0,0.9,2)", "selection.upper": "linear(0.3,1)"}, False),
    ],
)
def test_schedules_that_follow_the_loss_are_checked_at_their_ends(
    changes: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    """Its course is unknown in advance; it must not stop a run half-way."""
    config = {**changes, "epochs": 4}
    if refused:
        with pytest.raises(UserError, match=r"bound\.alpha was 2000"):
            plain_run("simclr-ring", tmp_path / "run", config)
        assert not (tmp_path / "run" / "ckpt").exists()
    else:
        plain_run("simclr-ring", tmp_path / "run", config)
        assert (tmp_path / "run" / "ckpt" / f"step-{4 * STEPS_PER_EPOCH:08d}").exists()


@pytest.mark.parametrize("bound", ["ml-cpc", "alpha-cpc"])
def test_a_cave_with_few_members_does_not_stop_a_run(bound: str, tmp_path: Path) -> None:
    changes = {"bound": {"name": bound, "alpha": 40.0}, "epochs": 3}
    tensors = run("simclr-cave", tmp_path, **changes)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())


def test_unexpected_tensors_get_a_sentence(tmp_path: Path) -> None:
    plain_run("moco", tmp_path, {"negatives.size": 256, "epochs": 1})
    written = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(written.replace("size: 256", "size: 128"))
    with pytest.raises(UserError, match="does not hold the tensors that its settings describe"):
        Run.open(tmp_path).method()
