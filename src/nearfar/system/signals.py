"""Termination signals: handlers for a block of code, and an orderly end of commands.

Signals that were ignored at process start stay ignored (`nohup`, background jobs of a shell).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handle_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handles these signals inside the block, unless they are ignored; only in the main thread."""
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handled_numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, handler) for number in handled_numbers}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP outside of training; no `Exception`, so that no retry catches it."""


_received: str | None = None


def received_signal() -> str | None:
    """Returns the name of the termination signal of this command, if any.

    An exception raised in a destructor or during an import can be lost; this record is not.
    """
    return _received


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP raise like Ctrl-C. Training has its own handlers and saves."""
    global _received

    def on_signal(number: int, frame: FrameType | None) -> None:
        global _received
        _received = signal.Signals(number).name
        raise EndedBySignal(
            f"stopped by {_received}; run the same command again to continue from what was saved"
        )

    _received = None
    try:
        with handle_signals(on_signal, signal.SIGTERM, signal.SIGHUP):
            yield
    finally:
        _received = None


def exit_with_parent() -> None:
    """Exits this process when its parent process is gone."""
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
