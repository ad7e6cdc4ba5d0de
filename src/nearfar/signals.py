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

from nearfar.errors import Stopped

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


def ends_by_signal() -> Any:
    """Inside, SIGTERM and SIGHUP end what is being done as Ctrl-C does; training hears them itself, and saves."""

    def asked(number: int, frame: FrameType | None) -> None:
        raise Stopped(
            f"stopped by {signal.Signals(number).name}; the same command does it again, from what was saved"
        )

    return handled(asked, signal.SIGTERM, signal.SIGHUP)


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
