"""Kills and errors at chosen file operations (`shim`): below Python, at the moment that random ones miss."""

import errno
import random
import signal
from pathlib import Path

from tests.storm import shim
from tests.storm.children import Child, Weather, no_traceback
from tests.storm.jobs import JOBS, reference, same
from tests.storm.kills import valid
from tests.storm.mishaps import NAMES, calm_again, ended

ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EMFILE)
MAX_KILLS = 5  # kills of one job
OPERATIONS = 600  # about as many has the longest job


def killed(rng: random.Random, name: str, place: Path) -> tuple[str, dict[str, int]]:
    """A job killed just before one of its file operations, several times, then left alone: the same bits."""
    out, kills = place / "out", 0
    out.mkdir()
    for attempt in range(MAX_KILLS + 1):
        at = int(OPERATIONS ** rng.random()) if attempt < MAX_KILLS else 10**9
        operations = rng.choice([shim.CHANGES, *shim.CHANGES.split()])
        weather = Weather(fault=(f"{out}/", operations, at, 1, shim.KILL))
        child = Child(JOBS[name].commands(out), place / f"log-{attempt}", weather)
        code = child.end()
        assert code in (0, -signal.SIGKILL), (code, child.output()[-3000:])
        no_traceback(child.output())
        valid(out)
        kills += code != 0
        if code == 0:
            break
    same(JOBS[name].result(out), reference(name)[0])
    return "killed at file operations: same bits", {"kills at operations": kills}


def failed(rng: random.Random, name: str, place: Path) -> tuple[str, dict[str, int]]:
    """One operation, or all from one on, fail with an error of the system; then the disk is repaired."""
    out, code = place / "out", rng.choice(ERRORS)
    out.mkdir()
    operations = rng.choice([shim.CHANGES, "read open", *shim.CHANGES.split()])
    times = rng.choice([1, 3, shim.ALWAYS])
    fault = (f"{out}/", operations, int(OPERATIONS ** rng.random()), times, code)
    end = ended(Child(JOBS[name].commands(out), place / "log-fault", Weather(fault=fault)))
    valid(out)
    calm_again(name, out, place / "log")
    return f"{errno.errorcode[code]}: {'one sentence' if end else 'went on'}", {"errors": 1}


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    name, kind = rng.choice(NAMES), rng.choice([killed, failed])
    if shim.library() is None:
        return "no compiler", {}
    try:
        return kind(rng, name, place)
    except AssertionError as broken:
        raise AssertionError(f"{kind.__name__} in {name}: {broken}") from broken
