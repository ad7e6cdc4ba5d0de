"""How far a whole training step is from its limit, the encoder's forward and backward pass alone.

    python benchmarks/training.py [RECIPE] [BACKBONE]      default: simclr resnet8-w16, batch 256, 32 x 32

Arms are interleaved in one run: blocks of whole steps (views made by threads, scores, optimiser, advance, monitors) and
blocks of the network alone on a batch that is already there. Medians over blocks.
"""

import statistics
import sys
import tempfile
import time

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.hardware import keep_freed_memory, pick_device, pick_precision
from nearfar.resolve import resolve
from nearfar.train.prepare import described, prepare, prime

BLOCKS, STEPS, BATCH = 7, 6, 256


def main() -> None:
    recipe = sys.argv[1] if len(sys.argv) > 1 else "simclr"
    backbone = sys.argv[2] if len(sys.argv) > 2 else "resnet8-w16"
    keep_freed_memory()
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, images=pixels)
        file.flush()
        images = open_data(file.name)
    settings = resolve(recipe, "noise", {"backbone": backbone, "batch_size": BATCH, "epochs": 10})
    device = pick_device("auto")
    precision = pick_precision("auto", device)
    known = described(images, settings, None, False)
    trainer, stream = prepare(settings, images, known, device, precision)
    prime(trainer, images, known)
    batches = stream.batches(0, (BLOCKS + 1) * STEPS)
    network = trainer.method.encoders.network
    ready = torch.cat(next(batches).to(device).views)

    def encoder_alone() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            out = network(ready)
        out.float().square().mean().backward()

    whole: list[float] = []
    alone: list[float] = []
    for block in range(BLOCKS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            trainer.train_step(next(batches).to(device))
        middle = time.perf_counter()
        for _ in range(STEPS):
            encoder_alone()
        if block:  # the first block warms up
            whole.append((middle - begun) / STEPS)
            alone.append((time.perf_counter() - middle) / STEPS)
    step, limit = statistics.median(whole), statistics.median(alone)
    print(f"{recipe}, {backbone}, batch {BATCH}, {precision}, {torch.get_num_threads()} threads on {device}")
    print(f"  whole step      {step:.3f} s  {BATCH / step:.0f} images/s")
    print(f"  encoder alone   {limit:.3f} s  {BATCH / limit:.0f} images/s")
    print(f"  we are at {limit / step:.0%} of the limit")


if __name__ == "__main__":
    main()
