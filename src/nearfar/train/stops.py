"""Reasons to stop before the end, none of which lose work: SIGTERM, SIGINT, SIGHUP, and a time limit."""

import signal
import time
from types import FrameType, TracebackType

from nearfar.system.signals import handle_signals, received_signal


class StopRequests:
    """Inside this context, a signal or the clock asks for a stop; the loop looks after each step."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self, max_time: float | None) -> None:
        self._end = None if max_time is None else time.monotonic() + max_time
        self._max_time = max_time
        self._signal: str | None = received_signal()
        self._handling = handle_signals(self._asked, *self.SIGNALS)

    def __enter__(self) -> "StopRequests":
        self._handling.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handling.__exit__(kind, error, trace)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C means now
        self._signal = signal.Signals(number).name

    def reason(self) -> str | None:
        if self._signal is not None:
            return self._signal
        if self._end is not None and time.monotonic() >= self._end:
            return f"max_time of {self._max_time:g} s"
        return None
