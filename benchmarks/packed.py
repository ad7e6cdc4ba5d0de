"""Training on a packed set that is never loaded: memory, time to the first step, rate, resuming after kill
-9.

    python benchmarks/packed.py [--rows 2000000] [--folder DIR] [--part pack|start|resume]

Without --folder everything happens in a temporary folder (6 GB for two million rows of 32 x 32, raw) that is
deleted at the end. With it the packed set is kept, so that packing and measuring can be done at different
times.

Every figure comes from its own process. Memory is the peak resident set minus that of the same process on
4,096 rows: the cost of the size of the data. The time of the first step runs from the start of `pretrain`
(imports done) until the step is logged, including the held-out estimate of the untrained network and the
first checkpoint."""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.core.types import Pixels
from nearfar.data import Stream, open_data, pack
from nearfar.data.parquet import row_names
from nearfar.modalities import DataSet
from nearfar.modalities.base import Arrays
from nearfar.modalities.image import IMAGE

SMALL = 4096
STEPS = 40

CHILD = """
import json, resource, sys, time
import nearfar as nf
data, out, steps, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
first = []
class Enough(Exception): pass
class Timer(nf.Hook):
    def on_step(self, session, outcome):
        first.append((time.perf_counter() - begun, time.process_time() - spent))
        if session.step >= steps: raise Enough
import torch, numba, pyarrow, PIL  # what every process pays
begun, spent = time.perf_counter(), time.process_time()
try:
    settings = dict(epochs=1, batch_size=256, backbone="resnet8-w16", checkpoint_every=every, log_every=10)
    nf.pretrain("simclr", data, out, quiet=True, hooks=[Timer()], **settings)
except Enough:
    pass
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rate = 256 * (len(first) - 1) / (first[-1][0] - first[0][0])
print(json.dumps({"first": first[0][0], "cpu": first[0][1], "rate": rate, "peak": peak / 1024}))
"""


class GeneratedPictures:
    """Pictures computed on access: noise that differs between rows."""

    noise = np.random.default_rng(0).integers(0, 256, (4096, 32, 32, 3), dtype=np.uint8)

    def take(self, rows: np.ndarray) -> Pixels:
        turn = (rows // 4096).astype("<u4").view(np.uint8).reshape(-1, 1, 4)  # in the first pixels
        pixels = self.noise[rows % 4096]
        pixels[:, 0, :4, 0] ^= turn[:, 0]
        return Pixels(pixels, np.full((len(rows), 2), 32, dtype=np.int32))


def generated_data(rows: int) -> DataSet:
    """A data set of `rows` rows that takes no memory."""
    few: Any = IMAGE.reader.from_array(
        Arrays(np.zeros((2, 32, 32, 3), np.uint8)), "drawn", {"image_size": None}
    )
    labels = np.arange(rows, dtype=np.int64) % 10
    return replace(
        few,
        fingerprint=hashlib.sha256(str(rows).encode()).hexdigest(),
        labels=labels,
        paths=row_names(["drawn"], [rows]),
        store=GeneratedPictures(),
        rows=np.arange(rows),
        sizes=np.full((rows, 2), 32, dtype=np.int32),
    )


def child(data: Path, out: Path, steps: int = STEPS, every: int = 10**6) -> dict[str, Any]:
    words = [sys.executable, "-c", CHILD, str(data), str(out), str(steps), str(every)]
    process = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    measurement: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return measurement


def killed(data: Path, out: Path) -> None:
    """A run killed by -9 after a checkpoint in mid-epoch."""
    words = [sys.executable, "-c", CHILD, str(data), str(out), str(STEPS), "10"]
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not list((out / "ckpt").glob("step-0000002*")) and running.poll() is None:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="keep the packed sets here, and use those that are there")
    parser.add_argument("--part", choices=("pack", "start", "resume"), help="do this alone")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="nearfar-packed-"))
    parts = {
        "pack": lambda: packed(folder, arguments.rows),
        "start": lambda: started(folder),
        "resume": lambda: resumed(folder),
    }
    try:
        for name, part in parts.items():
            if arguments.part in (None, name):
                part()
    finally:
        shutil.rmtree(folder / "runs" if arguments.folder else folder, ignore_errors=True)


def packed(folder: Path, rows: int) -> None:
    for name, count in (("small", SMALL), ("large", rows)):
        if (folder / name).exists():
            continue
        start, spent = time.perf_counter(), time.process_time()
        pack(generated_data(count), folder / name, encoding="raw", shuffle=False, workers=0)
        packing, cpu = time.perf_counter() - start, time.process_time() - spent
        size = sum(file.stat().st_size for file in (folder / name).iterdir())
        print(
            f"packed {count:,} rows of 32 x 32 (raw, {size / 1e9:.1f} GB) in {packing:.0f} s, "
            f"{count / packing:,.0f} rows/s, "
            f"CPU {1e6 * cpu / count:.0f} µs a row"
        )


def started(folder: Path) -> None:
    child(folder / "small", folder / "runs" / "warm", steps=2)  # compiles the kernel
    large = child(folder / "large", folder / "runs" / "a")
    small = child(folder / "small", folder / "runs" / "b", steps=14)
    extra = large["peak"] - small["peak"]
    print(
        f"resident memory at most {large['peak']:.0f} MB, {small['peak']:.0f} MB with {SMALL:,} rows: "
        f"{extra:.0f} MB more"
    )
    print(
        f"first step after {large['first']:.1f} s, CPU {large['cpu']:.1f} s ({small['first']:.1f} s, CPU "
        f"{small['cpu']:.1f} s with {SMALL:,} rows)"
    )
    print(f"{large['rate']:.0f} images/s ({small['rate']:.0f} with {SMALL:,} rows)")


def resumed(folder: Path) -> None:
    data, runs = folder / "large", folder / "runs"
    child(data, runs / "whole", every=10)
    killed(data, runs / "cut")
    child(data, runs / "cut", every=10)
    names = [sorted((runs / run / "ckpt").glob("step-*"))[-1] for run in ("whole", "cut")]
    states = [hashlib.sha256((name / "state.safetensors").read_bytes()).hexdigest() for name in names]
    print(
        f"killed by -9 in mid-epoch and resumed: checkpoints of {names[0].name} bit-equal: "
        f"{states[0] == states[1]}"
    )
    print(f"two ranks see each row of an epoch once: {ranks(data)}")


def ranks(data: Path) -> bool:
    opened = open_data(str(data))
    streams = [Stream(opened, lambda *_: (), 256, 0, rank=rank, world=2) for rank in (0, 1)]
    rows = np.concatenate(
        [stream.index(step)[1] for stream in streams for step in range(stream.steps_per_epoch)]
    )
    return len(np.unique(rows)) == len(rows) == len(opened) // 256 * 256


if __name__ == "__main__":
    main()
