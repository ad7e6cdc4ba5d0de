"""A training step while another process uses a core: the effect of how threads wait.

    python benchmarks/disturbed.py [ROUNDS] [fp32|bf16]      default: 5 rounds, fp32; resnet8-w16, batch 64,
    32 x 32

OpenMP threads that spin while waiting (torch's default) occupy the core that the awaited thread needs. Each
arm is a process, because OpenMP reads its settings when it is loaded. Arms take turns within a round, on an
idle machine and with a busy process. Figures are medians over rounds. CPU time per step shows the cost of
waiting, also on a shared machine."""

import json
import os
import statistics
import subprocess
import sys

from nearfar.system.machine import PASSIVE_WAIT

ARMS: dict[str, dict[str, str]] = {
    "torch's default": {},
    "spinning 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spinning 3,000": {"GOMP_SPINCOUNT": "3000"},
    "spinning 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spinning 300": {"GOMP_SPINCOUNT": "300"},
    "spinning 100": {"GOMP_SPINCOUNT": "100"},
    "passive (ours)": PASSIVE_WAIT,
    "one thread": {"OMP_NUM_THREADS": "1"},
}
SECONDS = 2.0

CHILD = """
import json, os, sys, time
import torch
from nearfar.parts.encoders import backbone
from nearfar.system.hardware import keep_freed_memory
keep_freed_memory()
torch.manual_seed(0)
network = backbone("resnet8-w16").to(memory_format=torch.channels_last)
images = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
def step():
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=sys.argv[1] == "bf16"):
        out = network(images)
    out.float().square().mean().backward()
step()
print("ready", flush=True)
for seconds in map(float, sys.stdin):
    begun, cpu, steps = time.perf_counter(), time.process_time(), 0
    while not steps or time.perf_counter() - begun < seconds:
        step()
        steps += 1
    rate = 64 * steps / (time.perf_counter() - begun)
    print(json.dumps([rate, (time.process_time() - cpu) / steps]), flush=True)
"""


def start_arm(settings: dict[str, str], precision: str) -> "subprocess.Popen[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    words = [sys.executable, "-c", CHILD, precision]
    return subprocess.Popen(
        words, env=clean | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def measure(process: "subprocess.Popen[str]") -> tuple[float, float]:
    """(images/s, CPU seconds per step) of a block of steps."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{SECONDS}\n")
    process.stdin.flush()
    rate, cpu = json.loads(process.stdout.readline())
    return rate, cpu


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    precision = sys.argv[2] if len(sys.argv) > 2 else "fp32"
    processes = {name: start_arm(settings, precision) for name, settings in ARMS.items()}
    for process in processes.values():
        assert process.stdout is not None
        process.stdout.readline()
    idle: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}
    disturbed: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}
    for _ in range(rounds):
        for name, process in processes.items():
            idle[name].append(measure(process))
        burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for name, process in processes.items():
            disturbed[name].append(measure(process))
        burning.kill()
        burning.wait()
    for process in processes.values():
        process.kill()
    best = statistics.median(rate for rate, _ in idle["torch's default"])
    print(f"resnet8-w16, batch 64, {precision}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in ARMS:
        (rate, cpu), (less, more) = (
            [statistics.median(column) for column in zip(*rates[name], strict=True)]
            for rates in (idle, disturbed)
        )
        print(
            f"  {name:<16} {rate:6.0f} images/s alone, {less:6.0f} beside a busy core ({less / rate:.0%} "
            "of its own, "
            f"{less / best:.0%} of the default's alone); CPU {1000 * cpu:.0f} and {1000 * more:.0f} ms a step"
        )


if __name__ == "__main__":
    main()
