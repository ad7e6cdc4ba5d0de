"""`nf.sweep` and `nearfar sweep`: runs the cells of a grid or a search, selects, and writes the table."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nearfar.errors import UserError, check_whole
from nearfar.sweeps.engine import (
    FAILED,
    POLL_SECONDS,
    PRUNED,
    Cell,
    CellOutcome,
    CellStore,
    FileVersion,
    Pace,
    compute_cell,
    run_workers,
    share_cells,
)
from nearfar.sweeps.objectives import OnProbe
from nearfar.sweeps.request import SweepRequest
from nearfar.sweeps.search import Pruned, Search, SearchTrial, probe_curve, with_outcomes
from nearfar.sweeps.space import Point, space_of
from nearfar.sweeps.table import SweepResult, SweepRow, best_row, make_row
from nearfar.system.files import as_path, write_atomic, write_figure

DEFAULT_TRIALS = 20


def sweep(
    recipe: Any,
    data: Any = None,
    out: str | Path = "sweep",
    *,
    command: str = "pretrain",
    metric: str | None = None,
    test: Any = None,
    validation: float | None = None,
    same_labels: bool = False,
    search: str | None = None,
    trials: int | None = None,
    prune: bool = True,
    jobs: int = 1,
    quiet: bool = False,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> SweepResult:
    """Tries settings, selects on held-out training data, and reports the selected one on `test`.

        result = nf.sweep("simclr", "photos/", out="sweeps/a", temperature=[0.1, 0.5], batch_size=[64, 256],
        seed=[0, 1, 2], test="other/") result.best.point, result.best.mean, print(result)

    Lists are axes, `seed=[0, 1, 2]` repetitions; with `search="tpe"` and `trials=30`, text such as
    "1e-4..1e-1:log" is a range. Dotted settings go into `config`: `config={"selection.lower": [0, 0.5]}`.
    `command`: "pretrain"; "train" (give the data alone), "distill" (a teacher and data), "mi" (two files).
    Call it again to resume; calls from several processes share one folder.
    """
    subjects = (recipe,) if data is None else (recipe, data)
    space = space_of({**(config or {}), **settings})
    folder = as_path("out", out)
    request = SweepRequest(
        command, subjects, space, folder, metric, test, validation, same_labels, search, trials, prune, quiet
    )
    return run_sweep(request, jobs)


def run_sweep(request: SweepRequest, jobs: int = 1) -> SweepResult:
    """Computes the unfinished cells in `jobs` processes and writes sweep.json, sweep.csv and the figure."""
    check_whole("--jobs", jobs, 1)
    if jobs > 1 and not all(isinstance(subject, (str, Path)) for subject in request.subjects):
        raise UserError(
            f"jobs was {jobs}, but the data are a Python object of this process; write them to a file, or "
            "use jobs=1"
        )
    worker = SweepWorker(request)
    worker.check()
    if (request.out / "config.yaml").exists():
        raise UserError(f"--out {request.out} is a run; choose another folder for the sweep")
    is_data = any(
        isinstance(subject, (str, Path)) and Path(subject) == request.out for subject in request.subjects
    )
    if is_data and request.out.is_dir() and not (request.out / "claims").exists():
        raise UserError(f"--out {request.out} holds the data; choose another folder for the sweep")
    worker.store.create(f"sweep {request.title}")
    for note in () if request.quiet else worker.objective.notes():
        print(f"sweep: {note}", file=sys.stderr, flush=True)
    count = min(jobs, worker.remaining())
    if count > 1:
        run_workers(partial(_share_sweep, request, worker.failures), count)
    worker.work()
    result = worker.result()
    write_atomic(request.out / "sweep.json", result.as_text())
    write_atomic(request.out / "sweep.csv", result.as_csv())
    _draw(result, request.out)
    return result


def _share_sweep(request: SweepRequest, failures: frozenset[FileVersion]) -> None:
    SweepWorker(request, failures).work()


def _draw(result: SweepResult, folder: Path) -> None:
    """Draws figure.svg and figure.png if matplotlib is installed."""
    try:
        import matplotlib as mpl

        from nearfar.sweeps.pictures import draw
    except ModuleNotFoundError:
        print("sweep: no picture: pip install 'nearfar[report]'", file=sys.stderr)
        return
    with mpl.rc_context({"svg.hashsalt": "nearfar", "font.size": 9.0}):
        figure = draw(result)
        if figure is not None:
            write_figure(figure, folder / "figure.svg", metadata={"Date": None})
            write_figure(figure, folder / "figure.png", dpi=150)


class SweepWorker:
    """The cells of a sweep and their order; the same in every process that shares the folder."""

    def __init__(self, request: SweepRequest, failures: frozenset[FileVersion] | None = None) -> None:
        self.request, self.objective = request, request.objective()
        self.store = CellStore(request.out)
        self.failures = self.store.failures() if failures is None else failures
        self.metric = self.objective.metric
        self._cells: dict[str, Cell] = {}
        self._points: dict[str, tuple[Point, int]] = {}  # (point, seed) by the cell's name
        self._pace: Pace | None = None

    def cells(self, point: Point) -> list[Cell]:
        """One cell for each seed."""
        cells = []
        for seed in self.request.space.seeds:
            key = json.dumps([point, seed], default=str)
            if key not in self._cells:
                identity = self.objective.identity({**self.request.space.fixed, **point}, seed)
                label = ",".join(f"{name}={value}" for name, value in {**point, "seed": seed}.items())
                cell = self._cells[key] = Cell(label, identity)
                self._points[cell.name] = point, seed
            cells.append(self._cells[key])
        return cells

    @cached_property
    def search(self) -> Search | None:
        """The search, where points are proposed instead of listed."""
        request, space = self.request, self.request.space
        if request.search is None:
            return None
        point = {key: values[0] for key, values in space.axes.items()}
        point |= {key: int(s.low) if s.integers else s.low for key, s in space.ranges.items()}
        # two searches in one folder differ if their trials could
        facts = {**space.as_plain(), "method": request.search, "metric": self.metric, "prune": request.prune}
        identity = {"space": facts, "cells": [cell.identity for cell in self.cells(point)]}
        folder = request.out / "trials" / Cell("search", identity).digest
        count = DEFAULT_TRIALS if request.trials is None else request.trials
        return Search(space, folder, count, request.search, space.seeds[0], request.prune)

    def check(self) -> None:
        """Refuses bad settings before any work: every point of a grid, both ends of ranges."""
        space = self.request.space
        for end in ("low",) if self.search is None else ("low", "high"):
            ends = {key: getattr(span, end) for key, span in space.ranges.items()}
            ends = {key: int(value) if space.ranges[key].integers else value for key, value in ends.items()}
            for point in space.points():
                self.cells({**point, **ends})

    def remaining(self) -> int:
        """Unfinished trials or cells, whichever process works on them."""
        search = self.search
        if search is not None:
            return search.count - sum(self.ended(trial) for trial in search.proposed())
        return sum(not self.finished(cell) for cell in self.grid())

    def grid(self) -> list[Cell]:
        """All cells, the first seed of every point first."""
        by_point = [self.cells(point) for point in self.request.space.points()]
        return [cell for same_seed in zip(*by_point, strict=True) for cell in same_seed]

    def finished(self, cell: Cell, pruned: bool = False) -> bool:
        """Whether a cell has its value. Failures of earlier commands are computed again."""
        outcome = self.store.outcome(cell)
        if outcome is None:
            return False
        if outcome.state == FAILED:
            return outcome.file not in self.failures
        return self.metric in outcome.values or (pruned and outcome.state == PRUNED)

    def work(self) -> None:
        """Computes cells until all are finished, by this process or by others."""
        search = self.search
        if search is None:
            self._share(self.grid())
        else:
            self._search(search)

    def _share(self, cells: Sequence[Cell], on_probe: OnProbe | None = None, pruned: bool = False) -> None:
        finished = partial(self.finished, pruned=pruned)
        share_cells(self.store, cells, finished, partial(self._run, on_probe=on_probe))

    def _run(self, cell: Cell, on_probe: OnProbe | None = None) -> None:
        """Computes one claimed cell and reports it."""

        def compute(cell: Cell, folder: Path) -> dict[str, float]:
            point, seed = self._points[cell.name]
            value = self.objective.value({**self.request.space.fixed, **point}, seed, folder, on_probe)
            if not math.isfinite(value):
                raise UserError(f"{self.metric} was {value}, which is not finite")
            return {self.metric: value}

        self._report(cell, compute_cell(self.store, cell, compute, Pruned))

    def _report(self, cell: Cell, outcome: CellOutcome) -> None:
        if self.request.quiet:
            return
        value = outcome.values.get(self.metric)
        number = "" if value is None else f"{100 * value:.2f} %" if self.objective.percent else f"{value:.4f}"
        text = f"{self.metric} {number}" if number else outcome.state
        reason = f" ({outcome.reason})" if outcome.reason else ""
        search, remaining = self.search, self.remaining()
        if self._pace is None:
            self._pace = Pace(search.count if search else len(self.grid()), remaining + 1)
        progress = self._pace.text(remaining, "trials" if search else "cells")
        label = cell.label.replace(",", " ")
        print(f"sweep: {label}: {text}{reason}; {progress}", file=sys.stderr, flush=True)

    def _search(self, search: Search) -> None:
        while self.remaining():
            with ExitStack() as claims:
                trial = self._next_trial(search, claims)
                if trial is not None:
                    self._run_trial(search, trial)
            if trial is None:
                time.sleep(POLL_SECONDS)  # other processes propose or compute

    def _next_trial(self, search: Search, claims: ExitStack) -> SearchTrial | None:
        """Claims a trial until `claims` closes: one of a dead process or a new one, one process at a time."""
        with self.store.claim(f"{search.name}-proposals") as claimed:
            if not claimed:
                return None
            trials = self.trials(search)
            for trial in trials:
                claim = self.store.claim(f"{search.name}-{trial.name}")
                if not self.ended(trial) and claims.enter_context(claim):
                    return trial
            if len(trials) >= search.count:
                return None
            trial = search.propose(trials)
            claims.enter_context(self.store.claim(f"{search.name}-{trial.name}"))
            return trial

    def _run_trial(self, search: Search, trial: SearchTrial) -> None:
        for place, cell in enumerate(self.cells(trial.point)):
            folder = self.store.folder(cell)
            on_probe = partial(self._prune, search, trial, folder) if place == 0 else None
            self._share([cell], on_probe, pruned=True)
            outcome = self.store.outcome(cell)
            if outcome is None or self.metric not in outcome.values:
                return

    def _prune(self, search: Search, trial: SearchTrial, folder: Path, probe: dict[str, Any]) -> None:
        """Ends a run whose probe is below the median of earlier trials (later ones are ignored)."""
        curve = probe_curve(folder)
        earlier = [one for one in self.trials(search) if one.number < trial.number]
        if curve and search.is_behind(trial, earlier, curve):
            epoch, value = max(curve.items())
            raise Pruned(f"kNN probe {100 * value:.2f} % after epoch {epoch}, below the median")

    def trials(self, search: Search) -> list[SearchTrial]:
        """All proposed trials, with their outcomes."""
        trials = []
        for trial in search.proposed():
            cells = self.cells(trial.point)
            outcomes = [self.store.outcome(cell) for cell in cells]
            curve = probe_curve(self.store.folder(cells[0]))
            trials.append(with_outcomes(trial, outcomes, self.metric, curve))
        return trials

    def ended(self, trial: SearchTrial) -> bool:
        for cell in self.cells(trial.point):
            if not self.finished(cell, pruned=True):
                return False
            outcome = self.store.outcome(cell)
            if outcome is None or self.metric not in outcome.values:
                return True  # failed or pruned: its other seeds are skipped
        return True

    def points(self) -> list[Point]:
        if self.search is None:
            return list(self.request.space.points())
        return [trial.point for trial in self.search.proposed()]

    def rows(self) -> list[SweepRow]:
        unique = {json.dumps(point, default=str): point for point in self.points()}
        return [
            make_row(point, [self.store.outcome(cell) for cell in self.cells(point)], self.metric)
            for point in unique.values()
        ]

    def result(self) -> SweepResult:
        """The table, with the test figures of the best row."""
        request, rows = self.request, tuple(self.rows())
        best = best_row(rows)
        selected: list[Mapping[str, Any]] = []
        command = ""
        if best is not None:
            settings = {**request.space.fixed, **best.point}
            command = self.objective.command(settings)
            for cell in self.cells(best.point):
                seed = self._points[cell.name][1]
                selected.append(self.objective.test(settings, seed, self.store.folder(cell)))
        return SweepResult(
            title=request.title,
            metric=self.metric,
            percent=self.objective.percent,
            seeds=request.space.seeds,
            space=request.space.as_plain(),
            facts=self.objective.facts(),
            rows=rows,
            selected=tuple(selected),
            command=command,
            folder=str(request.out),
        )
