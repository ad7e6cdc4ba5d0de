"""Whether several processes compute what one does: the same steps by both, side by side, in float64.

In float64 what is left of a difference is rounding, some 1e-15 of the numbers; a gradient that is dropped, scaled by the number of
ranks or taken of another rank's rows shows as a difference of order one. `nearfar doctor --ranks N` prints it for each recipe.
"""

import json
import multiprocessing
import tempfile
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from nearfar.config.objects import Objects
from nearfar.config.resolving import resolve
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import Limits, locate
from nearfar.distributed.strategy import join
from nearfar.parts.encoders import backbone
from nearfar.train.distill import student_of
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step

STEPS, PER_RANK, INSTANCES = 5, 8, 48
TEACHER = "wrn-10-1"  # of a student, with weights as they begin
WAIT = timedelta(minutes=30)  # the others wait while the first does it alone

# name: recipe and its settings; small, and each with another way of exchanging something
CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"recipe": name}
        for name in ("simclr", "moco", "moco-v3", "byol", "simsiam", "instdisc", "cmc", "la", "dim", "npair")
    },
    **{name: {"recipe": name} for name in ("triplet", "supcon", "hcl", "nnclr", "sigreg", "cpc")},
    "vicreg": {"recipe": "vicreg", "lr": 1e-3},
    "mlm": {"recipe": "mlm", "encoders": {"dropout": 0.0, "dim": 16}},
    "simclr-ring": {"recipe": "simclr-ring"},
    "moco-cave": {"recipe": "moco-cave", "selection": {"clusters": 4}},
    "simclr ml-cpc": {"recipe": "simclr", "bound": {"name": "ml-cpc", "alpha": 0.5}},
    # at 0.05 what it learns from a draw is unstable: rounding grows tenfold a step
    "moco accept": {"recipe": "moco", "selection": "accept", "lr": 1e-3},
    "simclr accept js": {"recipe": "simclr", "selection": "accept", "bound": "js"},
    "simclr accept nce": {"recipe": "simclr", "selection": "accept", "bound": "nce"},
    "simclr-ring sample": {"recipe": "simclr-ring", "selection": {"sample": 5}},
    "simclr dv": {"recipe": "simclr", "bound": {"name": "dv", "momentum": 0.9}},
    "dim adversarial": {"recipe": "dim", "prior": "adversarial"},
    "moco fsdp": {"recipe": "moco", "sharding": "fsdp"},
    "dim fsdp": {"recipe": "dim", "sharding": "fsdp"},
    "supervised fsdp": {"recipe": "supervised", "sharding": "fsdp"},
    "distill": {"recipe": "distill", "objective": "crd+kd", "selection": {"sample": 8}},
}


@dataclass(frozen=True)
class Trajectory:
    """What some steps found."""

    losses: list[float]
    gradient: Tensor  # of the first step
    weights: Tensor  # after the last

    def differences(self, other: "Trajectory") -> dict[str, float]:
        """Of losses and weights beyond one as a share of them: rounding is."""
        pairs = zip(self.losses, other.losses, strict=True)
        scale = max(1.0, float(other.weights.abs().max()))
        return {
            "loss_difference": max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs),
            "gradient_difference": _relative(self.gradient, other.gradient),
            "weights_difference": float((self.weights - other.weights).abs().max()) / scale,
        }


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp_min(torch.finfo(one.dtype).tiny))


def compare(
    world: int,
    cases: Mapping[str, Mapping[str, Any]] = CASES,
    steps: int = STEPS,
    precision: torch.dtype = torch.float64,
    batch_size: int | None = None,
    again: bool = False,
    tell: bool = False,
) -> dict[str, dict[str, float]]:
    """For each case the largest difference in loss, the relative one of the gradient and the largest of a weight, between one process
    and `world` of them, which are started on this machine; with `again` also the largest difference of anything between two runs of
    the `world`. `tell`: print each as it is found."""
    with tempfile.TemporaryDirectory() as folder:
        batch_size = batch_size or world * PER_RANK
        make_data(Path(folder), max(INSTANCES, 2 * batch_size))
        start(world, _one, world, folder, dict(cases), steps, precision, batch_size, again, tell)
        return json.loads((Path(folder) / "found.json").read_text())


def start(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """`function(rank, *arguments)` in so many new processes; returns when all have ended. Where there is a fork server, it imports for
    all of them once."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(
            [__name__, "torch._dynamo"]
        )  # which the first optimiser imports
    mp.start_processes(function, arguments, nprocs=count, start_method=method)


def _one(
    rank: int,
    world: int,
    folder: str,
    cases: Mapping[str, Mapping[str, Any]],
    steps: int,
    precision: torch.dtype,
    batch_size: int,
    again: bool,
    tell: bool,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world, timeout=WAIT
    )
    found = {}
    for name, case in cases.items():
        strategy = join(case.get("sharding", "none"))
        together = trajectory(case, Path(folder), strategy, steps, precision, batch_size)
        rerun = trajectory(case, Path(folder), strategy, steps, precision, batch_size) if again else None
        if strategy.is_first:
            alone = trajectory(case, Path(folder), SINGLE, steps, precision, batch_size)
            found[name] = together.differences(alone)
            if rerun is not None:
                found[name]["rerun_difference"] = max(together.differences(rerun).values())
            if tell:
                said = " | ".join(f"{value:.0e}" for value in found[name].values())
                print(f"| {name} | {world} | {said} |", flush=True)
    if strategy.is_first:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    strategy.barrier()
    dist.destroy_process_group()


def trajectory(
    case: Mapping[str, Any],
    folder: Path,
    strategy: Strategy,
    steps: int,
    precision: torch.dtype,
    batch_size: int,
) -> Trajectory:
    """The first steps of a small run."""
    asked = dict(case)
    recipe = asked.pop("recipe")
    data = {"cpc": "recordings", "mlm": "text.txt"}.get(recipe, "pictures.npz")
    located = locate(str(folder / data))
    small = {
        "epochs": 1000,
        "batch_size": batch_size,
        "workers": 0,
        "optimizer": "sgd",
        "lr": 0.05,
        "held_out": 0,
    }
    if data == "pictures.npz":
        small["backbone"] = "resnet8-w16"
    if recipe == "mlm":
        small["views"] = {"length": 16}
    objects: Objects = {}
    if objective := asked.pop("objective", None):
        settings, objects, _ = student_of(
            f"{TEACHER}:{folder / 'teacher.pth'}",
            data,
            None,
            small,
            asked,
            objective=objective,
            modality=located.modality,
        )
    else:
        settings = resolve(recipe, data, small, asked, modality=located.modality)
    data_set = located.open(
        Limits(), **settings.modality.reader.options_for(settings.views, settings.image_size, None)
    )
    description = describe_data(data_set, settings, None, False)
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        session = Session(settings, data_set, description, device, precision, objects, strategy)
        session.prefill()
        weights = list(session.method.parameters())
        losses, gradient = [], torch.zeros(0)
        for batch in session.stream.batches(0, steps):
            losses.append(take_step(session, session.to_device(batch)).loss)
            if session.step == 1:
                gradient = _flat([strategy.full_tensor(w.grad) for w in weights if w.grad is not None])
    return Trajectory(losses, gradient, _flat([strategy.full_tensor(w.detach()) for w in weights]))


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def make_data(folder: Path, instances: int = INSTANCES) -> None:
    """Little sets of pictures, recordings and text, made from fixed seeds."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (instances, 4, 4, 3))
    images = coarse.repeat(4, axis=1).repeat(4, axis=2) + rng.integers(-20, 20, (instances, 16, 16, 3))
    np.savez(
        folder / "pictures.npz", images=images.clip(0, 255).astype(np.uint8), labels=np.arange(instances) % 4
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net: Any = backbone(TEACHER, 3, 16)
        classifier = {"fc.weight": torch.randn(4, net.dim), "fc.bias": torch.randn(4)}
    torch.save({**net.state_dict(), **classifier}, folder / "teacher.pth")
    (folder / "recordings").mkdir()
    for k in range(instances):
        tone = np.sin(np.arange(2500 + 20 * k) * (0.05 + 0.01 * (k % 8)))
        tone += 0.1 * rng.normal(size=len(tone))
        with wave.open(str(folder / "recordings" / f"{k:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes((tone * 8000).astype("<i2").tobytes())
    words = rng.choice(["near", "far", "ring", "ball", "cave", "view"], 3000)
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
