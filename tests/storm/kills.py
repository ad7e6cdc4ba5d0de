"""Real processes killed at random moments of every stage: the end is bit-equal to never having been killed."""

import random
import signal
import time
from pathlib import Path

from nearfar.run import checkpoints
from tests.storm.children import Child, no_traceback
from tests.storm.jobs import JOBS, reference, same, started

MOST = 12  # kills of one job; then it is left alone
OFTEN = 6  # kills, while a job that nothing happens to lasts
LOST = 75  # what a rank says whose peer is gone


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    name = rng.choice([*JOBS])
    job, (whole, duration), out = JOBS[name], reference(name), place / "out"
    kills = 0
    for attempt in range(MOST + 1):
        children = started(job, out, place / f"log-{attempt}")
        if attempt < MOST:
            # a few in each job: as a beginning costs little, most of the time is work that was not done before
            children[0].wait(rng.expovariate(OFTEN / duration))
            kills += struck(children, rng)
        codes = [child.end() for child in children]
        valid(out)
        for child, code in zip(children, codes, strict=True):
            assert code in (0, -signal.SIGKILL, LOST), (name, code, child.said()[-3000:])
            no_traceback(child.said())
        if set(codes) == {0}:
            break
        assert attempt < MOST, (name, codes)
    same(job.result(out), whole)
    return f"{name}: same bits", {"kills": kills}


def struck(children: list[Child], rng: random.Random) -> int:
    """Kills one of them, maybe after a pause in which it stood still; a peer left behind goes too, as a launcher would have it."""
    child = rng.choice(children)
    if child.process.exitcode is not None:
        return 0
    if rng.random() < 0.2:
        child.kill(signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.2))
        child.kill(signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.2))
    child.kill(signal.SIGKILL)
    for other in children:
        if other is not child and other.wait(5.0) is None:
            other.kill(signal.SIGKILL)
    return 1 if child.process.exitcode == -signal.SIGKILL else 0


def valid(out: Path) -> None:
    """Every checkpoint that has its name is whole."""
    for folder in out.rglob("ckpt/step-*"):
        assert checkpoints.valid(folder), folder
