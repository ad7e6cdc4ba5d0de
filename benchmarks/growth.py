"""How cost grows: exponents b of CPU seconds ~ size^b, fitted by least squares on logarithms.

    python benchmarks/growth.py [QUICK]      any argument: fewer and smaller sizes

| what | sizes | expected |
|---|---|---|
| NT-Xent, forward and backward | batch 64 to 32,768 (quick: to 4,096) | at most 2 in time, 1 in memory |
| a queue's scores and gradient, batch 256 | 10^4 to 10^6 negatives (quick: to 10^5) | 1 |
| resnet8-w16, forward and backward, batch 8 | image side 32 to 224, as area | 1 |
| order of an epoch | 10^4 to 10^7 rows (quick: to 10^6) | 1, times a logarithm |
| order of an epoch within a window of row groups | the same | 1, times a logarithm |

Small sizes are dominated by what a call costs whatever the size, so exponents are fitted to the upper half of the sizes. CPU time, the
median of three, sizes interleaved: what else the machine does hardly enters.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from nearfar import InfoNCE
from nearfar.encoders import backbone
from nearfar.hardware import keep_freed_memory
from nearfar.losses import NTXentLoss
from nearfar.randomness import order, windowed_order
from nearfar.scores import Candidates, Scores, Streamed

REPEATS = 3


def loss(n: int) -> Callable[[], object]:
    rows = [torch.randn(n, 128, requires_grad=True) for _ in range(2)]
    return lambda: NTXentLoss(0.1)(*rows).backward()


def queue(n: int) -> Callable[[], object]:
    unit = torch.nn.functional.normalize
    anchors, keys = unit(torch.randn(256, 128), dim=1).requires_grad_(), unit(torch.randn(n, 128), dim=1)
    held, index = Candidates(keys, torch.arange(256, 256 + n)), torch.arange(256)

    def step() -> None:
        positive = (anchors * keys[:256]).sum(dim=1, keepdim=True) / 0.1
        (-InfoNCE()(Scores(positive, Streamed(anchors / 0.1, index, held, 64)))).backward()

    return step


def images(area: int) -> Callable[[], object]:
    side = round(area**0.5)
    network = backbone("resnet8-w16").to(memory_format=torch.channels_last)
    shown = torch.randn(8, 3, side, side).contiguous(memory_format=torch.channels_last)
    return lambda: network(shown).square().mean().backward()


def shuffle(n: int) -> Callable[[], object]:
    return lambda: order(0, 0, n)


def windowed(n: int) -> Callable[[], object]:
    block = np.arange(n) // 1024
    return lambda: windowed_order(0, 0, block, 64)


def seconds(make: Callable[[int], Callable[[], object]], sizes: list[int]) -> list[float]:
    """CPU seconds at each size."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(REPEATS):
        for size in sizes:
            call = make(size)
            call()
            begun = time.process_time()
            call()
            found[size].append(time.process_time() - begun)
    return [statistics.median(times) for times in found.values()]


def exponent(sizes: list[int], costs: list[float]) -> float:
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)
    return float(slope)


def main() -> None:
    quick = len(sys.argv) > 1
    keep_freed_memory()
    torch.manual_seed(0)
    powers = lambda low, high: [2**power for power in range(low, high + 1)]
    tens = lambda low, high: [round(10 ** (half / 2)) for half in range(2 * low, 2 * high + 1)]
    contests: dict[str, tuple[Callable[[int], Callable[[], object]], list[int]]] = {
        "NT-Xent, batch": (loss, powers(6, 12 if quick else 15)),
        "queue, negatives": (queue, tens(4, 5 if quick else 6)),
        "resnet8-w16, area": (images, [side**2 for side in (32, 64, 96, 128, 160, 224)]),
        "order, rows": (shuffle, tens(4, 6 if quick else 7)),
        "windowed order, rows": (windowed, tens(4, 6 if quick else 7)),
    }
    print(f"{torch.get_num_threads()} threads, CPU seconds, median of {REPEATS}")
    for name, (make, sizes) in contests.items():
        costs = seconds(make, sizes)
        shown = ", ".join(f"{size:,}: {cost:.3g}" for size, cost in zip(sizes, costs, strict=True))
        print(f"  {name:<21} exponent {exponent(sizes, costs):.2f}   {shown}", flush=True)


if __name__ == "__main__":
    main()
