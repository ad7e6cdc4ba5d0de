"""What a study is: an experiment of a paper, run again, its figures beside the paper's.

    STUDY = Study("binary", "what it shows, in a line", run, draw)

`run(bench, **options)` computes a `Result`; its options are the parameters with a default, and the signature is
their schema. `draw(result)` makes the figure. A study that takes long computes each arm through
`bench.arm(settings, compute)`: a finished arm is kept in the study's folder, and the same command goes on from
there after an interruption.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
        key = json.dumps(dict(settings), sort_keys=True)
        path = self.folder / "arms" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        found = _read_json(path)
        if isinstance(found, dict) and found.get("settings") == json.loads(key) and "value" in found:
            self.earlier += found.get("seconds", 0.0)
            return found["value"]
        started = time.perf_counter()
        value = compute()
        write_json(
            path, {"settings": dict(settings), "seconds": time.perf_counter() - started, "value": value}
        )
        # the first time and every later one return the same thing, tuples turned to lists and all
        return _read_json(path)["value"]


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
    """Whole or not at all: written beside, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.part")
    fresh.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(fresh, path)
