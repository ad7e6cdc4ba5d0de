"""Commands inside a memory limit of 2 GB, for tests with hostile input.

The limit is RLIMIT_DATA: private memory that can be written, touched or not. RLIMIT_AS would stop PyTorch itself,
whose libraries reserve 3.7 GB of addresses, and control groups need root. One process imports everything and forks
for each command, so a command starts with what the imports take (1.1 GB) and not with what the last one left.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

MEMORY = 2 * 10**9  # bytes that a command may reserve, PyTorch included
TIMEOUT = 900.0  # seconds for all commands on a busy machine: more is a hang
RUNNER = """
import contextlib, io, json, os, resource, sys
from pathlib import Path
import faiss, jinja2, matplotlib.figure, numba, pyarrow.parquet, pydantic, scipy.stats, sklearn.linear_model, torchvision
import nearfar.data, nearfar.detect.read, nearfar.estimate, nearfar.evaluate, nearfar.exported.write, nearfar.report
import nearfar.run, nearfar.train
from nearfar.cli import main
from nearfar.errors import UserError

def run(words):
    if words[0] != "scenes":
        return main(words)
    from nearfar.detect.read import from_json, from_parquet
    try:  # what `detect` reads, without the run that it needs
        path = Path(words[1])
        from_json(path, path.parent) if path.suffix == ".json" else from_parquet(path)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2

def outcome(words):
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    with contextlib.suppress(MemoryError):
        bytearray(LIMIT)
        os._exit(3)  # the limit has no effect
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run(words)
    return [code, errors.getvalue()]

for line in sys.stdin:
    words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.write(1, json.dumps(outcome(words)).encode() + b"\\n")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"{words} ended with {status}")
"""

needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts mapped memory in RLIMIT_DATA"
)


@functools.cache
def _runner() -> "subprocess.Popen[str]":
    """The process that forks, one for all tests of this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"LIMIT = {MEMORY}\n{RUNNER}"],
        # Arrow's own allocator reserves a gigabyte of addresses, which RLIMIT_DATA would count
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process


def outcomes(commands: Sequence[Sequence[str]]) -> list[list[Any]]:
    """[exit code, messages] of each command, one after another. `scenes FILE` reads what `detect --train FILE`
    would."""
    runner, result = _runner(), []
    assert runner.stdin is not None
    assert runner.stdout is not None
    hang = threading.Timer(TIMEOUT, runner.kill)
    hang.start()
    try:
        for words in commands:
            runner.stdin.write(json.dumps(words) + "\n")
            runner.stdin.flush()
            line = runner.stdout.readline()
            assert line, (words, "hung, or the system ended it")
            code, message = json.loads(line)
            assert "memory ran out" not in message, (words, message)
            result.append([code, message])
    except BaseException:
        runner.kill()
        _runner.cache_clear()
        raise
    finally:
        hang.cancel()
    return result


def assert_refused(commands: Sequence[Sequence[str]], reason: str) -> None:
    """Exit code 2 and one sentence with `reason`, for each command."""
    for words, (code, message) in zip(commands, outcomes(commands), strict=True):
        assert code == 2, (words, code, message)
        assert reason in message, (words, message)
        assert len(message.strip().splitlines()) == 1, (words, message)
