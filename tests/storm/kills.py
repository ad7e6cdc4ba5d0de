"""Real processes killed at random moments of every stage: the end is bit-equal to an undisturbed run."""

import random
import signal
import time
from pathlib import Path

from nearfar.run import checkpoints
from tests.storm.children import Child, no_traceback
from tests.storm.jobs import JOBS, reference, same, started

MAX_KILLS = 12  # kills of one job; then it is left alone
OFTEN = 6  # kills, while a job that nothing happens to lasts
LOST = 75  # exit code of a rank whose peer is gone


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    name = rng.choice([*JOBS])
    job, (expected, duration), out = JOBS[name], reference(name), place / "out"
    kills = 0
    for attempt in range(MAX_KILLS + 1):
        children = started(job, out, place / f"log-{attempt}")
        if attempt < MAX_KILLS:
            # a few in each job: a start costs little, so most of the time is new work
            children[0].wait(rng.expovariate(OFTEN / duration))
            kills += struck(children, rng)
        codes = [child.end() for child in children]
        valid(out)
        for child, code in zip(children, codes, strict=True):
            assert code in (0, -signal.SIGKILL, LOST), (name, code, child.output()[-3000:])
            no_traceback(child.output())
        if set(codes) == {0}:
            break
        assert attempt < MAX_KILLS, (name, codes)
    same(job.result(out), expected)
    return f"{name}: same bits", {"kills": kills}


def struck(children: list[Child], rng: random.Random) -> int:
    """Kills one of them, maybe after a pause (SIGSTOP); its peer is killed too, as a launcher would do."""
    child = rng.choice(children)
    if child.process.exitcode is not None:
        return 0
    if rng.random() < 0.2:
        child.kill(signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.2))
        child.kill(signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.2))
    child.kill(signal.SIGKILL)
    for peer in children:
        if peer is not child and peer.wait(5.0) is None:
            peer.kill(signal.SIGKILL)
    return 1 if child.process.exitcode == -signal.SIGKILL else 0


def valid(out: Path) -> None:
    """Every checkpoint that has its name is whole."""
    for folder in out.rglob("ckpt/step-*"):
        assert checkpoints.valid(folder), folder
