"""Commands in processes of their own, forked from one that has imported everything: real signals, real exit codes, a tenth of a second.

What happens to a child is done to it by its system: a signal, a limit on the size of files, capabilities taken from root, a clock.
"""

import ctypes
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm import shim

PRELOADED = [
    "nearfar.train.pretrain", "nearfar.report", "nearfar.evaluate", "nearfar.run.embed", "nearfar.sweeps", "nearfar.data.packing",
    "nearfar.studies.run", "nearfar.report.page", "torch.utils.tensorboard", "tests.storm.children",
    "sklearn.datasets",  # what the digits import
]  # fmt: skip
TIMEOUT = 300.0  # seconds, for one command on a busy machine: more is a hang


@dataclass(frozen=True)
class Weather:
    """What the system does to a child."""

    largest_file: int | None = None  # bytes
    plain_user: bool = False  # as root: permissions count
    clock: int | None = None  # a seed: the wall clock jumps by years
    fault: tuple[str, str, int, int, int] | None = None  # of `shim.arm`
    environment: dict[str, str] = field(default_factory=dict)


CALM = Weather()


def run_commands(commands: Sequence[Sequence[str]], log: str, weather: Weather) -> None:
    """In the child: the commands one after the other until one does not end with 0, whose code is then the child's."""
    import torch

    from nearfar.cli import main

    torch.set_num_threads(1)
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGTERM,
    ):  # whatever the storm itself ignores
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log_file, stream)
    os.environ.update(weather.environment)
    if weather.plain_user:
        obey_permissions()
    if weather.clock is not None:
        jumping_clock(weather.clock)
    if weather.largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (weather.largest_file, weather.largest_file))
    os.write(log_file, b"begun\n") if weather.largest_file is None else None
    if weather.fault is not None:
        assert shim.arm(*weather.fault), "the shim is not preloaded"
    for words in commands:
        code = main(words)
        if code:
            sys.exit(code)


def obey_permissions() -> None:
    """Root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH is refused what a file's mode refuses; for others nothing changes."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for place in (0, 1):  # effective and permitted, of the first 32
        held[place] &= ~0b110
    if libc.capset(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def jumping_clock(seed: int) -> None:
    """The wall clock of this process jumps by up to ten years, back and forth; what measures durations goes on."""
    rng, now = random.Random(seed), time.time
    time.time = lambda: now() + rng.uniform(-3e8, 3e8)
    time.time_ns = lambda: int(time.time() * 1e9)


def faketime() -> str | None:
    """The library of that name, where it is installed: it moves every clock of a new process."""
    places = [
        *Path("/usr/lib").glob("*/faketime/libfaketime.so.1"),
        *Path("/usr/lib").glob("faketime/libfaketime.so.1"),
    ]
    return str(places[0]) if places else None


class Child:
    """Commands under way."""

    def __init__(self, commands: Sequence[Sequence[str]], log: Path, weather: Weather = CALM) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        os.environ.update(shim.preloading())  # for the fork server; it does nothing until a child arms it
        self.log = log
        self.process = context.Process(target=run_commands, args=(commands, str(log), weather))
        self.process.start()

    def wait(self, seconds: float = TIMEOUT) -> int | None:
        self.process.join(seconds)
        return self.process.exitcode

    def end(self) -> int:
        """Waits for the end by itself; not to end is a broken promise."""
        code = self.wait()
        if code is None:
            self.kill(signal.SIGKILL)
            raise AssertionError(f"it did not end within {TIMEOUT:g} s: {self.output()[-2000:]}")
        return code

    def kill(self, number: signal.Signals) -> None:
        if self.process.exitcode is None and self.process.pid is not None:
            os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join()

    def wait_begun(self) -> None:
        end = time.monotonic() + TIMEOUT
        while "begun" not in self.output() and self.process.exitcode is None and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.02)  # from that word to the handlers of signals is a moment

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def finished(commands: Sequence[Sequence[str]], log: Path, weather: Weather = CALM) -> int:
    """Commands run to their end; their code."""
    return Child(commands, log, weather).end()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def as_rank(rank: int, port: int) -> Weather:
    return Weather(
        environment={
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    )


class small_disk:
    """A file system of so many bytes, where this user may mount one; None otherwise, and for a size below 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.place: Path | None = None

    def __enter__(self) -> Path | None:
        if self.size < 0:
            return None
        place = Path(tempfile.mkdtemp(prefix="storm-disk-"))
        words = ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "storm", str(place)]
        if shutil.which("mount") and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            self.place = place
        else:
            place.rmdir()
        return self.place

    def __exit__(self, *_: Any) -> None:
        if self.place is not None:
            subprocess.run(["umount", str(self.place)], check=True)
            self.place.rmdir()


def no_traceback(text: str) -> None:
    assert "Traceback" not in text, text[-3000:]
    assert "Exception ignored" not in text, text[-3000:]
