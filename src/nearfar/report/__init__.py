"""One self-contained page about one run or several: `write_report`."""

from collections.abc import Sequence
from pathlib import Path

from nearfar.errors import UserError, check_whole
from nearfar.report.facts import Detail, Section
from nearfar.report.gather import gather
from nearfar.report.page import page
from nearfar.run.trained import Run
from nearfar.system.files import as_path, write_atomic

__all__ = ["write_report"]

DEFAULT_POINTS, MAX_POINTS = 3000, 50_000


def write_report(
    runs: Sequence[Run] | Run,
    out: str | Path,
    *,
    points: int = DEFAULT_POINTS,
    summary: Section | None = None,
) -> Path:
    """Writes the page about one or several runs to `out` and returns its path.

    `points`: the largest number of images in the map and the neighbour search. `summary`: a table at the top.
    An existing page is replaced only when the new one is complete.
    """
    runs, out = runs if isinstance(runs, Sequence) else [runs], as_path("out", out)
    if not runs:
        raise UserError("report needs at least one run folder")
    check_whole("report: points", points, 1, MAX_POINTS)
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
