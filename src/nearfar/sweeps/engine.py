"""The resume engine of sweeps, studies and semi: cells in folders, claimed by locks, written atomically.

    DIR/cells/temperature=0.1,seed=0-1a2b3c4d/    a cell's files, with result.json once it ended
    DIR/claims/NAME.lock                          held by the process that computes the cell, released when it ends or dies
    DIR/log.jsonl                                 start and end of each cell, with process and time

A cell's digest covers everything that its values depend on, so a finished cell is reused exactly when the
same would be computed again. Rerun a command to resume it; start it several times, and the processes share
the cells.
"""

import hashlib
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.core.tables import duration
from nearfar.errors import Stopped, UserError
from nearfar.system.files import append_line, check_folder, write_atomic
from nearfar.system.lock import open_lock, try_lock
from nearfar.system.signals import exit_with_parent
from nearfar.system.untrusted import read_json

COMPLETED, PRUNED, FAILED = "done", "pruned", "failed"
STATES = (COMPLETED, PRUNED, FAILED)
RESULT_FILE = "result.json"
OWNER_FILE = "claims/owner.json"
# files that sweeps, studies, semi and runs write into their folder
OUTPUT_FILES = (
    "config.yaml", "sweep.json", "sweep.csv", "semi.json", "result.json", "figure.svg", "figure.png", "log.jsonl",
)  # fmt: skip
MAX_LABEL = 100  # characters of a folder's name that describe the cell
POLL_SECONDS = 0.2  # between looks at cells that other processes compute
EXIT_RESUMABLE, EXIT_USER_ERROR = 75, 2  # exit codes of worker processes


@dataclass(frozen=True)
class Cell:
    """One training or computation. `identity`: everything the values depend on, as JSON; `label`: its
    description for people; `folder`: a fixed folder below the store, in place of cells/LABEL-DIGEST."""

    label: str
    identity: Mapping[str, Any]
    folder: str = ""

    @cached_property
    def digest(self) -> str:
        text = json.dumps(self.identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def name(self) -> str:
        label = re.sub(r"[^A-Za-z0-9=,.+_-]", "_", self.folder or self.label)[:MAX_LABEL]
        return f"{label}-{self.digest}"


FileVersion = tuple[int, int]  # inode and time of modification


def file_version(file: Path) -> FileVersion:
    """Identifies one version of a file: a rewritten file has another inode or time. No clock is compared."""
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: its values (JSON by name), or the reason why there are none."""

    state: str
    values: Mapping[str, Any]
    reason: str = ""
    seconds: float = 0.0
    file: FileVersion | None = None


@dataclass(frozen=True)
class CellStore:
    """A folder of cells."""

    path: Path

    def create(self, owner: str) -> None:
        """Creates the folder for an owner such as "study ring"; refuses that of another owner."""
        self.check_owner(owner)
        try:
            for name in ("cells", "claims"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / OWNER_FILE, json.dumps({"owner": owner}) + "\n")
        except OSError as problem:
            raise UserError(f"--out {self.path} cannot be written: {problem.strerror}") from None

    def check_owner(self, owner: str) -> None:
        stored = read_json(self.path / OWNER_FILE)
        previous = stored.get("owner") if isinstance(stored, Mapping) else None
        if previous is None:
            check_folder(self.path, OUTPUT_FILES, f"the {owner}")
        elif previous != owner:
            raise UserError(
                f"--out {self.path} belongs to the {previous}; choose another folder for the {owner}"
            )

    def folder(self, cell: Cell) -> Path:
        return self.path / cell.folder if cell.folder else self.path / "cells" / cell.name

    def outcome(self, cell: Cell) -> CellOutcome | None:
        """The stored outcome; None if there is none, or the file is damaged or of another cell."""
        file = self.folder(cell) / RESULT_FILE
        stored = read_json(file)
        if not isinstance(stored, Mapping) or stored.get("digest") != cell.digest:
            return None
        values, seconds = stored.get("values"), stored.get("seconds")
        if stored.get("state") not in STATES or not isinstance(values, Mapping):
            return None
        reason = str(stored.get("reason") or "")
        seconds = float(seconds) if isinstance(seconds, (int, float)) else 0.0
        return CellOutcome(stored["state"], values, reason, seconds, file_version(file))

    def write(self, cell: Cell, outcome: CellOutcome) -> None:
        """Writes result.json atomically. Values that the cell had already under other names stay."""
        previous = self.outcome(cell)
        content = {
            "cell": cell.label,
            "digest": cell.digest,
            "state": outcome.state,
            "values": {**(previous.values if previous else {}), **outcome.values},
            "reason": outcome.reason,
            "seconds": round(outcome.seconds + (previous.seconds if previous else 0.0), 3),
        }
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        folder = self.folder(cell)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RESULT_FILE, text)

    def failures(self) -> frozenset[FileVersion]:
        """The results in cells/ that report a failure now. A later command computes these cells again."""
        stored = ((file, read_json(file)) for file in (self.path / "cells").glob(f"*/{RESULT_FILE}"))
        return frozenset(
            file_version(file)
            for file, content in stored
            if isinstance(content, Mapping) and content.get("state") == FAILED
        )

    def log(self, event: str, cell: str) -> None:
        """Appends a line to log.jsonl."""
        time_text = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        row = {"time": time_text, "process": os.getpid(), "event": event, "cell": cell}
        append_line(self.path / "log.jsonl", json.dumps(row))

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Whether this process has the cell to itself, until the block ends or the process dies."""
        with open_lock(self.path / "claims" / f"{name}.lock") as lock:
            yield try_lock(lock)


Compute = Callable[[Cell, Path], Mapping[str, Any]]  # (cell, its folder) -> values


def compute_cell(
    store: CellStore, cell: Cell, compute: Compute, pruned: type[Exception] | tuple[()] = ()
) -> CellOutcome:
    """Computes one claimed cell and stores its outcome; a `UserError` fails this cell only."""
    store.log("begun", cell.name)
    started = time.perf_counter()
    try:
        outcome = CellOutcome(COMPLETED, compute(cell, store.folder(cell)))
    except pruned as problem:
        outcome = CellOutcome(PRUNED, {}, str(problem))
    except UserError as problem:
        outcome = CellOutcome(FAILED, {}, str(problem))
    seconds = time.perf_counter() - started
    store.write(cell, CellOutcome(outcome.state, outcome.values, outcome.reason, seconds))
    store.log(outcome.state, cell.name)
    return outcome


def share_cells(
    store: CellStore,
    cells: Sequence[Cell],
    finished: Callable[[Cell], bool],
    work: Callable[[Cell], None],
    deadline: float = math.inf,
) -> None:
    """Runs every unfinished, unclaimed cell, and those of dead processes; returns when all are done.

    `deadline`: a moment of `time.monotonic` after which no cell is started.
    """
    remaining = [cell for cell in cells if not finished(cell)]
    while remaining and time.monotonic() < deadline:
        count = len(remaining)
        for cell in remaining:
            if time.monotonic() >= deadline:
                return
            with store.claim(cell.name) as claimed:
                # checked again: its owner may have finished it before the claim
                if claimed and not finished(cell):
                    work(cell)
        remaining = [cell for cell in remaining if not finished(cell)]
        if len(remaining) == count:
            time.sleep(POLL_SECONDS)


@dataclass
class CellWorker:
    """Computes cells of a store until all are finished; the same in every process that shares it."""

    store: CellStore
    cells: tuple[Cell, ...]
    compute: Compute
    failures: frozenset[FileVersion | None]  # of earlier commands: computed again
    deadline: float = math.inf
    title: str = ""  # for progress on standard error; none without

    def finished(self, cell: Cell) -> bool:
        outcome = self.store.outcome(cell)
        return outcome is not None and (outcome.state == COMPLETED or outcome.file not in self.failures)

    def remaining(self) -> int:
        return sum(not self.finished(cell) for cell in self.cells)

    def __call__(self) -> None:
        pace = Pace(len(self.cells), self.remaining())

        def work(cell: Cell) -> None:
            outcome = compute_cell(self.store, cell, self.compute)
            if self.title:
                reason = f" failed ({outcome.reason})" if outcome.reason else ""
                text = f"{self.title}: {cell.label}{reason}; {pace.text(self.remaining(), 'cells')}"
                print(text, file=sys.stderr, flush=True)

        share_cells(self.store, self.cells, self.finished, work, self.deadline)


def run_cells(
    store: CellStore,
    cells: Sequence[Cell],
    compute: Compute,
    *,
    owner: str,
    jobs: int = 1,
    deadline: float = math.inf,
    title: str = "",
) -> list[CellOutcome | None]:
    """The outcome of every cell, computed now or before; None for cells that the deadline left out.

    With `jobs` above 1, that many processes share the cells; `compute` must then be picklable. The first
    failure is raised, after the other cells have ended.
    """
    store.create(owner)
    unique = tuple({cell.name: cell for cell in cells}.values())
    outcomes = (store.outcome(cell) for cell in unique)
    failures = frozenset(outcome.file for outcome in outcomes if outcome and outcome.state == FAILED)
    worker = CellWorker(store, unique, compute, failures, deadline, title)
    count = min(jobs, worker.remaining())
    if count > 1 and time.monotonic() < deadline:
        run_workers(worker, count)
    worker()
    results = [store.outcome(cell) if worker.finished(cell) else None for cell in cells]
    for outcome in results:
        if outcome is not None and outcome.state == FAILED:
            raise UserError(outcome.reason)
    return results


def run_workers(work: Callable[[], None], count: int) -> None:
    """Calls a picklable `work` in `count` processes of one thread each, and stops them with this one."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    workers = [context.Process(target=_work_in_process, args=(work,)) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except BaseException:
        for worker in workers:
            worker.terminate()  # a training saves a checkpoint first
        for worker in workers:
            worker.join()
        raise
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if EXIT_RESUMABLE in codes:
        raise Stopped("stopped; finished cells are saved, and the same command resumes")
    if codes:
        raise Stopped(f"a worker process ended with code {codes[0]}; the same command resumes")


def _work_in_process(work: Callable[[], None]) -> None:
    exit_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        work()
    except (Stopped, KeyboardInterrupt):
        sys.exit(EXIT_RESUMABLE)
    except (UserError, OSError) as problem:
        print(f"nearfar: {problem}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)


class Pace:
    """How much is finished, and an estimate of the remaining time from the pace since the command began."""

    def __init__(self, total: int, remaining: int) -> None:
        self.total, self.first = total, remaining
        self.started = time.monotonic()

    def text(self, remaining: int, unit: str) -> str:
        """`3 of 8 cells, about 4 min left`."""
        count = f"{self.total - remaining} of {self.total} {unit}"
        pace = (time.monotonic() - self.started) / max(1, self.first - remaining)
        return f"{count}, about {duration(pace * remaining)} left" if remaining else count
