"""A cell: one training (or estimate) with one choice of settings and one seed, in a folder of its own; and who does which.

    DIR/cells/temperature=0.1,seed=0-1a2b3c4d/    the run, and result.json when it ended
    DIR/claims/…                                  a lock for each cell, held by the process that works on it
    DIR/log.jsonl                                 who began and finished what, and when

The digits at the end of a name stand for all that the result depends on, so a finished cell is found again exactly when the same would be
computed again, whichever grid asks for it.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.system.files import check_folder, write_atomic
from nearfar.system.lock import open_lock, try_lock
from nearfar.system.untrusted import read_json

DONE, PRUNED, FAILED = "done", "pruned", "failed"
WRITTEN = ("sweep.csv", "figure.svg", "figure.png", "log.jsonl")  # beside sweep.json
LONGEST_NAME = 100  # characters of a folder's name that tell its settings
WAIT = 0.2  # seconds between looks at what others are doing


@dataclass(frozen=True)
class Cell:
    """`settings` are the values of the axes; `identity` is all that the result depends on, those included."""

    settings: Mapping[str, Any]
    seed: int
    identity: Mapping[str, Any]

    @property
    def name(self) -> str:
        told = ",".join(f"{key}={value}" for key, value in {**self.settings, "seed": self.seed}.items())
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True, default=str).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9=,.+_-]', '_', told)[:LONGEST_NAME]}-{digest[:12]}"

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in {**self.settings, "seed": self.seed}.items())


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `values` by metric, or why there are none."""

    state: str
    values: Mapping[str, float]
    why: str = ""
    seconds: float = 0.0
    file: tuple[int, int] = (0, 0)  # which file says so: another one whenever it is written anew


@dataclass(frozen=True)
class Storage:
    """The folder of a sweep."""

    path: Path

    def made(self, title: str) -> "Storage":
        """The folder, there from now on. Its table is that of one command and its subjects: another's would be overwritten."""
        if (self.path / "config.yaml").exists():
            raise UserError(f"--out {self.path} is a run; choose another folder for the sweep")
        table = read_json(self.path / "sweep.json")
        before = table.get("sweep") if isinstance(table, Mapping) else None
        if before not in (None, title):
            raise UserError(
                f"--out {self.path} holds the table of another sweep, {before}, and this one is {title}; choose another folder"
            )
        if before is None:
            begun = (self.path / "claims").is_dir()
            names = ("sweep.json", *(() if begun else WRITTEN), "result.json", "arms")
            check_folder(self.path, names, "a sweep")
        try:
            for name in ("cells", "claims"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"--out {self.path} cannot be written: {problem.strerror}") from None
        return self

    def folder(self, cell: Cell) -> Path:
        return self.path / "cells" / cell.name

    def outcome(self, cell: Cell) -> Outcome | None:
        file = self.folder(cell) / "result.json"
        stored = read_json(file)
        if not isinstance(stored, Mapping) or stored.get("state") not in (DONE, PRUNED, FAILED):
            return None
        values = {key: float(value) for key, value in dict(stored.get("values") or {}).items()}
        why, seconds = str(stored.get("why") or ""), float(stored.get("seconds") or 0.0)
        held = file.stat()
        return Outcome(stored["state"], values, why, seconds, (held.st_ino, held.st_mtime_ns))

    def failed(self) -> frozenset[tuple[int, int]]:
        """The files that tell of a failure now."""
        stored = ((file, read_json(file)) for file in (self.path / "cells").glob("*/result.json"))
        told = [
            file.stat()
            for file, found in stored
            if isinstance(found, Mapping) and found.get("state") == FAILED
        ]
        return frozenset((held.st_ino, held.st_mtime_ns) for held in told)

    def write(self, cell: Cell, outcome: Outcome) -> None:
        before = self.outcome(cell)
        seconds = outcome.seconds + (before.seconds if before else 0.0)
        kept = dict(before.values) if before else {}
        told = {
            "settings": dict(cell.settings),
            "seed": cell.seed,
            "state": outcome.state,
            "values": {**kept, **outcome.values},
            "why": outcome.why,
            "seconds": round(seconds, 3),
        }
        folder = self.folder(cell)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "result.json", json.dumps(told, indent=1, default=str) + "\n")

    def note(self, event: str, what: str) -> None:
        """A line of log.jsonl; one write, so lines of several processes do not mix."""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        row = {"time": now, "process": os.getpid(), "event": event, "cell": what}
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Whether this process has the cell to itself, as long as it stays here or lives."""
        with open_lock(self.path / "claims" / f"{name}.lock") as lock:
            yield try_lock(lock)


def share_out(
    storage: Storage,
    names: Sequence[str],
    finished: Callable[[str], bool],
    work: Callable[[str], None],
) -> None:
    """Does of the named what nobody has done and nobody is doing, until all is done; a dead owner's is taken over.

    Whether something is finished is asked again after it was claimed: its owner may have ended in between.
    """
    left = [name for name in names if not finished(name)]
    while left:
        began = len(left)
        for name in left:
            with storage.claim(name) as mine:
                if mine and not finished(name):
                    work(name)
        left = [name for name in left if not finished(name)]
        if len(left) == began:
            time.sleep(WAIT)
