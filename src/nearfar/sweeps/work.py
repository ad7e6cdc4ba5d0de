"""What there is to do in a sweep, and doing it: the same in every process that shares the folder."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.sweeps.asked import Asked
from nearfar.sweeps.cells import DONE, FAILED, PRUNED, WAIT, Cell, Outcome, Storage, share_out
from nearfar.sweeps.objectives import Told
from nearfar.sweeps.search import Pruned, Search, Trial, became, curve_of
from nearfar.sweeps.space import Point
from nearfar.sweeps.table import Row, Sweep, best_of, row_of


class Work:
    """What there is to do, and doing it: the same in every process that shares the folder."""

    def __init__(self, asked: Asked, failed_before: frozenset[tuple[int, int]] | None = None) -> None:
        self.asked, self.objective = asked, asked.objective()
        self.storage = Storage(asked.out)
        # not by the clock: that of a file system may be another machine's, and any clock may jump
        self.failed_before = self.storage.failed() if failed_before is None else failed_before
        self.metric = self.objective.metric
        self._cells: dict[str, Cell] = {}
        self._left_at_first: int | None = None

    def cells(self, point: Point) -> list[Cell]:
        """One for each seed."""
        found = []
        for seed in self.asked.space.seeds:
            key = json.dumps([point, seed], default=str)
            if key not in self._cells:
                settings = {**self.asked.space.fixed, **point}
                self._cells[key] = Cell(point, seed, self.objective.identity(settings, seed))
            found.append(self._cells[key])
        return found

    @cached_property
    def search(self) -> Search | None:
        """The search, where points are proposed and not listed."""
        asked = self.asked
        if asked.search is None:
            return None
        point = {key: values[0] for key, values in asked.space.axes.items()}
        point |= {key: int(s.low) if s.whole else s.low for key, s in asked.space.ranges.items()}
        # the searches of one folder are told apart by all that their trials depend on
        plain = {
            **asked.space.as_plain(),
            "method": asked.search,
            "metric": self.metric,
            "prune": asked.prune,
        }
        name = Cell(plain, 0, {"space": plain, "cells": [c.identity for c in self.cells(point)]}).name[-12:]
        count = 20 if asked.trials is None else asked.trials
        seed = asked.space.seeds[0]
        return Search(asked.space, asked.out / "trials" / name, count, asked.search, seed, asked.prune)

    def check(self) -> None:
        """Refuses, before any work, what can be refused without it: every point of a grid, the ends of ranges."""
        space = self.asked.space
        for end in ("low",) if self.search is None else ("low", "high"):
            tried = {key: getattr(span, end) for key, span in space.ranges.items()}
            tried = {key: int(value) if space.ranges[key].whole else value for key, value in tried.items()}
            for point in space.points():
                self.cells({**point, **tried})

    def left(self) -> int:
        """How many tasks are not finished, whoever works on them."""
        search = self.search
        if search is not None:
            return search.count - sum(self.ended(trial) for trial in search.proposed())
        return sum(not self.finished(cell) for cell in self.grid())

    def grid(self) -> list[Cell]:
        """Every point's first seed first."""
        by_point = [self.cells(point) for point in self.asked.space.points()]
        return [cell for same_seed in zip(*by_point, strict=True) for cell in same_seed]

    def finished(self, cell: Cell, pruned: bool = False) -> bool:
        """Whether a cell has its value; what failed before this command began is tried again."""
        outcome = self.storage.outcome(cell)
        if outcome is None:
            return False
        if outcome.state == FAILED:
            return outcome.file not in self.failed_before
        return self.metric in outcome.values or (pruned and outcome.state == PRUNED)

    def do(self) -> None:
        """Works until all is done, by this process or by others."""
        search = self.search
        if search is None:
            self._share(self.grid())
        else:
            self._search(search)

    def _share(self, cells: Sequence[Cell], told: Told | None = None, pruned: bool = False) -> None:
        named = {cell.name: cell for cell in cells}
        finished = lambda name: self.finished(named[name], pruned)
        share_out(self.storage, list(named), finished, lambda name: self.run(named[name], told))

    def run(self, cell: Cell, told: Told | None = None) -> None:
        """Does one cell, which this process has claimed, and writes down how it ended."""
        storage, settings = self.storage, {**self.asked.space.fixed, **cell.settings}
        storage.note("begun", cell.name)
        started = time.perf_counter()
        outcome = Outcome(DONE, {})
        try:
            value = self.objective.value(settings, cell.seed, storage.folder(cell), told)
            outcome = Outcome(DONE, {self.metric: value})
        except Pruned as problem:
            outcome = Outcome(PRUNED, {}, str(problem))
        except UserError as problem:  # it may be the settings' own: the others go on
            outcome = Outcome(FAILED, {}, str(problem))
        seconds = time.perf_counter() - started
        storage.write(cell, Outcome(outcome.state, outcome.values, outcome.why, seconds))
        storage.note(outcome.state, cell.name)
        self._say(cell, outcome)

    def _say(self, cell: Cell, outcome: Outcome) -> None:
        if self.asked.quiet:
            return
        value = outcome.values.get(self.metric)
        number = "" if value is None else f"{100 * value:.2f} %" if self.objective.share else f"{value:.4f}"
        shown = f"{self.metric} {number}" if number else outcome.state
        why = f" ({outcome.why})" if outcome.why else ""
        print(f"sweep: {cell}: {shown}{why}; {self._progress()}", file=sys.stderr, flush=True)

    def _progress(self) -> str:
        """How much is done by everybody, and how long the rest takes at the pace since this command began."""
        search = self.search
        total = search.count if search else len(self.grid())
        left = self.left()
        if self._left_at_first is None:
            self._left_at_first = left + 1
        pace = (time.monotonic() - self.asked.began) / max(1, self._left_at_first - left)
        said = f"{total - left} of {total} {'trials' if search else 'cells'}"
        return f"{said}, about {_duration(pace * left)} left" if left else said

    def _search(self, search: Search) -> None:
        while self.left():
            with ExitStack() as held:
                trial = self._next(search, held)
                if trial is not None:
                    self._try(search, trial)
            if trial is None:
                time.sleep(WAIT)  # others propose, or are at work on the rest

    def _next(self, search: Search, held: ExitStack) -> Trial | None:
        """A trial that nobody works on, its claim put into `held`: one whose owner died, or a new one. One process at a time proposes."""
        with self.storage.claim(f"{search.name}-proposals") as mine:
            if not mine:
                return None
            trials = self.trials(search)
            for trial in trials:
                if not self.ended(trial) and held.enter_context(
                    self.storage.claim(f"{search.name}-{trial.name}")
                ):
                    return trial
            if len(trials) >= search.count:
                return None
            trial = search.propose(trials)
            held.enter_context(self.storage.claim(f"{search.name}-{trial.name}"))
            return trial

    def _try(self, search: Search, trial: Trial) -> None:
        for place, cell in enumerate(self.cells(trial.point)):
            told = partial(self._judge, search, trial, self.storage.folder(cell)) if place == 0 else None
            self._share([cell], told, pruned=True)
            outcome = self.storage.outcome(cell)
            if outcome is None or self.metric not in outcome.values:
                return

    def _judge(self, search: Search, trial: Trial, run: Path, probe: dict[str, Any]) -> None:
        """Ends a run whose probe falls behind; the trials after it in number do not count, as they would not in one process."""
        curve = curve_of(run)
        others = [other for other in self.trials(search) if other.number < trial.number]
        if curve and search.behind(trial, others, curve):
            epoch, value = max(curve.items())
            raise Pruned(f"kNN probe {100 * value:.2f} % after epoch {epoch}, below the median")

    def trials(self, search: Search) -> list[Trial]:
        """All trials, with what became of them."""
        found = []
        for trial in search.proposed():
            cells = self.cells(trial.point)
            outcomes = [self.storage.outcome(cell) for cell in cells]
            found.append(became(trial, outcomes, self.metric, curve_of(self.storage.folder(cells[0]))))
        return found

    def ended(self, trial: Trial) -> bool:
        cells = self.cells(trial.point)
        for cell in cells:
            if not self.finished(cell, pruned=True):
                return False
            outcome = self.storage.outcome(cell)
            if outcome is None or self.metric not in outcome.values:
                return True  # failed or pruned: the other seeds are not tried
        return True

    def points(self) -> list[Point]:
        search = self.search
        return list(self.asked.space.points()) if search is None else [t.point for t in search.proposed()]

    def rows(self) -> list[Row]:
        unique = {json.dumps(point, default=str): point for point in self.points()}
        return [
            row_of(point, [self.storage.outcome(cell) for cell in self.cells(point)], self.metric)
            for point in unique.values()
        ]

    def found(self) -> Sweep:
        """The table; the best of it is looked at on data that no choice looked at."""
        asked, rows = self.asked, tuple(self.rows())
        best = best_of(rows)
        chosen: list[Mapping[str, Any]] = []
        command = ""
        if best is not None:
            settings = {**asked.space.fixed, **best.point}
            command = self.objective.command(settings)
            chosen = [
                self.objective.test(settings, c.seed, self.storage.folder(c)) for c in self.cells(best.point)
            ]
        return Sweep(
            title=asked.title,
            metric=self.metric,
            share=self.objective.share,
            seeds=asked.space.seeds,
            space=asked.space.as_plain(),
            facts=self.objective.facts(),
            rows=rows,
            chosen=tuple(chosen),
            command=command,
            folder=str(asked.out),
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
