"""Checkpoints written while training goes on: the state is copied at once, and written by a thread of its own."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from torch import Tensor


class Saving:
    """One write at a time. What went wrong in it is raised by the next call of anything here."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nearfar-save")
        self._pending: Future[Any] | None = None
        self._since = time.monotonic()

    def __enter__(self) -> "Saving":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What has begun is waited for, so that nothing is left half written and no thread behind."""
        self._pool.shutdown(wait=True)
        if error is None:
            self.wait()

    def submit(self, write: Callable[[], Any]) -> None:
        self.wait()
        self._pending = self._pool.submit(write)
        self._since = time.monotonic()

    def minutes(self) -> float:
        """Since the last one was begun, or this object was made."""
        return (time.monotonic() - self._since) / 60

    def wait(self) -> None:
        """Returns when what was submitted is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def check(self) -> None:
        """Raises what went wrong, if it is known by now."""
        if self._pending is not None and self._pending.done():
            self.wait()


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As they are now, on the CPU, whatever becomes of them."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
