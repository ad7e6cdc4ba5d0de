"""NT-Xent, forward and backward: nearfar against lightly; and InfoNCE over a queue: nearfar against one matrix and cross-entropy.

    python benchmarks/losses.py [N]                N: pairs per batch (default 4096), 128-d, float32, CPU
    python benchmarks/losses.py [N] --memory       our memory alone
    python benchmarks/losses.py --queue 65536      256 anchors and their keys against so many keys of a queue; and the memory of a ring there

Arms are interleaved and the medians' ratios printed; peak memory is measured in a process of its own per arm. "nearfar" is `nearfar.losses.NTXentLoss`, "as a
method" the same composed of parts, for which no symmetry is known. The arm "one matrix" is what smaller batches do; "any critic" has squared distances of unit vectors, the same loss, which are not inner products to nearfar: it goes the
way of every other critic, through activation checkpointing. The queue's other arm is MoCo's: cat of the positive score and those of the queue, cross-entropy.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import lightly.loss
import torch
from torch import Tensor
from torch.nn import functional

import nearfar as nf
from nearfar.core.abstract import AbstractCritic, AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import START, Progress
from nearfar.core.types import Batch

DIM, ROUNDS, ANCHORS = 128, 7, 256


class Whole(nf.Cosine):
    """Cosines by a `cross` of its own, which Method does not take apart: the whole matrix, as below two million scores."""

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return super().cross(anchors, keys, progress)


def simclr(critic: AbstractCritic, chunk: int | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    method = Method(
        nf.Shared(torch.nn.Identity()),
        critic,
        nf.InBatch("both"),
        nf.Everyone(),
        nf.InfoNCE(),
        chunk=chunk,
    )
    return lambda a, k: method(Batch((a, k), torch.arange(len(a)))).loss


def queued(
    size: int, chunk: int | None = None, selection: AbstractSelection | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Our loss against a queue that is full."""
    method = Method(
        nf.Shared(torch.nn.Identity(), stop_gradient=True),
        nf.Cosine(0.1),
        nf.Queue(size, dim=DIM),
        selection or nf.Everyone(),
        nf.InfoNCE(),
        chunk=chunk,
        symmetric=False,
    )
    for start in range(0, size, ANCHORS):
        rows = torch.randn(ANCHORS, DIM)
        method.prime(Batch((rows, rows), torch.arange(start, start + ANCHORS)))
    mine = torch.arange(size, size + ANCHORS)
    return lambda a, k: method(Batch((a, k), mine)).loss


def joined(size: int) -> Callable[[Tensor, Tensor], Tensor]:
    """As MoCo's published script has it."""
    queue = functional.normalize(torch.randn(size, DIM), dim=1).T.contiguous()

    def loss(a: Tensor, k: Tensor) -> Tensor:
        a, k = functional.normalize(a, dim=1), functional.normalize(k.detach(), dim=1)
        logits = torch.cat([(a * k).sum(1, keepdim=True), a @ queue], dim=1) / 0.1
        return functional.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))

    return loss


def arms() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    theirs = lightly.loss.NTXentLoss(temperature=0.1)
    return {
        "lightly": theirs,
        "nearfar": nf.losses.NTXentLoss(temperature=0.1),
        "as a method": simclr(nf.Cosine(0.1)),
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
    words = [sys.executable, __file__, str(n), "--arm", arm]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout)


def peak_of(arm: str, n: int) -> float:
    """The same in this process."""
    kinds: dict[str, Callable[[], Callable[[Tensor, Tensor], Tensor]]] = {
        "queue": lambda: queued(n),
        "queue, chunk": lambda: queued(n, chunk=16),
        "queue, ring and chunk": lambda: queued(n, 16, nf.Ring(0.5, 0.99)),
        "cat and cross-entropy": lambda: joined(n),
    }
    loss = kinds[arm]() if arm in kinds else arms()[arm]
    before = peak()
    step(loss, ANCHORS if arm in kinds else n)
    return peak() - before


def medians(named: dict[str, Callable[[Tensor, Tensor], Tensor]], n: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in named}
    for round_ in range(ROUNDS + 1):
        for name, loss in named.items():
            seconds = step(loss, n)
            if round_:  # the first round warms up
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int, nargs="?", default=4096)
    parser.add_argument("--queue", type=int)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.arm:
        print(peak_of(given.arm, given.n))
    elif given.memory:
        print(f"NT-Xent, N = {given.n}: {peak_mebibytes('nearfar', given.n):.0f} MiB beyond what was held")
    elif given.queue:
        against_a_queue(given.queue)
    else:
        against_lightly(given.n)


def against_a_queue(size: int) -> None:
    found = medians({"queue": queued(size), "cat and cross-entropy": joined(size)}, ANCHORS)
    ours, theirs = found.values()
    print(
        f"{ANCHORS} anchors, queue of {size:,}, {DIM}-d, forward and backward, {torch.get_num_threads()} threads"
    )
    print(
        f"  nearfar {1000 * ours:.0f} ms, cat and cross-entropy {1000 * theirs:.0f} ms: {theirs / ours:.2f} times its speed"
    )
    for arm in ("cat and cross-entropy", "queue", "queue, chunk", "queue, ring and chunk"):
        print(f"  {arm}: {peak_mebibytes(arm, size):.0f} MiB beyond what was held")


def against_lightly(n: int) -> None:
    named = arms()
    found = medians(named, n)
    base, base_memory = found["lightly"], peak_mebibytes("lightly", n)
    print(f"NT-Xent, N = {n}, {DIM}-d, forward and backward, {torch.get_num_threads()} threads")
    for name, median in found.items():
        memory = peak_mebibytes(name, n)
        print(
            f"  {name:<10} {median:7.3f} s  {base / median:5.2f}x the speed of lightly"
            f"  {memory:7.0f} MiB  1/{base_memory / max(memory, 1):.1f} of its memory"
        )


if __name__ == "__main__":
    main()
