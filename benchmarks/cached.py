"""Cached gradients (`encode_chunk`) against autograd: peak memory of a large batch, and time per image.

    OMP_NUM_THREADS=1 python benchmarks/cached.py [--batch 4096] [--chunk 32] [--both 256] [--backbone
    resnet18]

Each arm runs in its own process. Arms are interleaved and medians taken. A step is forward, backward and
optimiser of SimCLR on two views of 32 x 32 pixels. Time is CPU time of the process; peak is its largest
resident memory."""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

import nearfar as nf
from nearfar.core.encoding import Encoding


def step_of(backbone: str, batch_size: int, chunk: int | None) -> tuple[nf.Method, nf.Batch]:
    torch.manual_seed(0)
    from nearfar.parts.encoders import Network, mlp_head
    from nearfar.parts.encoders.backbones import backbone as build

    body = build(backbone, 3, 32)
    method = nf.Method(
        nf.Shared(Network(body, mlp_head(body.dim, 512, 128))),  # type: ignore[arg-type]
        nf.Cosine(0.2),
        nf.InBatch(),
        nf.Everyone(),
        nf.InfoNCE(),
        encoding=Encoding(chunk=chunk),
    ).to(memory_format=torch.channels_last)
    views = tuple(
        torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last) for _ in range(2)
    )
    return method, nf.Batch(views, torch.arange(batch_size))


def arm(backbone: str, batch_size: int, chunk: int | None, steps: int) -> dict[str, float]:
    method, batch = step_of(backbone, batch_size, chunk)
    optimizer = torch.optim.AdamW(method.parameters(), fused=True)
    seconds = []
    for _ in range(steps + 1):
        start = time.process_time()
        outcome = method(batch)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        method.advance(outcome)
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(seconds[1:] or seconds), "peak": peak}


def measured(*words: object) -> dict[str, float]:
    process = subprocess.run(
        [sys.executable, __file__, "--arm", *map(str, words)], capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096, help="of which the memory is measured; 0: none")
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--both", type=int, default=256, help="a batch at which both are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--arm", nargs=4, metavar=("BACKBONE", "BATCH", "CHUNK", "STEPS"))
    arguments = parser.parse_args()
    if arguments.arm:
        backbone, batch, chunk, steps = arguments.arm
        print(json.dumps(arm(backbone, int(batch), int(chunk) or None, int(steps))))
        return
    rounds: dict[str, list[dict[str, float]]] = {"plain": [], "cached": []}
    for _ in range(arguments.rounds):
        for name, chunk in (("plain", 0), ("cached", arguments.chunk)):
            rounds[name].append(measured(arguments.backbone, arguments.both, chunk, 3))
    for name, measurements in rounds.items():
        per_image = statistics.median(measurement["seconds"] for measurement in measurements) / arguments.both
        peak = max(measurement["peak"] for measurement in measurements)
        print(
            f"{name:<7} batch {arguments.both}: {1e3 * per_image:.2f} ms per image, peak {peak / 1e9:.2f} GB"
        )
    pairs = zip(rounds["plain"], rounds["cached"], strict=True)
    ratios = sorted(cached["seconds"] / autograd["seconds"] for autograd, cached in pairs)
    print(f"cached over plain: median {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    if not arguments.batch:
        return
    large = measured(arguments.backbone, arguments.batch, arguments.chunk, 0)
    print(
        f"cached  batch {arguments.batch}, {arguments.chunk} at a time: one step {large['seconds']:.0f} "
        f"s, peak {large['peak'] / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
