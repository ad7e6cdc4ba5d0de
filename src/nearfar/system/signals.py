"""What a process does when it is asked to end: it ends, in an orderly way, with a code that says so.

Signals that were ignored when the process began stay ignored (`nohup`, jobs in the background of a shell).
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
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Inside, these signals go to `handler`, unless nobody was to hear them; only the main thread can do that."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP outside of training. Like Ctrl-C no `Exception`: whoever tries another way after an error, or lists a bad file,
    would take it for one."""


_heard: str | None = None


def heard() -> str | None:
    """The signal by which this command was asked to end. What is raised in a destructor, or while a module is imported, may be lost."""
    return _heard


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end what is being done as Ctrl-C does; training hears them itself, and saves."""
    global _heard

    def asked(number: int, frame: FrameType | None) -> None:
        global _heard
        _heard = signal.Signals(number).name
        raise Ended(f"stopped by {_heard}; the same command does it again, from what was saved")

    _heard = None
    try:
        with handled(asked, signal.SIGTERM, signal.SIGHUP):
            yield
    finally:
        _heard = None


def end_with_parent() -> None:
    """Ends this process when the one that spawned it is gone, however it went: nobody else would tell it."""
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
