"""What a study is: an experiment of a paper, run again, its figures beside the paper's.

    STUDY = Study("binary", "what it shows, in a line", run, draw)

`run(bench, **options)` computes a `Result`; its options are the parameters with a default, and the signature is
their schema; a parameter that is a dataclass stands for its fields, so that studies can share options, and if it has a keyword-only
field `changes`, every other key=value goes there. `draw(result)` makes the figure. A study that takes long computes each arm through
`bench.arm(settings, compute)`: a finished arm is kept in the study's folder, and the same command goes on from
there after an interruption. `bench.arms` does so for many, in several processes if asked.
"""

import hashlib
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nearfar.system.files import write_atomic
from nearfar.system.signals import exit_with_parent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = TypeVar("Value")
Cell = float | str | None  # a number, a claim in words, or nothing said


@dataclass(frozen=True)
class Row:
    """One line of a table: what the paper says and what came out here."""

    label: str
    paper: Cell
    ours: Cell
    spread: float | None = None  # standard deviation of ours over repetitions


@dataclass(frozen=True)
class Finding:
    """One figure or table of a paper."""

    name: str
    rows: tuple[Row, ...]
    curves: Mapping[str, Any] = field(default_factory=dict)  # what is drawn: in the JSON, not in the table
    source: str = ""  # where the paper's cells are from, exactly: paper, table, and how they were read

    def __post_init__(self) -> None:
        if any(row.paper is not None for row in self.rows) and not self.source:
            raise ValueError(f"{self.name!r} shows a paper's figures and does not say where they are from")

    def paper(self) -> dict[str, Cell]:
        return {row.label: row.paper for row in self.rows if row.paper is not None}

    def ours(self) -> dict[str, Any]:
        values = {
            row.label: row.ours if row.spread is None else {"mean": row.ours, "sd": row.spread}
            for row in self.rows
        }
        return {**values, "curves": dict(self.curves)} if self.curves else values


@dataclass(frozen=True)
class Result:
    """What a study found, and in a sentence each, where it differs from the paper and why."""

    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()

    def finding(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def as_json(self) -> dict[str, Any]:
        return {
            "paper": {finding.name: finding.paper() for finding in self.findings},
            "ours": {finding.name: finding.ours() for finding in self.findings},
            "sources": {finding.name: finding.source for finding in self.findings if finding.source},
        }


@dataclass
class Bench:
    """Where a study works: its folder, its finished arms, its voice."""

    folder: Path
    study: str
    earlier: float = 0.0  # seconds that arms found finished had taken

    def say(self, text: str) -> None:
        """A line of progress, on standard error."""
        print(f"{self.study}: {text}", file=sys.stderr, flush=True)

    def arm(self, settings: Mapping[str, Any], compute: Callable[[], Value]) -> Value:
        """What `compute` returns (anything JSON can hold), taken from the folder if it was computed before.

        `settings` must name all that the value depends on; change what an arm means, and a number for its
        version belongs among them.
        """
        found = self._finished(settings)
        if found is not None:
            self.earlier += found.get("seconds", 0.0)
            return found["value"]
        started = time.perf_counter()
        value = compute()
        path = self._file(settings)
        write_json(
            path, {"settings": dict(settings), "seconds": time.perf_counter() - started, "value": value}
        )
        # the first time and every later one return the same thing, tuples turned to lists and all
        return _read_json(path)["value"]

    def arms(
        self,
        settings: Sequence[Mapping[str, Any]],
        compute: Callable[[Mapping[str, Any]], Value],
        jobs: int = 1,
    ) -> list[Value]:
        """`compute(s)` of every s in `settings`, as by `arm`, `jobs` of them at a time.

        More than one job means processes of their own, which a small network uses far better than threads; they are
        spawned, so `compute` must be something pickle can name, and each writes the arms it finishes itself.
        """
        return cast(list[Value], self.arms_until(math.inf, settings, compute, jobs))

    def arms_until(
        self,
        moment: float,
        settings: Sequence[Mapping[str, Any]],
        compute: Callable[[Mapping[str, Any]], Value],
        jobs: int = 1,
    ) -> list[Value | None]:
        """`arms` of which none is begun after a moment of `time.monotonic`: None for each that was not computed, now or earlier."""
        # of two that are the same, one is computed
        missing = list({arm_name(s): s for s in settings if self._finished(s) is None}.values())
        if jobs > 1 and len(missing) > 1:
            self._in_processes(missing, compute, min(jobs, len(missing)), moment)
        values: list[Value | None] = []
        fresh, started = Bench(self.folder, self.study), time.monotonic()
        for s in settings:
            if time.monotonic() >= moment and self._finished(s) is None:
                values.append(None)
                continue
            # what has just been computed is no earlier work
            values.append((fresh if s in missing else self).arm(s, partial(compute, s)))
            if s in missing and jobs == 1:
                self._progress(missing.index(s) + 1, len(missing), started)
        return values

    def _progress(self, done: int, of: int, started: float) -> None:
        minutes = (time.monotonic() - started) / 60
        left = f", about {minutes / done * (of - done):.0f} to go" if 0 < done < of else ""
        self.say(f"{done} of {of} arms, {minutes:.0f} min{left}")

    def _in_processes(
        self,
        missing: Sequence[Mapping[str, Any]],
        compute: Callable[[Mapping[str, Any]], Any],
        jobs: int,
        moment: float,
    ) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        pool = ProcessPoolExecutor(jobs, context, initializer=exit_with_parent)
        bench = Bench(self.folder, self.study)
        waiting, running = list(missing), set[Future[Any]]()
        started = time.monotonic()
        try:
            while waiting or running:
                # handed over one by one: what lies in a pool's own queue would still be begun after a failure
                while waiting and len(running) < jobs and time.monotonic() < moment:
                    running.add(pool.submit(bench.arm, waiting[0], partial(compute, waiting.pop(0))))
                if not running:
                    break
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for arm in finished:
                    arm.result()
                self._progress(len(missing) - len(waiting) - len(running), len(missing), started)
        finally:
            pool.shutdown()

    def _file(self, settings: Mapping[str, Any]) -> Path:
        return self.folder / "arms" / f"{arm_name(settings)}.json"

    def _finished(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        found = _read_json(self._file(settings))
        same = isinstance(found, dict) and found.get("settings") == json.loads(json.dumps(dict(settings)))
        return found if same and "value" in found else None


def arm_name(settings: Mapping[str, Any]) -> str:
    """A short name that only these settings have."""
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Study:
    name: str
    about: str
    run: Callable[..., Result]
    draw: Callable[[Result], "Figure"]


def _read_json(path: Path) -> Any:
    """What a file holds; None if it is not there or was cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all, folders above it included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
