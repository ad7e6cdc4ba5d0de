"""How far a whole training step is from its limit, the encoder's forward and backward pass alone, at the same precision and layout.

    OMP_WAIT_POLICY=passive python benchmarks/training.py [--recipe simclr] [--backbones resnet8-w16,resnet8-w32,resnet18] [--precision bf16] [--seconds 2] [--blocks 7]

Arms take turns in one run: blocks of whole steps of batch 256, 32 x 32 (views made by threads, scores, optimiser, advance, monitors), and blocks of the
network alone on a batch that is already there. Threads wait as the command lets them wait (`nearfar.machine`). Medians over blocks, and the lowest and highest share of a pair of neighbouring blocks.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.hardware import keep_freed_memory, pick_device, pick_precision
from nearfar.resolve import resolve
from nearfar.train.prepare import described, prepare, prime

BATCH = 256


def arms(recipe: str, backbone: str, asked: str) -> tuple[Callable[[], object], Callable[[], object], str]:
    """(a whole step, the encoder alone, how both compute)."""
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    images = open_data(pixels)
    settings = resolve(recipe, "noise", {"backbone": backbone, "batch_size": BATCH, "epochs": 1000})
    device = pick_device("auto")
    precision = pick_precision(asked, device)
    known = described(images, settings, None, False)
    trainer, stream = prepare(settings, images, known, device, precision)
    prime(trainer, images, known)
    batches = stream.batches(0, trainer.steps)
    network = trainer.method.encoders.network
    ready = torch.cat(next(batches).to(device).views)

    def alone() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            out = network(ready)
        out.float().square().mean().backward()

    return (
        lambda: trainer.train_step(next(batches).to(device)),
        alone,
        f"{precision}, {torch.get_num_threads()} threads on {device}",
    )


def rate(step: Callable[[], object], seconds: float) -> float:
    begun, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - begun < seconds:
        step()
        steps += 1
    return BATCH * steps / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="simclr")
    parser.add_argument("--backbones", default="resnet8-w16")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=7)
    given = parser.parse_args()
    keep_freed_memory()
    print(f"load {os.getloadavg()[0]:.1f}")
    for backbone in given.backbones.split(","):
        whole, alone, how = arms(given.recipe, backbone, given.precision)
        whole(), alone()
        found = [(rate(whole, given.seconds), rate(alone, given.seconds)) for _ in range(given.blocks)]
        step, limit = (statistics.median(column) for column in zip(*found, strict=True))
        shares = sorted(one / other for one, other in found)
        print(
            f"{given.recipe}, {backbone}, batch {BATCH}, {how}: whole step {step:,.0f} images/s, encoder alone {limit:,.0f}: "
            f"{step / limit:.1%} of the limit ({shares[0]:.1%} to {shares[-1]:.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
