"""Memory of a step against a large queue when `chunk` is set, for every selection.

    python benchmarks/chunk.py [ANCHORS CANDIDATES CHUNK]     default 512 65536 16, 128 dimensions, float32,
    CPU

Each selection runs forward and backward in its own process. The figure is peak resident memory above that
before the step, with an allocator that returns freed memory at once (glibc would keep some). Linux only."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nearfar as nf
from nearfar.core.schedules import START
from nearfar.core.scores import Candidates, Scores, Streamed
from nearfar.core.types import Context

DIM, INSTANCES = 128, 65_536


def refreshed(selection: Any) -> Any:
    """Clusters as k-means would leave them, without the time it takes."""
    generator = torch.Generator().manual_seed(0)
    for part in selection.modules():
        if type(part).__name__ == "Clusters":
            part.ids = torch.randint(0, part.clusters, part.ids.shape, generator=generator, dtype=torch.int32)
    return selection


def grouped() -> nf.Group:
    group = nf.Group("speaker", instances=INSTANCES)
    group.assign(torch.arange(INSTANCES) % 50)
    return group


SELECTIONS: dict[str, Callable[[], Any]] = {
    "everyone": nf.Everyone,
    "ball": lambda: nf.Ball(0.5),
    "ring": lambda: nf.Ring(0.5, 0.99),
    "cave": lambda: refreshed(nf.Cave(100, instances=INSTANCES)),
    "cave +C_i": lambda: refreshed(nf.Cave(100, close=1000, instances=INSTANCES)),
    "group": grouped,
    "neighbours": lambda: refreshed(nf.Neighbours(instances=INSTANCES)),
    "accept": nf.Accept,
}


def resident(field: str) -> float:
    """MB, from the kernel: VmRSS now, VmHWM the peak since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def step(selection: Any, keys: Tensor, anchors: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(1)
    u = torch.nn.functional.normalize(torch.randn(anchors, DIM, generator=generator), dim=1).requires_grad_()
    index = torch.arange(anchors)
    candidates = Candidates(keys, torch.arange(len(keys)) % INSTANCES)
    scored = (u * keys[:anchors]).sum(dim=1, keepdim=True) / 0.1
    negative = Streamed(u / 0.1, index, candidates, chunk)
    scores = selection(Scores(scored, negative), Context(u, candidates, index, START))
    value = nf.InfoNCE()(scores)
    (value + scores.score_function_term(value, nf.InfoNCE())).backward()


def measured(name: str, anchors: int, candidates: int, chunk: int) -> None:
    torch.set_num_threads(1)
    selection = SELECTIONS[name]()
    generator = torch.Generator().manual_seed(2)
    keys = torch.nn.functional.normalize(torch.randn(candidates, DIM, generator=generator), dim=1)
    step(selection, keys, 2 * chunk, chunk)  # what the libraries allocate once
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    previous, start = resident("VmRSS"), time.perf_counter()
    step(selection, keys, anchors, chunk)
    print(
        f"{name:<12} {resident('VmHWM') - previous:7.1f} MB above before; "
        f"{time.perf_counter() - start:6.2f} s"
    )


def main() -> None:
    words = sys.argv[1:]
    if words and words[0] in SELECTIONS:
        measured(words[0], *map(int, words[1:4]))
        return
    sizes = [*words, *("512", "65536", "16")[len(words) :]]
    print(
        f"{sizes[0]} anchors x {sizes[1]} candidates, chunk {sizes[2]}: the whole matrix is "
        f"{int(sizes[0]) * int(sizes[1]) * 4 / 2**20:.0f} MB"
    )
    honest = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for name in SELECTIONS:
        subprocess.run([sys.executable, __file__, name, *sizes], check=True, env=honest)


if __name__ == "__main__":
    main()
