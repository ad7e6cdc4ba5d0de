"""Selections that remember, in real runs: clusters are renewed by the loop, travel with checkpoints, and a run that
was stopped ends as one that was not. Warnings about a tight start."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.recipes import RECIPES
from nearfar.schedules import linear
from nearfar.selections import Ball, Cave, Everyone, Neighbours, Ring
from nearfar.settings import resolve
from nearfar.train import checkpoints
from nearfar.train.logs import read_metrics
from nearfar.train.monitors import tight_start
from nearfar.train.pretrain import pretrain
from nearfar.types import Selection

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
    images = open_data("digits").subset(range(256))  # type: ignore[arg-type]
    pretrain(recipe, images, out, quiet=True, config={**SMALL, **RUNS.get(recipe, {}), **changes})
    return state(out)


def state(out: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.newest(out / "ckpt")
    assert newest is not None
    return checkpoints.load(newest)[0]


def clusters(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for name, tensor in tensors.items() if name.endswith(".ids")]


@pytest.mark.parametrize("recipe", RUNS)
def test_stopping_before_and_after_a_refresh_changes_nothing(recipe: str, tmp_path: Path) -> None:
    """What a kill after step s leaves behind is the run's folder with no checkpoint beyond s."""
    whole = run(recipe, tmp_path / "whole", checkpoint_every=2, keep=100)
    for stop, known in ((STEPS_PER_EPOCH, False), (STEPS_PER_EPOCH + 2, True)):
        cut = tmp_path / f"cut-{stop}"
        shutil.copytree(tmp_path / "whole", cut)
        for saved in (cut / "ckpt").glob("step-*"):
            if int(saved.name.removeprefix("step-")) > stop:
                shutil.rmtree(saved)
        (before,) = clusters(state(cut))
        assert bool((before >= 0).all()) == bool((before >= 0).any()) == known
        resumed = run(recipe, cut)
        assert whole.keys() == resumed.keys()
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
        (after,) = clusters(resumed)
        assert after.min() >= 0
        assert 1 < len(after.unique()) <= 8


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
def test_a_tight_start_is_spoken_of(selection: Selection, speaks: bool) -> None:
    said = tight_start(selection)
    assert (said is not None) == speaks
    if said is not None:
        assert "selection.lower=linear(0,0.9)" in said


def test_the_warning_is_logged_once_and_not_again_when_resuming(tmp_path: Path) -> None:
    changes = {"selection": {"name": "ball", "lower": 0.8}, "epochs": 1}
    small = {key: value for key, value in SMALL.items() if key != "selection.clusters"}
    images = open_data("digits").subset(range(256))  # type: ignore[arg-type]
    for _ in range(2):
        pretrain("simclr", images, tmp_path, quiet=True, config={**small, **changes})
    events = [row["message"] for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "event"]
    assert sum("selection.lower is 0.8 from the first step" in message for message in events) == 1


def test_every_recipe_with_negatives_comes_with_every_selection() -> None:
    for base in ("simclr", "moco", "moco-v1", "instdisc"):
        for selection in ("ring", "ball", "cave", "neighbours"):
            chosen, plain = resolve(f"{base}-{selection}", "x"), resolve(base, "x")
            assert chosen.selection["name"] == selection
            assert chosen.bound == plain.bound
            assert chosen.negatives == plain.negatives
    assert not any(name.startswith(("byol-", "simsiam-")) for name in RECIPES)
    assert resolve("la", "x").selection["background"] == 4096


@pytest.mark.parametrize(("epochs", "share"), [(300, 100.0), (30, 10.0), (1, 0.3333)])
def test_the_rings_outer_edge_rises_in_the_first_third_of_any_run(epochs: int, share: float) -> None:
    """001 App. E: from everyone to the most similar tenth in 100 of 300 epochs."""
    chosen = resolve("moco-ring", "x", {"epochs": 7}, {"epochs": epochs})
    assert chosen.selection == {"name": "ring", "lower": linear(0.0, 0.9, share), "upper": 0.99}
    with pytest.raises(UserError, match="epochs was"):
        resolve("moco-ring", "x", {"epochs": 10**400})
    own = resolve("moco-ring", "x", {"epochs": epochs, "selection.lower": 0.2})
    assert own.selection["lower"] == 0.2
