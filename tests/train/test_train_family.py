"""Recipes with priors, weights, labels, neighbours and learnt numbers in real runs: two epochs end finite,
and a run that was stopped ends as one that was not."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.config.recipes import RECIPES
from nearfar.data import open_data
from nearfar.errors import UserError
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
    "checkpoint_every": 3,
    "keep": 100,
    "encoders.hidden": 32,
    "encoders.dim": 16,
}
RUNS: dict[str, dict[str, Any]] = {
    "moco-v3": {"temperature": "learnt(0.2)"},
    "nnclr": {"negatives.size": 128},
    "dcl": {"prior": "adversarial", "prior.weight": "linear(0,0.1)"},
    "debiased": {"chunk": 16},
    "hcl": {},
    "hcl-ring": {},
    "supcon": {},
    "supcon-cave": {"selection.clusters": 4, "bound.form": "in", "chunk": 16},
    "vicreg": {},
    "sigreg": {"prior.directions": 32},
    "simclr": {"views.crops": "2x8,2x6", "encode_chunk": 32},
    "end-to-end": {"views.crops": "2x8,3x6"},
    "barlow": {"views.crops": "2x8,2x6"},
    "lejepa": {"views.crops": "2x8,2x6", "prior.directions": 32},
    "swav": {"views.crops": "2x8,2x6", "encoders.prototypes": 16, "negatives.size": 128},
    "dino": {"views.crops": "2x8,2x6", "encoders.prototypes": 16, "encode_chunk": 32},
}


def run(recipe: str, out: Path, **changes: Any) -> Run:
    images = open_data("digits").subset(range(256))
    return pretrain(recipe, images, out, quiet=True, config={**SMALL, **RUNS[recipe], **changes})


@pytest.mark.parametrize("recipe", RUNS)
def test_two_epochs_on_digits_end_finite_and_resume_bit_equal(recipe: str, tmp_path: Path) -> None:
    uninterrupted = run(recipe, tmp_path / "whole")
    rows = [row for row in uninterrupted.metrics if row["kind"] == "train"]
    assert rows[-1]["step"] == 8
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert ("prior" in rows[-1]) == (recipe in ("dcl", "vicreg", "sigreg", "barlow", "lejepa"))
    assert ("critic.temperature" in rows[-1]) == (recipe == "moco-v3")
    expected = newest_tensors(tmp_path / "whole")
    assert all(tensor.isfinite().all() for tensor in expected.values() if tensor.is_floating_point())

    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    for saved in (cut / "ckpt").glob("step-*"):  # what a kill after step 3 leaves behind
        if int(saved.name.removeprefix("step-")) > 3:
            shutil.rmtree(saved)
    run(recipe, cut)
    resumed = newest_tensors(cut)
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


SELECTIONS = ("-ring", "-ball", "-cave", "-neighbours", "-annulus")
OTHER_DATA = {"cpc", "mlm", "infograph", "dgi", "grace", "distill"}  # sound, text, graphs, a teacher


@pytest.mark.parametrize("recipe", [n for n in RECIPES if n not in OTHER_DATA and not n.endswith(SELECTIONS)])
def test_every_image_recipe_takes_crops_of_two_sizes(recipe: str, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3), dtype=np.uint8)
    images = open_data(pictures, labels=np.arange(32) % 4)
    crops = {"epochs": 1, "batch_size": 16, "held_out": 0.0, "log_every": 1, "views.crops": "2x8,2x6"}
    trained = pretrain(
        recipe, images, tmp_path, quiet=True, config={**SMALL, **crops, "backbone": "resnet8-w8"}
    )
    losses = [row["loss"] for row in trained.metrics if row["kind"] == "train"]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_a_learnt_temperature_is_logged_and_moves(tmp_path: Path) -> None:
    temperatures = [
        row["critic.temperature"]
        for row in run("moco-v3", tmp_path, lr=0.05).metrics
        if row["kind"] == "train"
    ]
    assert abs(temperatures[0] - 0.2) < 0.05
    assert temperatures[-1] != temperatures[0]


@pytest.mark.parametrize("recipe", ["supcon", "supcon-cave"])
def test_data_without_labels_are_one_sentence(recipe: str, tmp_path: Path) -> None:
    images = replace(open_data("digits").subset(range(256)), labels=None)
    with pytest.raises(
        UserError, match=r"selection\.by was label, but .* has no labels.*; use data with labels"
    ):
        pretrain(recipe, images, tmp_path, quiet=True, config={**SMALL, **RUNS[recipe]})
    assert not (tmp_path / "ckpt").exists()


def test_labels_are_used(tmp_path: Path) -> None:
    """Other labels, other weights: with them the classes of digits come apart."""
    images = open_data("digits").subset(range(256))
    assert images.labels is not None
    states = []
    for name, labels in (("true", images.labels), ("other", images.labels[::-1].copy())):
        pretrain(
            "supcon",
            replace(images, labels=labels),
            tmp_path / name,
            quiet=True,
            config={**SMALL, "held_out": 0.0},
        )
        states.append(newest_tensors(tmp_path / name))
    assert not torch.equal(states[0]["method/selection.ids"], states[1]["method/selection.ids"])
    weight = "method/encoders.network.head.0.weight"
    assert not torch.equal(states[0][weight], states[1][weight])


def test_a_custom_method_with_labels_weights_and_a_prior(tmp_path: Path) -> None:
    """Labels reach a selection inside a chain; opened with the same object, the run is the trained one."""
    images = open_data("digits").subset(range(256))
    torch.manual_seed(0)
    method = nf.Method(
        nf.Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8)), torch.nn.Linear(8, 4)),
        nf.Cosine(nf.learnt(0.2)),
        nf.InBatch(),
        nf.Chain(nf.Labelled(), nf.Ring(0.1, 0.9), nf.Hard(0.5)),
        nf.SupCon("in"),
        prior=nf.SIGReg(directions=8),
    )
    small = {key: SMALL[key] for key in ("batch_size", "epochs", "probe_every", "workers", "image_size")}
    run = nf.pretrain(method, images, tmp_path, quiet=True, config=small)
    assert run.settings.prior["name"] == "sigreg"
    reopened = nf.Run.open(tmp_path, method=method).method()
    labels = torch.from_numpy(images.labels)
    first_selection = reopened.selections[0]
    assert isinstance(first_selection, nf.Labelled)
    assert torch.equal(first_selection.ids, labels)
    assert reopened.learnt()["critic.temperature"] != method.learnt()["critic.temperature"]
