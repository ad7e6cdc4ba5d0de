"""Small versions of long jobs: chains of commands, and results that must not depend on what happens
meanwhile."""

import functools
import io
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearfar.run import checkpoints
from tests.storm.children import Child, as_rank, free_port
from tests.storm.places import lasting

IMAGES = 96
SMALL = [
    "backbone=resnet8-w16",
    "batch_size=32",
    "image_size=16",
    "workers=1",
    "held_out=0.1",
    "precision=fp32",
]
SHORT = [*SMALL, "epochs=2", "checkpoint_every=1", "keep=1"]


@functools.cache
def pictures() -> Path:
    """Little pictures in class folders, one of them broken: a scan that finds something."""
    folder = lasting("pictures")
    rng = np.random.default_rng(0)
    for k in range(IMAGES):
        file = folder / f"class{k % 3}" / f"{k:03d}.png"
        file.parent.mkdir(exist_ok=True)
        grey = rng.integers(0, 128, (16, 16, 3)) + 60 * (k % 3)
        Image.fromarray(grey.astype(np.uint8)).save(file)
    (folder / "class0" / "broken.png").write_bytes(b"no picture")
    return folder


@functools.cache
def numbers() -> Path:
    """A table of numbers in three classes."""
    folder = lasting("numbers")
    rng, labels = np.random.default_rng(0), np.arange(90) % 3
    np.savez(
        folder / "table.npz",
        x=(rng.normal(size=(90, 6)) + 1.2 * np.eye(6)[labels]).astype(np.float32),
        labels=labels,
    )
    return folder / "table.npz"


Commands = list[list[str]]


@dataclass(frozen=True)
class Job:
    """`commands(out)` and `result(out)`, which is compared bit by bit with the undisturbed job."""

    commands: Callable[[Path], Commands]
    result: Callable[[Path], dict[str, Any]]
    ranks: int = 1


def weights(run: Path) -> dict[str, bytes]:
    newest = checkpoints.newest(run / "ckpt")
    assert newest is not None
    return {
        name: tensor.contiguous().numpy().tobytes() for name, tensor in checkpoints.load(newest)[0].items()
    }


def pretrain(recipe: str, data: object, out: Path, *more: str) -> list[str]:
    return ["pretrain", recipe, str(data), "--out", str(out), "--quiet", *SHORT, *more]


def night(recipe: str, *more: str) -> Job:
    """Scan, prefill, training, clusters, probes, checkpoints, then evaluation with its cache, features, a
    page."""

    def commands(out: Path) -> Commands:
        run, features = str(out / "run"), str(out / "features.parquet")
        return [
            pretrain(recipe, pictures(), out / "run", *more),
            ["evaluate", run, "--protocol", "knn", "--no-baselines"],
            ["embed", run, str(pictures()), "--out", features],
            ["report", run, "--out", str(out / "report.html")],
        ]

    def result(out: Path) -> dict[str, Any]:
        assert (out / "report.html").stat().st_size > 10_000
        files = ("run/evaluation.json", "run/quarantine.csv", "features.parquet")
        return {**weights(out / "run"), **{name: (out / name).read_bytes() for name in files}}

    return Job(commands, result)


def packed() -> Job:
    def commands(out: Path) -> Commands:
        shards = out / "packed"
        return [
            ["pack", str(pictures()), "--out", str(shards), "--quiet", "seed=3", "workers=1"],
            pretrain("simclr", shards, out / "run", "probe_every=0"),
        ]

    def result(out: Path) -> dict[str, Any]:
        rows = {
            path.name: path.read_bytes()
            for path in sorted((out / "packed").iterdir())
            if path.suffix != ".lock"
        }
        return {**weights(out / "run"), **rows}

    return Job(commands, result)


def sweep() -> Job:
    def commands(out: Path) -> Commands:
        axes = ["temperature=0.1,0.5", "batch_size=16,30", "epochs=2", "checkpoint_every=1"]
        return [
            ["sweep", "simclr", str(numbers()), *axes, "--out", str(out / "sweep"), "--jobs", "1", "--quiet"]
        ]

    def result(out: Path) -> dict[str, Any]:
        return {
            name: (out / "sweep" / name).read_bytes() for name in ("sweep.csv", "figure.svg", "sweep.json")
        }

    return Job(commands, result)


def study() -> Job:
    def commands(out: Path) -> Commands:
        return [
            [
                "study",
                "bias-variance",
                "anchors=20",
                "draws=3",
                "nats=1",
                "--out",
                str(out / "study"),
                "--json",
            ]
        ]

    def result(out: Path) -> dict[str, Any]:
        files = sorted((out / "study" / "cells").glob("*/result.json"))
        return {path.parent.name: json.loads(path.read_text())["values"] for path in files}

    return Job(commands, result)


def two_ranks() -> Job:
    def commands(out: Path) -> Commands:
        return [
            pretrain("moco", pictures(), out / "run", "negatives.size=64", "sharding=none", "probe_every=0")
        ]

    return Job(commands, lambda out: weights(out / "run"), ranks=2)


JOBS: dict[str, Job] = {
    "simclr": night("simclr"),
    "moco": night("moco", "negatives.size=64", "encoders.dropout=0.2"),
    "instdisc": night("instdisc", "negatives.sample=64"),
    "clusters": night("simclr-cave", "selection.clusters=3", "selection.after=0.5"),
    "packed": packed(),
    "sweep": sweep(),
    "study": study(),
    "two ranks": two_ranks(),
}


def started(job: Job, out: Path, log: Path) -> list[Child]:
    out.mkdir(parents=True, exist_ok=True)
    if job.ranks == 1:
        return [Child(job.commands(out), log)]
    port = free_port()
    return [
        Child(job.commands(out), log.with_name(f"{log.name}-{rank}"), as_rank(rank, port))
        for rank in range(job.ranks)
    ]


@functools.cache
def reference(name: str) -> tuple[dict[str, Any], float]:
    """What the job finds when nothing happens, and how long it takes."""
    place = lasting("whole")
    start = time.monotonic()
    children = started(JOBS[name], place / "out", place / "log")
    codes = [child.end() for child in children]
    assert codes == [0] * len(children), [child.output()[-2000:] for child in children]
    lasted = time.monotonic() - start
    result = JOBS[name].result(place / "out")
    shutil.rmtree(place)
    return result, lasted


def same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result.keys() == expected.keys(), result.keys() ^ expected.keys()
    differing = [name for name, value in expected.items() if result[name] != value]
    assert not differing, (
        differing,
        [
            (expected[name][:1500], result[name][:1500])
            for name in differing[:1]
            if isinstance(expected[name], bytes)
        ],
    )


def picture_bytes(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
