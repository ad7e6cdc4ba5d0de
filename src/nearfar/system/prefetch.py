"""Ordered prefetching with background threads."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Element = TypeVar("Element")
Output = TypeVar("Output")


def prefetch(make: Callable[[Element], Output], items: Iterable[Element], workers: int) -> Generator[Output]:
    """Yields `map(make, items)` in order, computed by `workers` threads, at most workers + 2 items ahead.

    An exception in `make` is raised at its item. Then, or when the consumer closes the iterator, pending
    items are cancelled and running ones are awaited, so that no thread is left behind.
    """
    if workers == 0:
        yield from map(make, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="nearfar-data")
    pending: deque[Future[Output]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(make, item))
            if len(pending) >= workers + 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
