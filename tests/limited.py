"""Commands in a process of limited memory and time, for tests with hostile input.

The peak of resident memory is asserted to be below 2 GB. A hard limit of 2 GB is not possible: as RLIMIT_AS it
stops PyTorch itself, whose libraries reserve 3.7 GB of addresses; as RLIMIT_DATA (private memory that can be
written, touched or not) it stops imports after a few commands, since allocators keep what they reserved; control
groups need root. So RLIMIT_DATA is 6 GB, which protects the machine, and the peak is measured.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MEMORY = 2 * 10**9  # bytes in use by a process, PyTorch included
RESERVED = 6 * 10**9  # bytes that it may reserve
PATIENCE = 300  # seconds for all commands on a busy machine: more is a hang
RUNNER = """
import io, json, sys
from pathlib import Path
from contextlib import redirect_stderr, redirect_stdout
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
outcomes = []
for words in json.loads(sys.argv[1]):
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        code = run(words)
    outcomes.append([code, errors.getvalue()])
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(json.dumps([outcomes, 1024 * int(peak)]))
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")


def outcomes(commands: Sequence[Sequence[str]]) -> list[list[Any]]:
    """[exit code, messages] of each command, one after another in one process. `scenes FILE` reads what
    `detect --train FILE` would."""
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps(commands)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (RESERVED, RESERVED)),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    result: list[list[Any]]
    result, peak = json.loads(process.stdout.splitlines()[-1])
    assert peak < MEMORY
    return result


def assert_refused(commands: Sequence[Sequence[str]], reason: str) -> None:
    """Exit code 2 and one sentence with `reason`, for each command."""
    for words, (code, message) in zip(commands, outcomes(commands), strict=True):
        assert code == 2, (words, code, message)
        assert reason in message, (words, message)
        assert len(message.strip().splitlines()) == 1, (words, message)
