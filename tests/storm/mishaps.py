"""Mishaps around a command: signals, a full disk, read-only or vanishing folders, two processes, jumping
clocks.

Whatever it is, the command ends by itself with 0, 2 or 75 and without a traceback; and when the weather is
calm again, the same command ends with the bits of one that nothing happened to."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.storm.children import CALM, Child, Weather, faketime, finished, no_traceback, small_disk
from tests.storm.jobs import JOBS, Commands, pictures, reference, same

ENDS = (0, 2, 75)
NAMES = ("simclr", "moco", "clusters", "packed", "sweep", "study")


def ended(child: Child, allowed: tuple[int, ...] = ENDS) -> int:
    code = child.end()
    assert code in allowed, (code, child.output()[-3000:])
    no_traceback(child.output())
    if code > 0:
        sentences = [line for line in child.output().splitlines() if line.startswith("nearfar: ")]
        assert len(sentences) == 1, child.output()[-3000:]
    return code


def calm_again(name: str, out: Path, log: Path) -> None:
    """The same job to its end, and its bits."""
    assert finished(JOBS[name].commands(out), log) == 0, log.read_text()[-3000:]
    same(JOBS[name].result(out), reference(name)[0])


def signals(rng: random.Random, name: str, place: Path) -> str:
    """TERM, INT or HUP at a random moment of a random command of the job, maybe while it stands still."""
    out, kinds = place / "out", (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    out.mkdir()
    commands, duration = JOBS[name].commands(out), reference(name)[1]
    hit = rng.randrange(len(commands))
    if hit:
        assert finished(commands[:hit], place / "log-before") == 0
    child = Child([commands[hit]], place / "log-signal")
    child.wait_begun()
    child.wait(rng.random() * duration / len(commands))
    if rng.random() < 0.3:
        child.kill(signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.1))
    child.kill(rng.choice(kinds))
    child.kill(signal.SIGCONT)
    # a signal after the last line of a command has no handler
    code = ended(child, (0, 75, *(-number for number in kinds)))
    calm_again(name, out, place / "log")
    return "stopped by a signal" if code == 75 else "a signal came too late"


def full(rng: random.Random, name: str, place: Path) -> str:
    """Files or the file system are limited in size; then there is room again."""
    size = int(10 ** rng.uniform(2.5, 6.5))
    with small_disk(size) if rng.random() < 0.3 else small_disk(-1) as disk:
        out = (disk or place) / "out"
        out.mkdir()
        weather = CALM if disk else Weather(largest_file=size)
        code = ended(Child(JOBS[name].commands(out), place / "log-full", weather), (0, 2))
        if disk:
            shutil.copytree(out, place / "out")
    calm_again(name, place / "out", place / "log")
    return "no room" if code else "room enough"


def read_only(rng: random.Random, name: str, place: Path) -> str:
    """Folders of the job become read-only at a random moment, and writable again."""
    out, duration = place / "out", reference(name)[1]
    out.mkdir()
    child = Child(JOBS[name].commands(out), place / "log-read-only", Weather(plain_user=True))
    child.wait(rng.random() * duration)
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    locked = rng.sample(folders, rng.randint(1, len(folders)))
    for folder in locked:
        folder.chmod(0o555) if folder.exists() else None
    try:
        code = ended(child)
    finally:
        for folder in locked:
            folder.chmod(0o755) if folder.exists() else None
    calm_again(name, out, place / "log")
    return "read-only: refused" if code else "read-only: too late"


def vanishing(rng: random.Random, name: str, place: Path) -> str:
    """The folder, or part of it, is removed while the job writes to it; then it is done again."""
    out, duration = place / "out", reference(name)[1]
    out.mkdir()
    child = Child(JOBS[name].commands(out), place / "log-vanishing")
    child.wait(rng.random() * duration)
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    shutil.rmtree(rng.choice(folders), ignore_errors=True)
    code = ended(child)
    shutil.rmtree(out, ignore_errors=True)  # nothing is promised for the rest of a folder
    out.mkdir()
    calm_again(name, out, place / "log")
    return "vanished: refused" if code else "vanished: went on"


def together(rng: random.Random, name: str, place: Path) -> str:
    """The same command twice at once: one of them does it, or they share it."""
    out = place / "out"
    out.mkdir()
    children = [Child(JOBS[name].commands(out), place / f"log-{number}") for number in range(2)]
    if rng.random() < 0.5:
        children[0].wait(rng.random() * reference(name)[1])
        children[0].kill(signal.SIGKILL)
    codes = [child.end() for child in children]
    for child, code in zip(children, codes, strict=True):
        assert code in (*ENDS, -signal.SIGKILL), (codes, child.output()[-3000:])
        no_traceback(child.output())
    calm_again(name, out, place / "log")
    return f"together: {sorted(codes)}" if -signal.SIGKILL not in codes else "together: one killed"


def clocks(rng: random.Random, name: str, place: Path) -> str:
    """The wall clock jumps by years, files have arbitrary dates, and a killed process resumes in another
    year."""
    out, duration = place / "out", reference(name)[1]
    out.mkdir()
    child = Child(JOBS[name].commands(out), place / "log-clock", Weather(clock=rng.randrange(10**6)))
    child.wait(rng.random() * duration)
    child.kill(signal.SIGKILL)
    for path in [*out.rglob("*")]:
        if rng.random() < 0.5:
            os.utime(path, (when := rng.uniform(0, 4e9), when))
    if (library := faketime()) is not None and rng.random() < 0.5:
        environment = {**os.environ, "LD_PRELOAD": library, "FAKETIME": rng.choice(["+5y", "-5y", "+1d x50"])}
        for words in JOBS[name].commands(out):
            process = subprocess.run(
                [sys.executable, "-m", "nearfar", *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert process.returncode == 0, process.stderr[-3000:]
        outcome = "clock: every one moved"
    else:
        restarted = Child(JOBS[name].commands(out), place / "log-again", Weather(clock=rng.randrange(10**6)))
        assert ended(restarted) == 0, restarted.output()[-3000:]
        outcome = "clock: jumped"
    same(JOBS[name].result(out), reference(name)[0])
    return outcome


def data_vanish(rng: random.Random, name: str, place: Path) -> str:
    """A picture of the data is removed, cut or made a pipe while read: quarantined, refused, or without
    effect."""
    data, out = place / "data", place / "out"
    shutil.copytree(pictures(), data)
    out.mkdir()
    commands: Commands = [
        [word.replace(str(pictures()), str(data)) for word in words] for words in JOBS["simclr"].commands(out)
    ]
    child = Child(commands, place / "log")
    child.wait(rng.random() * reference("simclr")[1])
    file = rng.choice(sorted(data.rglob("*.png")))
    file.unlink()
    kind = rng.choice(["gone", "cut", "pipe"])
    if kind == "cut":
        file.write_bytes(b"\x89PNG")
    elif kind == "pipe":
        os.mkfifo(file)
    return f"data {kind}: {ended(child)}"


KINDS: dict[str, Callable[[random.Random, str, Path], str]] = {
    "signals": signals, "full": full, "read-only": read_only, "vanishing": vanishing, "together": together,
    "clocks": clocks,
    "data": data_vanish,
}  # fmt: skip


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    kind, name = rng.choice([*KINDS]), rng.choice(NAMES)
    try:
        return KINDS[kind](rng, name, place), {"mishaps": 1}
    except AssertionError as broken:
        raise AssertionError(f"{kind} in {name}: {broken}") from broken
