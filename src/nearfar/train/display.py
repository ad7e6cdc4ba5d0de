"""Progress for people: a live bar on a terminal, a plain line from time to time elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nearfar.errors import counted, worded


class Display:
    """Shows rows and messages on standard error; `quiet` shows nothing. `expectation`: once the speed is known,
    the run's duration is shown in one line that ends with this text."""

    LINE_SECONDS = 10.0  # between plain lines
    WINDOW_SECONDS = 60.0  # over which the speed is measured
    MIN_SECONDS = 5.0  # of steps before the time left is shown

    def __init__(
        self,
        steps: int,
        start: int,
        epochs: int,
        unit: str = "images",
        quiet: bool = False,
        expectation: str | None = None,
    ) -> None:
        self._steps, self._start, self._epochs = steps, start, epochs
        self._expectation = expectation
        self._unit, self._quiet = unit, quiet
        self._last = time.monotonic()
        self._history: deque[tuple[float, int]] = deque()  # (time, step) of the last minute
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not quiet:
            columns = (BarColumn(bar_width=8), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("starting", total=steps, completed=start)

    def __enter__(self) -> "Display":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, row: Mapping[str, Any]) -> None:
        self._record(row["step"])
        self._show_expectation()
        if self._bar and len(self._history) == 1:
            # the first step compiles, so the bar's clock starts after it
            self._bar.reset(self._task, completed=row["step"], description=self._line(row))
        elif self._bar:
            self._bar.update(self._task, completed=row["step"], description=self._line(row))
        elif time.monotonic() - self._last >= self.LINE_SECONDS or row["step"] == self._steps:
            self._last = time.monotonic()
            self.say(f"{self._line(row)}  {self._time_left()}")

    def say(self, message: str) -> None:
        message = worded(message)
        if self._bar:
            self._bar.console.print(message, highlight=False, markup=False)
        elif not self._quiet:
            print(message, file=sys.stderr, flush=True)

    def _line(self, row: Mapping[str, Any]) -> str:
        loss = "not finite" if row["loss"] is None else f"{row['loss']:.3f}"
        text = f"epoch {row['epoch']:.1f}/{self._epochs}  loss {loss}"
        if row["nats"] is not None:
            ceiling = "" if row["ceiling"] is None else f" (at most {row['ceiling']:.2f})"
            text += f"  objective {row['nats']:.2f} nats{ceiling}"
        return f"{text}  {row['images_per_s']:.0f} {self._unit}/s"

    def _record(self, step: int) -> None:
        time_now = time.monotonic()
        self._history.append((time_now, step))
        while time_now - self._history[0][0] > self.WINDOW_SECONDS and len(self._history) > 2:
            self._history.popleft()

    def _step_seconds(self) -> float | None:
        """Of the last minute, without the first step, which compiles and fills caches; None: not known yet."""
        (start, first_step), (end, step) = self._history[0], self._history[-1]
        return (end - start) / (step - first_step) if end - start >= self.MIN_SECONDS else None

    def _show_expectation(self) -> None:
        step_seconds = self._step_seconds()
        if self._expectation is None or step_seconds is None:
            return
        minutes = max(1, round(step_seconds * (self._steps - self._start) / 60))
        self.say(f"about {counted(minutes, 'minutes')} {self._expectation}")
        self._expectation = None

    def _time_left(self) -> str:
        step = self._history[-1][1]
        if step == self._steps:
            return "0 s left"
        step_seconds = self._step_seconds()
        if step_seconds is None:
            return "time left unknown"
        seconds = step_seconds * (self._steps - step)
        return f"{seconds / 60:.1f} min left" if seconds >= 60 else f"{seconds:.0f} s left"
