"""NT-Xent, forward and backward: nearfar against lightly.

    python benchmarks/losses.py [N]        N: pairs per batch (default 4096), 128-d, float32, CPU

Arms are interleaved and the medians' ratios printed; peak memory is measured in a process of its own per arm. The
arm "one matrix" is what smaller batches do; "any critic" has squared distances of unit vectors, the same loss, which are not inner products to nearfar: it goes the
way of every other critic, through activation checkpointing.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import lightly.loss
import torch
from torch import Tensor

import nearfar as nf
from nearfar.method import Method
from nearfar.schedules import START, Progress
from nearfar.types import Batch, Critic

DIM, ROUNDS = 128, 7


class Whole(nf.Cosine):
    """Cosines by a `cross` of its own, which Method does not take apart: the whole matrix, as below two million scores."""

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return super().cross(anchors, keys, progress)


def simclr(critic: Critic, chunk: int | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    method = Method(
        nf.Shared(torch.nn.Identity()),
        critic,
        nf.InBatch("both"),
        nf.Everyone(),
        nf.InfoNCE(),
        chunk=chunk,
    )
    return lambda a, k: method(Batch((a, k), torch.arange(len(a)))).loss


def arms() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    theirs = lightly.loss.NTXentLoss(temperature=0.1)
    return {
        "lightly": theirs,
        "nearfar": simclr(nf.Cosine(0.1)),
        "one matrix": simclr(Whole(0.1)),
        "any critic": simclr(nf.Distance(0.2, unit=True), chunk=256),
    }


def step(loss: Callable[[Tensor, Tensor], Tensor], n: int) -> float:
    a, k = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    begun = time.perf_counter()
    loss(a, k).backward()
    return time.perf_counter() - begun


def peak() -> float:
    """Peak memory of this process in MiB (Linux). `getrusage` would count its parent's until exec."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def peak_mebibytes(arm: str, n: int) -> float:
    """Peak memory of one step above what the process held before it, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, str(n), arm], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    if len(sys.argv) > 2:
        before = peak()
        step(arms()[sys.argv[2]], n)
        print(peak() - before)
        return
    named = arms()
    times: dict[str, list[float]] = {name: [] for name in named}
    for round_ in range(ROUNDS + 1):
        for name, loss in named.items():
            seconds = step(loss, n)
            if round_:  # the first round warms up
                times[name].append(seconds)
    base, base_memory = statistics.median(times["lightly"]), peak_mebibytes("lightly", n)
    print(f"NT-Xent, N = {n}, {DIM}-d, forward and backward, {torch.get_num_threads()} threads")
    for name in named:
        median, memory = statistics.median(times[name]), peak_mebibytes(name, n)
        print(
            f"  {name:<10} {median:7.3f} s  {base / median:5.2f}x the speed of lightly"
            f"  {memory:7.0f} MiB  1/{base_memory / max(memory, 1):.1f} of its memory"
        )


if __name__ == "__main__":
    main()
