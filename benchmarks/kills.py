"""Ranks killed by SIGKILL while two train: time to recover, and whether the result is unchanged.

    OMP_NUM_THREADS=1 python benchmarks/kills.py [--kills 20] [--seed 0]

torchrun starts one run with two gloo processes and a checkpoint every 5 steps. A random rank is killed at a
random moment, repeatedly; torchrun restarts both, and they resume. "Recovered" means that a step later than
any before the kill is logged. Losses and the last checkpoint are compared bit by bit with an undisturbed run.
Linux (/proc)."""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch

from nearfar.run import checkpoints
from nearfar.train.equality import make_data

STEPS = 450
PATIENCE = 120.0  # seconds


def started(data: Path, out: Path, restarts: int) -> "subprocess.Popen[bytes]":
    settings = (
        "backbone=resnet8-w16 precision=fp32 workers=0 log_every=1 batch_size=16 probe_every=0 held_out=0 "
        "checkpoint_every=5"
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["--max-restarts", str(restarts), "-m", "nearfar", "pretrain", "moco", str(data)]
    words += ["--out", str(out), *settings.split(), f"epochs={STEPS // 3}"]
    log = (out.parent / f"{out.name}.log").open("ab")
    return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def ranks_of(agent: int) -> list[int]:
    """Process numbers of those that torchrun has running."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(child) for child in children if b"RANK=" in Path(f"/proc/{child}/environ").read_bytes()]


def losses(out: Path) -> dict[int, float]:
    try:
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines() if line]
    except (OSError, ValueError):  # being written
        return {}
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


def waited(out: Path, step: int) -> float:
    """Seconds until a step from this one on is logged."""
    start = time.perf_counter()
    while max(losses(out), default=-1) < step:
        if time.perf_counter() - start > PATIENCE:
            raise SystemExit(f"no step {step} after {PATIENCE:.0f} s; see {out}.log")
        time.sleep(0.02)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nearfar-kills-"))
    make_data(folder)
    draws, times = random.Random(arguments.seed), []
    launcher = started(folder / "pictures.npz", folder / "killed", arguments.kills)
    waited(folder / "killed", 3)
    for _ in range(arguments.kills):
        time.sleep(draws.uniform(0.0, 0.3))
        reached = max(losses(folder / "killed"), default=0)
        victim = draws.choice(ranks_of(launcher.pid))
        os.kill(victim, signal.SIGKILL)
        times.append(waited(folder / "killed", reached + 2))
        print(f"killed after step {reached}: recovered in {times[-1]:.1f} s", flush=True)
    code = launcher.wait()
    calm = started(folder / "pictures.npz", folder / "calm", 0).wait()
    states = [checkpoints.newest(folder / name / "ckpt") for name in ("killed", "calm")]
    tensors = [safetensors.torch.load_file(state / "state.safetensors") for state in states if state]
    equal = len(tensors) == 2 and all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[1])
    equal = equal and losses(folder / "killed") == losses(folder / "calm")
    within = sum(seconds <= 30 for seconds in times)
    print(
        f"{within} of {arguments.kills} kills recovered within 30 s (median "
        f"{sorted(times)[len(times) // 2]:.1f}, slowest {max(times):.1f} s); "
        f"exit codes {code} and {calm}; ends bit-equal: {equal}"
    )
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
