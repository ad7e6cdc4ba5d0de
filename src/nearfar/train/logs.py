"""What a run says while it trains: metrics.jsonl, TensorBoard, and a line for people."""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nearfar.errors import UserError
from nearfar.run.folder import RunFolder
from nearfar.run.metrics import rewind_metrics


class Log:
    """Appends rows to metrics.jsonl and mirrors their numbers to TensorBoard, where that is installed."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = RunFolder(folder).metrics
        rewind_metrics(self._path, step)
        self._file = self._path.open("a", encoding="utf-8")
        self._said = threading.excepthook
        threading.excepthook = self._unless_full
        self._board: Any = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            with suppress(UnicodeEncodeError):  # it takes no path of other bytes than UTF-8
                self._board = SummaryWriter(str(folder / "tb"), purge_step=step + 1)

    def _unless_full(self, raised: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own; what goes wrong there comes back at the next call."""
        if not isinstance(raised.exc_value, OSError):
            self._said(raised)

    def write(self, row: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as problem:
            raise UserError(
                f"{self._path} cannot be written ({problem.strerror}); make room, then run the same command again"
            ) from None
        with self._board_or_nothing() as board:
            for key, value in row.items():
                if board is not None and isinstance(value, float) and key != "epoch":
                    board.add_scalar(f"{row['kind']}/{key}", value, row["step"])

    @contextmanager
    def _board_or_nothing(self) -> Iterator[Any]:
        """The board; where it can no longer be written, the run goes on without: metrics.jsonl holds the same."""
        try:
            yield self._board
        except OSError:
            self._board = None

    def durable(self) -> None:
        os.fsync(self._file.fileno())
        with self._board_or_nothing() as board:
            if board is not None:
                board.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        with self._board_or_nothing() as board:
            if board is not None:
                board.close()
        threading.excepthook = self._said


class Silence:
    """The log of a rank that writes nothing: the first one does."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Not here."""

    def durable(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        """Nothing is open."""


class Display:
    """Progress for people: a live bar on a terminal, a plain line now and then elsewhere."""

    EVERY = 10.0  # seconds between plain lines
    WINDOW = 60.0  # seconds over which the speed is measured
    LEAST = 5.0  # seconds of steps before it is believed

    def __init__(
        self, steps: int, start: int, epochs: int, unit: str = "images", quiet: bool = False
    ) -> None:
        self._steps, self._epochs = steps, epochs
        self._unit, self._quiet = unit, quiet
        self._last = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()  # when which steps were done, over the last minute
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
        self._note(row["step"])
        if self._bar and len(self._seen) == 1:
            # the bar's own clock starts here as well
            self._bar.reset(self._task, completed=row["step"], description=self._line(row))
        elif self._bar:
            self._bar.update(self._task, completed=row["step"], description=self._line(row))
        elif time.monotonic() - self._last >= self.EVERY or row["step"] == self._steps:
            self._last = time.monotonic()
            self.say(f"{self._line(row)}  {self._left()}")

    def say(self, message: str) -> None:
        if self._bar:
            self._bar.console.print(message, highlight=False, markup=False)
        elif not self._quiet:
            print(message, file=sys.stderr, flush=True)

    def _line(self, row: Mapping[str, Any]) -> str:
        loss = "not finite" if row["loss"] is None else f"{row['loss']:.3f}"
        text = f"epoch {row['epoch']:.1f}/{self._epochs}  loss {loss}"
        if row["nats"] is not None:
            most = "" if row["ceiling"] is None else f" of {row['ceiling']:.2f}"
            text += f"  objective {row['nats']:.2f}{most} nats"
        return f"{text}  {row['images_per_s']:.0f} {self._unit}/s"

    def _note(self, step: int) -> None:
        now = time.monotonic()
        self._seen.append((now, step))
        while now - self._seen[0][0] > self.WINDOW and len(self._seen) > 2:
            self._seen.popleft()

    def _left(self) -> str:
        """By the speed of the last minute; the first step, which compiles and fills caches, is not in it."""
        (first, before), (last, step) = self._seen[0], self._seen[-1]
        if step == self._steps:
            return "0 s left"
        if last - first < self.LEAST:
            return "time left not known yet"
        left = (last - first) / (step - before) * (self._steps - step)
        return f"{left / 60:.1f} min left" if left >= 60 else f"{left:.0f} s left"
