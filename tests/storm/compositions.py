"""Random compositions of parts: a few steps, and the same bits when resumed half-way."""

import random
import shutil
from pathlib import Path

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.recipes import RECIPES
from nearfar.recipes.choices import ROOMS
from nearfar.resolve import resolve
from nearfar.run import checkpoints
from nearfar.settings import read_words
from nearfar.train.monitors import Diverged
from nearfar.train.pretrain import run_pretraining

STEPS = 4


def composed(rng: random.Random) -> tuple[str, list[str]]:
    """A recipe for pictures with some of its parts exchanged."""
    recipe = rng.choice([name for name in RECIPES if resolve(name, "x").modality.name == "image"])
    words = [
        "backbone=resnet8-w16",
        "batch_size=16",
        "epochs=1",
        "workers=0",
        "held_out=0",
        "precision=fp32",
        "image_size=16",
    ]
    words += [f"checkpoint_every={STEPS // 2}", "keep=9", f"seed={rng.randrange(10**6)}"]
    for room, parts in ROOMS.items():
        if rng.random() < 0.4:
            words.append(f"{room}={rng.choice([*parts])}")
    if rng.random() < 0.3:
        words.append(f"chunk={rng.choice([1, 5, 64])}")
    if rng.random() < 0.3:
        words.append(f"views.count={rng.choice([1, 2, 3])}")
    words.append(f"optimizer={rng.choice(['sgd', 'adamw', 'lars'])}")
    return recipe, words


def case(rng: random.Random, place: Path) -> str:
    torch.set_num_threads(1)
    recipe, words = composed(rng)
    settings = resolve(recipe, "digits", read_words(words))
    data = open_data("digits").subset(np.arange(16 * STEPS))
    try:
        whole = run_pretraining(settings, data, place / "whole", quiet=True)
    except Diverged:
        return "not finite"
    shutil.copytree(place / "whole", place / "cut")
    shutil.rmtree(place / "cut" / "ckpt" / f"step-{STEPS:08d}")
    cut = run_pretraining(settings, data, place / "cut", quiet=True)
    one, other = (checkpoints.load(run.checkpoint)[0] for run in (whole, cut))
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == [], (recipe, words)
    return "trained, resumed bit-equal"
