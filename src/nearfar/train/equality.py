"""Compares several processes with one: the same steps by both, in float64.

In float64 only rounding differs, by about 1e-15 of the values. A gradient that is dropped, scaled by the
number of ranks, or taken from another rank's rows makes a difference of order one. `nearfar doctor --ranks N`
prints the differences for each recipe.
"""

import importlib.util
import json
import multiprocessing
import tempfile
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
TEACHER = "wrn-10-1"  # teacher of the distillation case, with initial weights

# name: recipe and settings; small cases that exchange different things
CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"recipe": name}
        for name in ("simclr", "moco", "moco-v3", "byol", "simsiam", "instdisc", "cmc", "la", "dim", "npair")
    },
    **{name: {"recipe": name} for name in ("triplet", "supcon", "hcl", "nnclr", "sigreg", "cpc")},
    "vicreg": {"recipe": "vicreg", "lr": 1e-3},
    # crops of two sizes; the data have 16 pixels a side
    "simclr crops": {"recipe": "simclr", "views": {"crops": "2x16,2x8"}},
    "cmc crops": {"recipe": "cmc", "views": {"crops": "2x16,2x8"}},
    "moco crops": {"recipe": "moco", "views": {"crops": "2x16,2x8"}},
    "barlow crops": {"recipe": "barlow", "views": {"crops": "2x16,2x8"}, "lr": 1e-3},
    "lejepa crops": {"recipe": "lejepa", "views": {"crops": "2x16,2x8"}},
    "swav": {"recipe": "swav"},
    "swav queue": {"recipe": "swav", "negatives": {"size": 32}, "views": {"crops": "2x16,2x8"}},
    "dino crops": {"recipe": "dino", "views": {"crops": "2x16,2x8"}},
    "dino fsdp": {"recipe": "dino", "sharding": "fsdp"},
    "mlm": {"recipe": "mlm", "encoders": {"dropout": 0.0, "dim": 16}},
    "simclr-ring": {"recipe": "simclr-ring"},
    "moco-cave": {"recipe": "moco-cave", "selection": {"clusters": 4}},
    "simclr ml-cpc": {"recipe": "simclr", "bound": {"name": "ml-cpc", "alpha": 0.5}},
    # at lr 0.05 learning from sampled negatives is unstable: rounding errors grow tenfold per step
    "moco accept": {"recipe": "moco", "selection": "accept", "lr": 1e-3},
    "simclr accept js": {"recipe": "simclr", "selection": "accept", "bound": "js"},
    "simclr accept nce": {"recipe": "simclr", "selection": "accept", "bound": "nce"},
    "simclr-ring sample": {"recipe": "simclr-ring", "selection": {"sample": 5}},
    "simclr dv": {"recipe": "simclr", "bound": {"name": "dv", "momentum": 0.9}},
    "dim adversarial": {"recipe": "dim", "prior": "adversarial"},
    "simclr exchange": {"recipe": "simclr", "exchange": "ring"},
    "simclr exchange ml-cpc": {
        "recipe": "simclr",
        "exchange": "ring",
        "bound": {"name": "ml-cpc", "alpha": 0.5},
    },
    "moco fsdp": {"recipe": "moco", "sharding": "fsdp"},
    "dim fsdp": {"recipe": "dim", "sharding": "fsdp"},
    "supervised fsdp": {"recipe": "supervised", "sharding": "fsdp"},
    "distill": {"recipe": "distill", "objective": "crd+kd", "selection": {"sample": 8}},
}
GRAPH_CASES: dict[str, dict[str, Any]] = {name: {"recipe": name} for name in ("graphcl", "dgi", "grace")}
if importlib.util.find_spec("torch_geometric"):  # of the extra `graph`
    CASES |= GRAPH_CASES


@dataclass(frozen=True)
class Trajectory:
    """Losses, gradient and weights of the first steps of a run."""

    losses: list[float]
    gradient: Tensor  # of the first step
    weights: Tensor  # after the last

    def differences(self, reference: "Trajectory") -> dict[str, float]:
        """Largest differences; relative for losses and weights above one, as rounding is."""
        pairs = zip(self.losses, reference.losses, strict=True)
        scale = max(1.0, float(reference.weights.abs().max()))
        return {
            "loss_difference": max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs),
            "gradient_difference": _relative(self.gradient, reference.gradient),
            "weights_difference": float((self.weights - reference.weights).abs().max()) / scale,
        }


def _relative(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm().clamp_min(torch.finfo(value.dtype).tiny))


def compare(
    world: int,
    cases: Mapping[str, Mapping[str, Any]] = CASES,
    steps: int = STEPS,
    precision: torch.dtype = torch.float64,
    batch_size: int | None = None,
    repeat: bool = False,
    verbose: bool = False,
) -> dict[str, dict[str, float]]:
    """For each case the differences of loss, gradient and weights between one process and `world` processes,
    which are started on this machine. `repeat` adds the largest difference between two runs of the `world`
    processes; `verbose` prints each row."""
    with tempfile.TemporaryDirectory() as folder:
        batch_size = batch_size or world * PER_RANK
        make_data(Path(folder), max(INSTANCES, 2 * batch_size))
        start(world, _compare_rank, world, folder, dict(cases), steps, precision, batch_size, repeat, verbose)
        return json.loads((Path(folder) / "differences.json").read_text())


def start(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """Calls `function(rank, *arguments)` in `count` new processes and waits for all. A fork server, where
    there is one, imports for all of them once."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])  # which FSDP imports
    mp.start_processes(function, arguments, nprocs=count, start_method=method)


def _compare_rank(
    rank: int,
    world: int,
    folder: str,
    cases: Mapping[str, Mapping[str, Any]],
    steps: int,
    precision: torch.dtype,
    batch_size: int,
    repeat: bool,
    verbose: bool,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    rows = {}
    for name, case in cases.items():
        strategy = join(case.get("sharding", "none"))
        parallel = trajectory(case, Path(folder), strategy, steps, precision, batch_size)
        rerun = trajectory(case, Path(folder), strategy, steps, precision, batch_size) if repeat else None

        with strategy.keep_alive():
            if strategy.is_first:
                reference = trajectory(case, Path(folder), SINGLE, steps, precision, batch_size)
                rows[name] = parallel.differences(reference)
                if rerun is not None:
                    rows[name]["rerun_difference"] = max(parallel.differences(rerun).values())
        strategy.broadcast_json(None)
        if verbose and strategy.is_first:
            values = " | ".join(f"{value:.0e}" for value in rows[name].values())
            print(f"| {name} | {world} | {values} |", flush=True)
    if strategy.is_first:
        (Path(folder) / "differences.json").write_text(json.dumps(rows))
    strategy.barrier()
    dist.destroy_process_group()


def trajectory(
    case: Mapping[str, Any],
    folder: Path,
    strategy: Strategy,
    steps: int,
    precision: torch.dtype,
    batch_size: int,
    device: str = "cpu",
) -> Trajectory:
    """Trains the first steps of a small run."""
    layer = dict(case)
    recipe = layer.pop("recipe")
    of_recipe = {"cpc": "recordings", "mlm": "text.txt", **dict.fromkeys(GRAPH_CASES, "graphs")}
    data = of_recipe.get(recipe, "pictures.npz")
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
    if objective := layer.pop("objective", None):
        settings, objects, _ = student_of(
            f"{TEACHER}:{folder / 'teacher.pth'}",
            data,
            None,
            small,
            layer,
            objective=objective,
            located=located,
        )
    else:
        settings = resolve(recipe, data, small, layer, modality=located.modality)
    data_set = located.open(
        Limits(), **settings.modality.reader.options_for(settings.views, settings.image_size, None)
    )
    description = describe_data(data_set, settings, None, False)
    with torch.random.fork_rng(devices=[]):
        session = Session(settings, data_set, description, torch.device(device), precision, objects, strategy)
        session.prefill()
        weights = list(session.method.parameters())
        losses, gradient = [], torch.zeros(0)
        for batch in session.stream.batches(0, steps):
            losses.append(take_step(session, session.to_device(batch)).loss)
            if session.step == 1:
                gradient = _flat([strategy.full_tensor(w.grad) for w in weights if w.grad is not None])
    return Trajectory(losses, gradient, _flat([strategy.full_tensor(w.detach()) for w in weights]))


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()


def make_data(folder: Path, instances: int = INSTANCES) -> None:
    """Writes small sets of images, recordings, graphs and text, from fixed seeds."""
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
    sizes = 4 + np.arange(instances) % 5  # rings of nodes
    first = 1 + np.cumsum(sizes) - sizes
    files = {
        "A": [f"{a + k}, {a + (k + 1) % n}" for a, n in zip(first, sizes, strict=True) for k in range(n)],
        "graph_indicator": [str(number) for number, n in enumerate(sizes, 1) for _ in range(n)],
        "node_labels": rng.integers(0, 3, sizes.sum()).astype(str).tolist(),
    }
    (folder / "graphs").mkdir()
    for name, lines in files.items():
        (folder / "graphs" / f"TOY_{name}.txt").write_text("\n".join(lines) + "\n")
