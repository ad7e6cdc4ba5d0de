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
from nearfar.errors import UserError
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
    with open_process(arm.process, arm.name, _serve_turns, arm.make, arm.prefetched) as take:
        yield take


def _serve_turns(make: Callable[[], Step], prefetched: int, line: "Connection[Any, Any]") -> None:
    step = make()
    line.send(None)
    while True:
        line.send(turn(step, line.recv(), prefetched))


@contextmanager
def open_process(
    settings_of: Literal["ours", "theirs"], name: str, serve: Callable[..., None], *args: Any
) -> Iterator[Callable[[Any], Any]]:
    """Runs `serve(*args, line)` in a process with our OpenMP and malloc settings, or torch's defaults ("theirs").

    `serve` sends None once it is ready, then an answer to each message. Yields the function that sends a message
    and returns the answer. It raises `PeerMissing` and `UserError` of the process here.
    """
    context = multiprocessing.get_context("spawn")  # torch reads its settings at import
    line, child_end = context.Pipe()
    with environment_of(settings_of):
        child = context.Process(target=_serve, args=(serve, args, settings_of, child_end))
        child.start()
    child_end.close()  # so that EOF is seen when the child ends

    def receive() -> Any:
        try:
            answer = line.recv()
        except EOFError:
            raise UserError(
                f"the process of {name} ended before its result; is there enough memory?"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer_to(message: Any) -> Any:
        line.send(message)
        return receive()

    try:
        receive()
        yield answer_to
    finally:
        line.close()
        child.join()


def _serve(
    serve: Callable[..., None],
    args: tuple[Any, ...],
    settings_of: Literal["ours", "theirs"],
    line: "Connection[Any, Any]",
) -> None:
    if settings_of == "ours":
        keep_freed_memory()
    try:
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            serve(*args, line)
    except (PeerMissing, UserError) as problem:
        line.send(problem)


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
