"""How cost grows: exponents b of cost ~ size^b, fitted by least squares on logarithms.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--quick] [--part time|memory|open|ranks]

| part | what | sizes (--quick) | expected |
|---|---|---|---|
| time | NT-Xent, forward and backward | batch 64 to 32,768 (4,096) | at most 2 |
| time | a queue's scores and gradient, batch 256 | 10^4 to 10^6 negatives (10^5) | 1 |
| time | resnet8-w16, forward and backward, batch 8 | image side 32 to 224, as area | 1 |
| time | order of an epoch, also within a window; its first 4,096 rows | 10^4 to 10^7 rows (10^6) | 1, times a
log |
| memory | NT-Xent, beyond the start of the process | batch 4,096 to 32,768 (16,384) | 1 |
| open | a Parquet file of small pictures, all decoded | 10^4 to 3 10^5 rows (10^5) | 1, at most 1 GB |
| open | the same, only names and sizes | 10^4 to 10^7 rows (10^6) | 1, at most 1 GB |
| ranks | a SimCLR step of 256 (resnet8-w16, 32 x 32), CPU time of all | 1, 2, 4 processes | 2 cost at most
1.25 |

Small sizes are dominated by fixed costs, so exponents are fitted to the upper half of the sizes. Time is CPU
time, the median of three, sizes interleaved. Memory is the peak resident set of a separate process."""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from PIL import Image

from nearfar import InfoNCE
from nearfar.config.resolving import resolve
from nearfar.core.randomness import first_of_windowed_order, order, windowed_order
from nearfar.core.scores import Candidates, Scores, Streamed
from nearfar.data import open_data
from nearfar.distributed.strategy import join
from nearfar.losses import NTXentLoss
from nearfar.parts.encoders import backbone
from nearfar.system.hardware import keep_freed_memory
from nearfar.train.equality import start
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step

REPEATS = 3


def loss(n: int) -> Callable[[], object]:
    rows = [torch.randn(n, 128, requires_grad=True) for _ in range(2)]
    return lambda: NTXentLoss(0.1)(*rows).backward()


def queue(n: int) -> Callable[[], object]:
    unit = torch.nn.functional.normalize
    anchors, keys = unit(torch.randn(256, 128), dim=1).requires_grad_(), unit(torch.randn(n, 128), dim=1)
    candidates, index = Candidates(keys, torch.arange(256, 256 + n)), torch.arange(256)

    def step() -> None:
        positive = (anchors * keys[:256]).sum(dim=1, keepdim=True) / 0.1
        (-InfoNCE()(Scores(positive, Streamed(anchors / 0.1, index, candidates, 64)))).backward()

    return step


def images(area: int) -> Callable[[], object]:
    side = round(area**0.5)
    network = backbone("resnet8-w16").to(memory_format=torch.channels_last)
    inputs = torch.randn(8, 3, side, side).contiguous(memory_format=torch.channels_last)
    return lambda: network(inputs).square().mean().backward()


def shuffle(n: int) -> Callable[[], object]:
    return lambda: order(0, 0, n)


def windowed(n: int) -> Callable[[], object]:
    block = np.arange(n) // 1024
    return lambda: windowed_order(0, 0, block, 64)


def first(n: int) -> Callable[[], object]:
    block = np.arange(n) // 1024
    return lambda: first_of_windowed_order(0, 0, block, 64, 4096)


def seconds(make: Callable[[int], Callable[[], object]], sizes: list[int]) -> list[float]:
    """CPU seconds at each size."""
    measured: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(REPEATS):
        for size in sizes:
            call = make(size)
            call()
            start = time.process_time()
            call()
            measured[size].append(time.process_time() - start)
    return [statistics.median(times) for times in measured.values()]


def exponent(sizes: list[int], costs: list[float]) -> float:
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)
    return float(slope)


def powers(low: int, high: int) -> list[int]:
    return [2**power for power in range(low, high + 1)]


def tens(low: float, high: float) -> list[int]:
    return [round(10 ** (half / 2)) for half in range(round(2 * low), round(2 * high) + 1)]


def report_exponent(name: str, sizes: list[int], costs: list[float], unit: str) -> None:
    figures = ", ".join(f"{size:,}: {cost:.3g}" for size, cost in zip(sizes, costs, strict=True))
    print(f"  {name:<26} exponent {exponent(sizes, costs):.2f}   {unit}: {figures}", flush=True)


def time_part(quick: bool) -> None:
    keep_freed_memory()
    torch.manual_seed(0)
    contests: dict[str, tuple[Callable[[int], Callable[[], object]], list[int]]] = {
        "NT-Xent, batch": (loss, powers(6, 12 if quick else 15)),
        "queue, negatives": (queue, tens(4, 5 if quick else 6)),
        "resnet8-w16, area": (images, [side**2 for side in (32, 64, 96, 128, 160, 224)]),
        "order, rows": (shuffle, tens(4, 6 if quick else 7)),
        "windowed order, rows": (windowed, tens(4, 6 if quick else 7)),
        "first 4,096 of it, rows": (first, tens(4, 6 if quick else 7)),
    }
    print(f"{torch.get_num_threads()} threads, CPU seconds, median of {REPEATS}")
    for name, (make, sizes) in contests.items():
        report_exponent(name, sizes, seconds(make, sizes), "s")


def in_child(task: str, *words: object) -> dict[str, float]:
    """`cpu` seconds and `peak` MB beyond the start, of one of `CHILD_TASKS` in a new process."""
    command = [sys.executable, __file__, "--alone", task, *map(str, words)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measurement: dict[str, float] = json.loads(process.stdout)
    return measurement


def resident_memory() -> float:
    """The most memory that this process has had, in MB (Linux)."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def memory_part(quick: bool) -> None:
    sizes = powers(12, 14 if quick else 15)
    report_exponent("NT-Xent, batch", sizes, [in_child("loss", size)["peak"] for size in sizes], "MB")


def opened(path: str, scan_bytes: int) -> Callable[[], object]:
    return lambda: open_data(path, scan_bytes=scan_bytes, cache_bytes=0)


def open_part(quick: bool) -> None:
    """Rows of one small PNG each."""
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(picture, "png")
    with tempfile.TemporaryDirectory(prefix="nearfar-growth-") as folder:
        for name, scan_bytes, high in (
            ("open, all decoded", 2**40, 5 if quick else 5.5),
            ("open, names and sizes", 0, 6 if quick else 7),
        ):
            sizes, measurements = tens(4, high), []
            for size in sizes:
                file = f"{folder}/{size}.parquet"
                # one picture repeated: with a dictionary a row would take less than a byte, which is refused
                schema = pa.schema({"image": pa.binary()})
                writer = pq.ParquetWriter(file, schema, use_dictionary=False, compression="none")
                for start in range(0, size, 10_000):
                    writer.write_table(
                        pa.table({"image": [picture.getvalue()] * min(10_000, size - start)}), 10_000
                    )
                writer.close()
                measurements.append(in_child("open", file, scan_bytes))
                os.remove(file)
            report_exponent(name, sizes, [measurement["cpu"] for measurement in measurements], "s")
            print(f"    memory of the largest: {measurements[-1]['peak']:.0f} MB")


def ranks_part(quick: bool) -> None:
    costs = {}
    for world in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            start(world, step_cost, world, folder, 3 if quick else 6)
            rank_times = [float(Path(f"{folder}/cpu-{rank}").read_text()) for rank in range(world)]
        costs[world] = sum(rank_times)
        print(
            f"  {world} processes: {costs[world]:.3f} s of CPU time a step, {costs[world] / costs[1]:.2f} "
            "times that of one"
        )


def step_cost(rank: int, world: int, folder: str, steps: int) -> None:
    """Leaves the CPU seconds that this rank takes for a step of the global batch of 256."""
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    data = open_data(np.random.default_rng(0).integers(0, 256, (1024, 32, 32, 3), dtype=np.uint8))
    report_exponent = {"backbone": "resnet8-w16", "batch_size": 256, "epochs": 100, "workers": 1}
    settings = resolve("simclr", "noise", report_exponent)
    description = describe_data(data, settings, None, False)
    session = Session(settings, data, description, torch.device("cpu"), torch.float32, strategy=join())
    batches = session.stream.batches(0, steps + 2)
    for _ in range(2):
        take_step(session, next(batches))
    start = time.process_time()
    for _ in range(steps):
        take_step(session, next(batches))
    Path(f"{folder}/cpu-{rank}").write_text(str((time.process_time() - start) / steps))
    session.strategy.barrier()
    dist.destroy_process_group()


CHILD_TASKS: dict[str, Callable[..., Callable[[], object]]] = {
    "loss": lambda size: loss(int(size)),
    "open": lambda path, scan_bytes: opened(path, int(scan_bytes)),
}
PARTS = {"time": time_part, "memory": memory_part, "open": open_part, "ranks": ranks_part}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        call = CHILD_TASKS[arguments.alone[0]](*arguments.alone[1:])
        previous, start = resident_memory(), time.process_time()
        call()
        print(json.dumps({"cpu": time.process_time() - start, "peak": resident_memory() - previous}))
        return
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            print(name)
            part(arguments.quick)


if __name__ == "__main__":
    main()
