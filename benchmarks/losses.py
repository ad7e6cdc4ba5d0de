"""NT-Xent against lightly, and InfoNCE over a queue against one matrix and cross-entropy; forward and
backward.

    python benchmarks/losses.py [N]                N: pairs per batch (default 4096), 128-d, float32, CPU
    python benchmarks/losses.py [N] --memory       only our memory python benchmarks/losses.py --queue 65536
    256 anchors against a queue of that size; memory of a ring there

Arms are interleaved and ratios of medians printed; peak memory is measured in one process per arm. "nearfar"
is `nearfar.losses.NTXentLoss`; "as a method" is the same loss composed of parts, without symmetry. "one
matrix" is the path of smaller batches. "any critic" scores squared distances of unit vectors: the same loss,
but not an inner product, so it takes the path of any critic, activation checkpointing. The queue's other arm
is MoCo's: cat of the positive score and those of the queue, then cross-entropy."""

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


class FullMatrix(nf.Cosine):
    """Cosines by its own `cross`: the full matrix, as below two million scores."""

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
        "one matrix": simclr(FullMatrix(0.1)),
        "any critic": simclr(nf.Distance(0.2, unit=True), chunk=256),
    }


def step(loss: Callable[[Tensor, Tensor], Tensor], n: int) -> float:
    a, k = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    start = time.perf_counter()
    loss(a, k).backward()
    return time.perf_counter() - start


def peak() -> float:
    """Peak memory of this process in MiB (Linux). `getrusage` would count its parent's until exec."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def peak_mebibytes(arm: str, n: int) -> float:
    """Peak memory of one step above what the process held before it, in a process of its own."""
    words = [sys.executable, __file__, str(n), "--arm", arm]
    process = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(process.stdout)


def peak_of(arm: str, n: int) -> float:
    """The same in this process."""
    kinds: dict[str, Callable[[], Callable[[Tensor, Tensor], Tensor]]] = {
        "queue": lambda: queued(n),
        "queue, chunk": lambda: queued(n, chunk=16),
        "queue, ring and chunk": lambda: queued(n, 16, nf.Ring(0.5, 0.99)),
        "cat and cross-entropy": lambda: joined(n),
    }
    loss = kinds[arm]() if arm in kinds else arms()[arm]
    previous = peak()
    step(loss, ANCHORS if arm in kinds else n)
    return peak() - previous


def medians(arms_by_name: dict[str, Callable[[Tensor, Tensor], Tensor]], n: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in arms_by_name}
    for round_ in range(ROUNDS + 1):
        for name, loss in arms_by_name.items():
            seconds = step(loss, n)
            if round_:  # the first round warms up
                times[name].append(seconds)
    return {name: statistics.median(durations) for name, durations in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int, nargs="?", default=4096)
    parser.add_argument("--queue", type=int)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(peak_of(arguments.arm, arguments.n))
    elif arguments.memory:
        print(
            f"NT-Xent, N = {arguments.n}: {peak_mebibytes('nearfar', arguments.n):.0f} MiB beyond what "
            "was held"
        )
    elif arguments.queue:
        against_a_queue(arguments.queue)
    else:
        against_lightly(arguments.n)


def against_a_queue(size: int) -> None:
    times = medians({"queue": queued(size), "cat and cross-entropy": joined(size)}, ANCHORS)
    ours, theirs = times.values()
    print(
        f"{ANCHORS} anchors, queue of {size:,}, {DIM}-d, forward and backward, {torch.get_num_threads()} "
        "threads"
    )
    print(
        f"  nearfar {1000 * ours:.0f} ms, cat and cross-entropy {1000 * theirs:.0f} ms: "
        f"{theirs / ours:.2f} times its speed"
    )
    for arm in ("cat and cross-entropy", "queue", "queue, chunk", "queue, ring and chunk"):
        print(f"  {arm}: {peak_mebibytes(arm, size):.0f} MiB beyond what was held")


def against_lightly(n: int) -> None:
    arms_by_name = arms()
    times = medians(arms_by_name, n)
    base, base_memory = times["lightly"], peak_mebibytes("lightly", n)
    print(f"NT-Xent, N = {n}, {DIM}-d, forward and backward, {torch.get_num_threads()} threads")
    for name, median in times.items():
        memory = peak_mebibytes(name, n)
        print(
            f"  {name:<10} {median:7.3f} s  {base / median:5.2f}x the speed of lightly"
            f"  {memory:7.0f} MiB  1/{base_memory / max(memory, 1):.1f} of its memory"
        )


if __name__ == "__main__":
    main()
