"""Random compositions of parts take two finite, resumable steps, or are refused before the first.

Recipes, parts and settings are drawn per modality. A refusal is a `UserError` before anything is
computed, in a sentence that names one of the settings drawn; anything else is a defect.
"""

import random
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.config.fields import CHOICES
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.config.sections import PARTS_BY_CHOICE
from nearfar.data.open import Located, locate
from nearfar.data.source import Limits
from nearfar.errors import UserError
from nearfar.run.trained import check_kind
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step

BATCH, INSTANCES = 6, 24
COMPOSITIONS = {"images": 30, "recordings": 12, "vectors": 25, "texts": 5}  # compositions that must run


def pictures(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    file = folder / "pictures.npz"
    images = rng.integers(0, 256, (INSTANCES, 12, 12, 3), dtype=np.uint8)
    np.savez(file, images=images, labels=np.arange(INSTANCES) % 3, classes=np.array(["a", "b", "c"]))
    return file


def recordings(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    for k in range(INSTANCES):
        (folder / f"{k % 3}").mkdir(exist_ok=True)
        with wave.open(str(folder / f"{k % 3}" / f"{k}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes((3000 * rng.normal(size=2600)).astype("<i2").tobytes())
    return folder


def vectors(folder: Path) -> Path:
    rows = np.random.default_rng(2).normal(size=(INSTANCES, 6)).astype(np.float32)
    np.savez(folder / "table.npz", x=rows, labels=np.arange(INSTANCES) % 3)
    return folder / "table.npz"


def texts(folder: Path) -> Path:
    words = np.random.default_rng(3).choice(["near", "far", "ring", "ball"], 120)
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
    return folder / "text.txt"


WRITERS = {"images": pictures, "recordings": recordings, "vectors": vectors, "texts": texts}
OTHER_MODALITIES = (
    "cpc",
    "mlm",
    "infograph",
    "graphcl",
    "dgi",
    "grace",
    "clip",
    "siglip",
    "cebra",
    "distill",
)
IMAGE_RECIPES = [name for name in RECIPES if name not in OTHER_MODALITIES]
FITTING = {
    "images": IMAGE_RECIPES,
    "texts": ["mlm"],
    "recordings": ["cpc", "simclr", "moco", "byol"],
    "vectors": [name for name in IMAGE_RECIPES if name.split("-")[0] not in ("dim", "cmc")],
}


def draw_composition(rng: random.Random, kind: str) -> tuple[str, dict[str, Any]]:
    """A recipe, and changes to some of its choices."""
    recipe = rng.choice(FITTING[kind])
    layer: dict[str, Any] = {
        "epochs": 2,
        "batch_size": BATCH,
        "held_out": 0,
        "workers": 0,
        "precision": "fp32",
    }
    layer |= {"seed": rng.randrange(100)}
    if kind == "images":
        layer["backbone"] = "resnet8-w16"
    elif kind == "recordings":
        layer["views.samples"] = 640
    elif kind == "texts":
        layer["views.length"] = 16
    for room in rng.sample([room for room in CHOICES if room in PARTS_BY_CHOICE], rng.randint(1, 4)):
        if kind == "images" or room != "encoders":
            layer[room] = rng.choice(list(PARTS_BY_CHOICE[room]))
    if rng.random() < 0.3:
        layer["views.count"] = rng.choice([1, 2, 3])
    if rng.random() < 0.3:
        layer["chunk"] = rng.choice([1, 4, 100])
    if rng.random() < 0.2:
        layer["critic.temperature"] = "linear(0.5,0.2)"
    return recipe, layer


def open_session(recipe: str, layer: dict[str, Any], located: Located) -> Session:
    settings = resolve(recipe, located.name, layer, modality=located.modality)
    check_kind(settings, located)
    options = settings.modality.reader.options_for(settings.views, settings.image_size, None)
    data = located.open(Limits(), **options)
    description = describe_data(data, settings, None, False)
    return Session(settings, data, description, torch.device("cpu"), torch.float32)


def losses_of(session: Session, first: int, last: int) -> list[float]:
    return [take_step(session, batch).loss for batch in session.stream.batches(first, last)]


@pytest.mark.parametrize("kind", WRITERS)
def test_compositions_run_and_resume_or_are_refused(kind: str, tmp_path: Path) -> None:
    located, rng = locate(WRITERS[kind](tmp_path)), random.Random(f"{kind} 1")
    refused: Counter[str] = Counter()
    completed, tried = 0, 0
    torch.set_num_threads(1)
    while completed < COMPOSITIONS[kind]:
        tried += 1
        assert tried < 12 * COMPOSITIONS[kind], f"hardly anything runs: {refused.most_common(5)}"
        recipe, layer = draw_composition(rng, kind)
        try:
            session = open_session(recipe, layer, located)
        except UserError as refusal:
            message = str(refusal)
            keys = [key for key in layer if key.split(".")[0] in message or str(layer[key]) in message]
            assert keys, f"{recipe} {layer}: {message}"
            refused[message[:60]] += 1
            continue
        completed += 1
        session.prefill()
        losses = losses_of(session, 0, 2)
        assert all(np.isfinite(losses)), (recipe, layer, losses)
        tensors, facts = session.state()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        third = losses_of(session, 2, 3)
        restored = open_session(recipe, layer, located)
        restored.restore(tensors, facts)
        restored.restore_hooks(tensors, facts)
        assert losses_of(restored, 2, 3) == third, (recipe, layer)
