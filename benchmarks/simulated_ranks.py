"""What a rank holds and sends in a contrastive step, against the global batch and the number of ranks.

    OMP_NUM_THREADS=1 python benchmarks/simulated_ranks.py [--ranks 8,64,512] [--batches 65536,262144,1048576] [--dim 128]
        [--exchanges gather,ring]

One rank of a fake process group computes log-sum-exp and its gradient of its share of the anchors with the keys of all
ranks, once after one gather (`exchange=gather`) and once with blocks of keys that pass from rank to rank
(`exchange=ring`). Tensors are torch's fake ones on a GPU: they have a size, and no numbers. "Peak" is the most memory of
all tensors at a time beyond the rank's own anchors, keys and ids; "sent" counts what leaves the rank, one view, one
direction, float32. A gather and a reduce-scatter send a rank's block to every other rank. The scores of a tile
(2^25 at most, 128 MiB) are part of the peak. Exponents are fitted over the batches at the largest number of ranks, and
over the ranks at the largest batch.

The last table is the memory of an epoch's order: (seed, epoch) -> a permutation of all rows, on every rank.
"""

import argparse
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearfar.core.kernels import LogSumExp
from nearfar.core.randomness import order
from nearfar.core.rotation import RotatedLogSumExp
from nearfar.core.scores import tile_size
from nearfar.distributed.gather import RankRows

MIB = 2**20


class MemoryRecorder(TorchDispatchMode):
    """The most bytes that tensors made inside hold at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: Counter[int] = Counter()  # tensors of each storage
        self.bytes: dict[int, int] = {}
        self.held = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        own = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(results):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key not in self.live and key in own:
                continue  # made outside
            if key not in self.live:
                self.bytes[key] = storage.nbytes()
                self.held += self.bytes[key]
                self.peak = max(self.peak, self.held)
            self.live[key] += 1
            weakref.finalize(leaf, self._release, key)
        return results

    def _release(self, key: int) -> None:
        self.live[key] -= 1
        if not self.live[key]:
            del self.live[key]
            self.held -= self.bytes.pop(key)


class CountingRows(RankRows):
    """Counts messages and bytes that leave this rank."""

    messages = 0
    sent = 0

    def count(self, messages: int, *tensors: Tensor) -> None:
        CountingRows.messages += messages
        CountingRows.sent += messages * sum(tensor.nbytes for tensor in tensors)

    def concatenate(self, rows: Tensor) -> Tensor:
        self.count(len(self.sizes) - 1, rows)
        return super().concatenate(rows)

    def sum_of_own(self, rows: Tensor) -> Tensor:
        own = super().sum_of_own(rows)
        self.count(len(self.sizes) - 1, own)
        return own

    def pass_on(self, *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        self.count(1, *tensors)
        return super().pass_on(*tensors)


def gather(anchors: Tensor, keys: Tensor, index: Tensor, layout: RankRows) -> None:
    all_keys, all_ids = layout.concatenate(keys), layout.concatenate(index)
    kernel = LogSumExp(index, all_ids, tile_size(anchors, all_keys))
    outputs = kernel.forward(anchors, all_keys)
    gradients = kernel.backward((anchors, all_keys), outputs, (outputs[0],), (True, True))
    assert gradients[1] is not None
    layout.sum_of_own(gradients[1])


def ring(anchors: Tensor, keys: Tensor, index: Tensor, layout: RankRows) -> None:
    kernel = RotatedLogSumExp(index, index, layout)
    outputs = kernel.forward(anchors, keys)
    kernel.backward((anchors, keys), outputs, (outputs[0],), (True, True))


EXCHANGES = {"gather": gather, "ring": ring}


def measure(exchange: str, ranks: int, batch: int, dim: int) -> tuple[float, float, int]:
    """Peak MiB, MiB sent and messages of one rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=ranks)
    CountingRows.messages = CountingRows.sent = 0
    layout = CountingRows((batch // ranks,) * ranks, 1)
    with FakeTensorMode(), torch.no_grad():
        anchors, keys = (torch.empty(batch // ranks, dim, device="cuda") for _ in range(2))
        index = torch.empty(batch // ranks, device="cuda", dtype=torch.long)
        with MemoryRecorder() as recorder:
            EXCHANGES[exchange](anchors, keys, index, layout)
    dist.destroy_process_group()
    return recorder.peak / MIB, CountingRows.sent / MIB, CountingRows.messages


def exponent(sizes: list[int], costs: list[float]) -> str:
    """Of the line through the points in logarithms; one point has none."""
    if len(sizes) == 1:
        return "one size only"
    return f"{round(np.polyfit(np.log(sizes), np.log(costs), 1)[0], 2) + 0.0:.2f}"  # no -0.00


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="8,64,512")
    parser.add_argument("--batches", default="65536,262144,1048576")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--exchanges", default=",".join(EXCHANGES))
    options = parser.parse_args()
    worlds, batches = ([int(word) for word in words.split(",")] for words in (options.ranks, options.batches))
    exchanges = options.exchanges.split(",")
    results = {}
    print("| exchange | ranks | global batch | peak, MiB | sent, MiB | messages |\n|---|---|---|---|---|---|")
    for exchange in exchanges:
        for ranks in worlds:
            for batch in batches:
                results[exchange, ranks, batch] = measure(exchange, ranks, batch, options.dim)
                peak, sent, messages = results[exchange, ranks, batch]
                print(
                    f"| {exchange} | {ranks} | {batch:,} | {peak:,.0f} | {sent:,.0f} | {messages:,} |",
                    flush=True,
                )
    print("\n| exponent | in the batch | in the ranks |\n|---|---|---|")
    for exchange in exchanges:
        for place, name in enumerate(("peak", "sent", "messages")):
            by_batch = [float(results[exchange, worlds[-1], batch][place]) for batch in batches]
            by_ranks = [float(results[exchange, ranks, batches[-1]][place]) for ranks in worlds]
            print(f"| {exchange}: {name} | {exponent(batches, by_batch)} | {exponent(worlds, by_ranks)} |")
    print("\n| rows | bytes of the order, per rank |\n|---|---|")
    for rows in (10**6, 10**7):
        print(f"| {rows:,} | {order(0, 0, rows).nbytes:,} |")


if __name__ == "__main__":
    main()
