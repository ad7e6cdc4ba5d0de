"""An arm's turn: a block of its steps, here or in a process of its own.

A peer's loader works ahead. Were it left to, it would prepare its own next block while others are timed, and take their cores meanwhile.
So a turn first uses up what was prepared (`ahead` steps), is timed after that, and ends when its loaders are at rest again.

How OpenMP's threads wait and how memory is given back is set for a whole process. So whole steps are taken in processes of their own:
ours as the command sets it, a peer's as torch comes.
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

from nearfar.bench.peers import Absent, Arm, Step
from nearfar.system.hardware import keep_freed_memory
from nearfar.system.machine import PATIENT

REST, LONGEST = 0.15, 30.0  # seconds without work are rest; so long it is waited for


@dataclass(frozen=True)
class Turn:
    """What a step cost: seconds by the clock, and of CPU time, loaders and other processes of the arm included."""

    wall: float
    cpu: float


Take = Callable[[float], Turn]  # a turn of so many seconds


@contextmanager
def ready(arm: Arm) -> Iterator[Take]:
    """The arm, made: what takes its turns; raises `Absent` where a peer is not installed."""
    if arm.process is None:
        step = arm.make()
        yield lambda seconds: turn(step, seconds, arm.ahead)
        return
    context = multiprocessing.get_context("spawn")  # torch reads its settings when it is loaded
    line, theirs = context.Pipe()
    with _environment(arm.process):
        child = context.Process(target=serve, args=(arm.make, arm.process, arm.ahead, theirs))
        child.start()
    theirs.close()  # so that the end of the other is seen
    try:
        absent = line.recv()
        if absent is not None:
            raise Absent(absent)
        yield lambda seconds: _asked(line, seconds)
    finally:
        line.close()
        child.join()


def _asked(line: "Connection[Any, Any]", seconds: float) -> Turn:
    line.send(seconds)
    found: Turn = line.recv()
    return found


def serve(
    make: Callable[[], Step], whose: Literal["ours", "theirs"], ahead: int, line: "Connection[Any, Any]"
) -> None:
    """Takes a turn whenever it is asked to, until nobody can ask any more."""
    if whose == "ours":
        keep_freed_memory()
    try:
        step = make()
    except Absent as absent:
        line.send(str(absent))
        return
    line.send(None)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            line.send(turn(step, line.recv(), ahead))


@contextmanager
def _environment(whose: Literal["ours", "theirs"]) -> Iterator[None]:
    """While a process is started: without what `nearfar` tells OpenMP, where it is a peer's."""
    set_by_us: Mapping[str, str] = {k: v for k, v in PATIENT.items() if os.environ.get(k) == v}
    removed = set_by_us if whose == "theirs" else {}
    for key in removed:
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(removed)


def turn(step: Step, seconds: float, ahead: int = 0) -> Turn:
    before = time.process_time() + of_children()
    for _ in range(ahead):
        step()
    begun, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - begun < seconds:
        step()
        taken += 1
    wall = (time.perf_counter() - begun) / taken
    if ahead:
        _rest()
    return Turn(wall, (time.process_time() + of_children() - before) / (ahead + taken))


def _rest() -> None:
    """Until no child has worked for a while."""
    held, end = of_children(), time.monotonic() + LONGEST
    while time.monotonic() < end:
        time.sleep(REST)
        before, held = held, of_children()
        if held == before:
            return


def of_children() -> float:
    """CPU seconds that this process's living children have taken; 0 elsewhere than on Linux."""
    found = 0.0
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
