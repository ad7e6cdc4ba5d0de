"""One self-contained page about one run or several: `write_report`."""

from collections.abc import Sequence
from pathlib import Path

from nearfar.errors import UserError
from nearfar.report.facts import Summary
from nearfar.report.gather import gather
from nearfar.report.page import page
from nearfar.report.visuals import Detail
from nearfar.run.trained import Run
from nearfar.system.files import as_path, write_atomic

__all__ = ["write_report"]

POINTS, MOST = 3000, 50_000


def write_report(
    runs: Sequence[Run] | Run, out: str | Path, *, points: int = POINTS, summary: Summary | None = None
) -> Path:
    """Write the page about a run or several to `out` and return where it is.

    `points` is how many images at most the map shows and neighbours are looked for in; `summary` is a table that stands first. A page
    that was there is replaced only when the new one is complete.
    """
    runs, out = runs if isinstance(runs, Sequence) else [runs], as_path("out", out)
    if not runs:
        raise UserError("report was given no run; give at least one run folder")
    if not 1 <= points <= MOST:
        raise UserError(f"report: points was {points}; expected a whole number from 1 to {MOST}")
    if out.is_dir():
        raise UserError(f"report: out was the folder {out}; give a file such as {out / 'report.html'}")
    detail = Detail(points=points).shared(len(runs))
    text = page([gather(run, detail) for run in runs], summary)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, text)
    except OSError as problem:
        raise UserError(f"report {out} could not be written: {problem.strerror}") from problem
    return out
