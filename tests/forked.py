"""Commands in processes of their own that start in a tenth of a second, forked from one that has imported nearfar.

Their signals, exit codes and files are real. What happens while Python starts or ends (imports, broken packages,
closed streams) needs a fresh interpreter: `helpers.run_python`.
"""

import atexit
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers import default_signals

PRELOADED = [
    "nearfar.train.pretrain",
    "nearfar.train.equality",
    "nearfar.evaluate",
    "nearfar.run.embed",
    "torch._dynamo",  # for FSDP
    "torch.utils.tensorboard",
    "sklearn.datasets",  # for the digits
    "tests.forked",
]
TIMEOUT = 300.0  # seconds for one command on a busy machine: more is a hang


def _run(
    words: list[str], code: str | None, streams: tuple[str, str], environment: dict[str, str], setup: Any
) -> None:
    """In the child: the command `nearfar words`, or `code` with these words as its arguments."""
    default_signals()
    for descriptor, path in enumerate(streams, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()  # the server's: it was started at any time before
    os.environ.update(environment)
    setup()
    sys.argv = ["nearfar" if code is None else "-c", *words]
    if code is None:
        from nearfar.cli import main

        sys.exit(main(words))
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})


def nothing() -> None:
    """No setup."""


class Forked:
    """A process under way, with the methods of `subprocess.Popen` that tests use. `setup` is called first in it."""

    def __init__(
        self, *words: object, code: str | None = None, setup: Callable[[], object] = nothing
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        folder = Path(tempfile.mkdtemp(prefix="forked-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._streams = folder / "out", folder / "err"
        for stream in self._streams:
            stream.touch()
        arguments = ([*map(str, words)], code, tuple(map(str, self._streams)), dict(os.environ), setup)
        self._process = context.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._streams[0].read_text()

    @property
    def stderr(self) -> str:
        return self._streams[1].read_text()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._process.join()

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Its exit code; the number of a signal that ended it is negative."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise AssertionError(f"it did not end within {timeout:g} s: {self.stderr[-2000:]}")
        return self.returncode

    def wait_until(self, condition: Callable[[], Any], timeout: float = TIMEOUT) -> None:
        """Until the condition holds or the process has ended."""
        end = time.monotonic() + timeout
        while not condition() and self.returncode is None and time.monotonic() < end:
            time.sleep(0.005)


def run_command(
    *words: object, code: str | None = None, setup: Callable[[], object] = nothing
) -> "subprocess.CompletedProcess[str]":
    """Runs `nearfar words`, or `code` with these words as its arguments, to the end."""
    process = Forked(*words, code=code, setup=setup)
    return subprocess.CompletedProcess([*map(str, words)], process.wait(), process.stdout, process.stderr)
