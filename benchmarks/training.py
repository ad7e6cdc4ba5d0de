"""A whole training step against its limit, forward and backward of the encoder, at the same precision.

    OMP_WAIT_POLICY=passive python benchmarks/training.py [--recipe simclr] [--precision bf16] [--seconds 1]
        [--backbones resnet8-w16,resnet8-w32,resnet18] [--blocks 21] [key=value ...]

Arms take turns in one run: blocks of whole steps of batch 256, 32 x 32 (views made by threads, scores,
optimiser, advance, monitors), and blocks of the network on a batch in memory. Threads wait as in the command
(`nearfar.system.machine`). The share is the median over pairs of neighbouring blocks, with quartiles; by CPU
time it hardly depends on other work on the machine. `key=value` words are settings of the recipe; what `nearfar pretrain
simclr` trains on small images is --backbones resnet6-w48 optimizer=muon lr=2e-2 views.crops=2x24."""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nearfar.config.resolving import Layer, read_words, resolve
from nearfar.data import open_data
from nearfar.system.hardware import keep_freed_memory, pick_device, pick_precision
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step

BATCH = 256


def arms(
    recipe: str, backbone: str, requested_precision: str, further: Layer
) -> tuple[Callable[[], object], Callable[[], object], str]:
    """(a whole step, the encoder alone, how both compute)."""
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    images = open_data(pixels)
    settings = resolve(recipe, "noise", {"backbone": backbone, "batch_size": BATCH, "epochs": 1000}, further)
    device = pick_device("auto")
    precision = pick_precision(requested_precision, device)
    description = describe_data(images, settings, None, False)
    session = Session(settings, images, description, device, precision)
    session.prefill()
    batches = session.stream.batches(0, session.steps)
    encoders: Any = session.method.encoders
    network = encoders.network
    ready = torch.cat(next(batches).to(device).views)

    def encoder_step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            out = network(ready)
        out.float().square().mean().backward()

    return (
        lambda: take_step(session, next(batches).to(device)),
        encoder_step,
        f"{precision}, {torch.get_num_threads()} threads on {device}",
    )


def cost(step: Callable[[], object], seconds: float) -> tuple[float, float]:
    """(images/s, CPU seconds an image) of a block of steps."""
    start, cpu, steps = time.perf_counter(), time.process_time(), 0
    while not steps or time.perf_counter() - start < seconds:
        step()
        steps += 1
    images = BATCH * steps
    return images / (time.perf_counter() - start), (time.process_time() - cpu) / images


def shares_of(
    full_arm: Callable[[], object], encoder_arm: Callable[[], object], seconds: float, blocks: int
) -> str:
    """Rates of both, and what share of the limit's rate the whole step reaches: by the clock and by CPU time,
    of neighbouring blocks, of which now the one, now the other comes first."""
    pairs = []
    for block in range(blocks):
        arms = (full_arm, encoder_arm) if block % 2 else (encoder_arm, full_arm)
        pair = {arm: cost(arm, seconds) for arm in arms}
        pairs.append((*pair[full_arm], *pair[encoder_arm]))
    rate, _, limit, _ = (statistics.median(column) for column in zip(*pairs, strict=True))
    by_clock, by_cpu = [one[0] / one[2] for one in pairs], [one[3] / one[1] for one in pairs]
    low, middle, high = statistics.quantiles(by_clock, n=4)
    return (
        f"whole step {rate:,.0f} images/s, encoder alone {limit:,.0f}; share of the limit, median of "
        f"pairs {middle:.1%} "
        f"(quartiles {low:.1%} and {high:.1%}), by CPU time {statistics.median(by_cpu):.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="simclr")
    parser.add_argument("--backbones", default="resnet8-w16")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=21)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    further = read_words(arguments.settings)
    keep_freed_memory()
    print(f"load {os.getloadavg()[0]:.1f}")
    for backbone in arguments.backbones.split(","):
        full_arm, encoder_arm, description = arms(arguments.recipe, backbone, arguments.precision, further)
        full_arm(), encoder_arm()
        report = shares_of(full_arm, encoder_arm, arguments.seconds, arguments.blocks)
        print(f"{arguments.recipe}, {backbone}, batch {BATCH}, {description}: {report}", flush=True)


if __name__ == "__main__":
    main()
