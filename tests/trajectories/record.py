"""Records what every recipe computes on fixed data and seed, to show that a change of the code changes
nothing.

    python tests/trajectories/record.py before.json          (some minutes on one core)
    python tests/trajectories/record.py after.json
    python tests/trajectories/record.py --compare before.json after.json

For each recipe: its first twenty losses, and a hash over the tensors of its last checkpoint (their bytes, not
their names, so that a renamed module changes nothing). Bits differ between CPUs: compare files recorded on
one machine."""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from nearfar.config.fields import KEYS
from nearfar.config.recipes import RECIPES
from nearfar.train.pretrain import pretrain

STEPS, BATCH = 20, 16


def pictures(path: Path) -> str:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (64, 4, 4, 3))
    images = coarse.repeat(4, axis=1).repeat(4, axis=2) + rng.integers(-20, 20, (64, 16, 16, 3))
    np.savez(path / "pictures.npz", images=images.clip(0, 255).astype(np.uint8), labels=np.arange(64) % 4)
    return str(path / "pictures.npz")


def recordings(path: Path) -> str:
    rng = np.random.default_rng(1)
    folder = path / "recordings"
    folder.mkdir()
    for k in range(64):
        tone = np.sin(np.arange(4000) * (0.05 + 0.01 * (k % 8))) + 0.1 * rng.normal(size=4000)
        with wave.open(str(folder / f"{k:02d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes((tone * 8000).astype("<i2").tobytes())
    return str(folder)


def text(path: Path) -> str:
    words = np.random.default_rng(2).choice(["near", "far", "ring", "ball", "cave", "view"], 3000)
    (path / "text.txt").write_text(" ".join(words), encoding="utf-8")
    return str(path / "text.txt")


def recorded(recipe: str, data: str, out: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "epochs": 5,
        "batch_size": BATCH,
        "seed": 3,
        "precision": "fp32",
        "workers": 0,
    }
    if data.endswith(".npz"):
        settings["backbone"] = "resnet8-w16"
    for key, value in (("log_every", 1), ("held_out", 0)):
        if key in KEYS:
            settings[key] = value
    run = pretrain(recipe, data, out, probe_every=0, quiet=True, **settings)
    losses = [row["loss"] for row in run.metrics if row.get("kind") == "train"][:STEPS]
    state = safetensors.torch.load_file(max((out / "ckpt").glob("step-*")) / "state.safetensors")
    hashes = sorted(hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in state.values())
    return {"losses": losses, "state": hashlib.sha256("".join(hashes).encode()).hexdigest()}


def record(names: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    records = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = {"cpc": recordings(folder), "mlm": text(folder)}
        images = pictures(folder)
        for name in names:
            # graphs and pairs need their own data, and a student needs a teacher
            if (
                RECIPES[name].choices["views"]["name"] in ("perturb", "shuffle-nodes", "thin", "both")
                or RECIPES[name].choices["encoders"]["name"] == "distilled"
            ):
                continue
            records[name] = recorded(name, data.get(name, images), folder / "run")
            shutil.rmtree(folder / "run")
            print(name, records[name]["state"][:8], file=sys.stderr, flush=True)
    return records


def compare(reference: dict[str, Any], current: dict[str, Any]) -> int:
    """Prints what differs; the number of recipes that do."""
    differing = [name for name in reference if reference[name] != current.get(name)]
    for name in differing:
        pairs = zip(reference[name]["losses"], current.get(name, {"losses": []})["losses"], strict=False)
        first = next((step for step, (old, new) in enumerate(pairs, start=1) if old != new), None)
        place = (
            f"loss of step {first}" if first else "state after equal losses" if name in current else "gone"
        )
        print(f"{name}: {place}")
    print(
        f"{len(reference) - len(differing)} of {len(reference)} recipes equal; new: "
        f"{sorted(set(current) - set(reference))}"
    )
    return len(differing)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--only", nargs="*", default=None, help="recipes; default all")
    arguments = parser.parse_args()
    if arguments.compare:
        sys.exit(bool(compare(*(json.loads(file.read_text()) for file in arguments.files))))
    arguments.files[0].write_text(json.dumps(record(arguments.only or list(RECIPES)), indent=1))
