"""Times a block of steps of one arm, here or in a child process.

A peer's data loader prefetches. Between its turns it would prepare its next block and use cores while others
are timed. So a turn first consumes the prefetched steps, then starts timing, and ends when the loaders are
idle again.

OpenMP wait policy and malloc thresholds are set per process. So training steps run in child processes: ours
with the settings of the command line, a peer's with torch's defaults.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from nearfar.bench.peers import Arm, PeerMissing, Step
from nearfar.system.hardware import keep_freed_memory
from nearfar.system.machine import PASSIVE_WAIT

REST_SECONDS, MAX_REST_SECONDS = 0.15, 30.0  # idle time that counts as rest; longest wait for it


@dataclass(frozen=True)
class Turn:
    """Seconds per step: wall time, and CPU time including loader processes."""

    wall: float
    cpu: float


Take = Callable[[float], Turn]  # seconds -> timing of a turn


@contextmanager
def open_arm(arm: Arm) -> Iterator[Take]:
    """Builds an arm and yields the function that runs its turns; raises `PeerMissing`."""
    if arm.process is None:
        step = arm.make()
        yield lambda seconds: turn(step, seconds, arm.prefetched)
        return
    context = multiprocessing.get_context("spawn")  # torch reads its settings at import
    line, child_end = context.Pipe()
    with environment_of(arm.process):
        child = context.Process(target=serve, args=(arm.make, arm.process, arm.prefetched, child_end))
        child.start()
    child_end.close()  # so that EOF is seen when the child ends
    try:
        absent = line.recv()
        if absent is not None:
            raise PeerMissing(absent)
        yield lambda seconds: _request_turn(line, seconds)
    finally:
        line.close()
        child.join()


def _request_turn(line: "Connection[Any, Any]", seconds: float) -> Turn:
    line.send(seconds)
    result: Turn = line.recv()
    return result


def serve(
    make: Callable[[], Step],
    settings_of: Literal["ours", "theirs"],
    prefetched: int,
    line: "Connection[Any, Any]",
) -> None:
    """Runs one turn per message, until the pipe closes."""
    if settings_of == "ours":
        keep_freed_memory()
    try:
        step = make()
    except PeerMissing as absent:
        line.send(str(absent))
        return
    line.send(None)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            line.send(turn(step, line.recv(), prefetched))


@contextmanager
def environment_of(settings_of: Literal["ours", "theirs"]) -> Iterator[None]:
    """Removes our OpenMP settings from the environment while a peer's process starts."""
    set_by_us: Mapping[str, str] = {k: v for k, v in PASSIVE_WAIT.items() if os.environ.get(k) == v}
    removed = set_by_us if settings_of == "theirs" else {}
    for key in removed:
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(removed)


def turn(step: Step, seconds: float, prefetched: int = 0) -> Turn:
    cpu_start = time.process_time() + child_cpu_seconds()
    for _ in range(prefetched):
        step()
    start, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - start < seconds:
        step()
        steps += 1
    wall = (time.perf_counter() - start) / steps
    if prefetched:
        _wait_for_rest()
    return Turn(wall, (time.process_time() + child_cpu_seconds() - cpu_start) / (prefetched + steps))


def _wait_for_rest() -> None:
    """Waits until the child processes are idle."""
    cpu_seconds, end = child_cpu_seconds(), time.monotonic() + MAX_REST_SECONDS
    while time.monotonic() < end:
        time.sleep(REST_SECONDS)
        previous, cpu_seconds = cpu_seconds, child_cpu_seconds()
        if cpu_seconds == previous:
            return


def child_cpu_seconds() -> float:
    """Returns the CPU seconds of the live child processes; 0 on systems other than Linux."""
    total = 0.0
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
