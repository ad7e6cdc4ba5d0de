"""Work done ahead by background threads, handed over strictly in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_WORKERS = 256  # threads that anybody may ask for
Given = TypeVar("Given")
Made = TypeVar("Made")


def prefetch(make: Callable[[Given], Made], items: Iterable[Given], workers: int) -> Iterator[Made]:
    """`map(make, items)` by `workers` threads, at most workers + 2 results ahead of the consumer.

    An exception in `make` is raised where its result would have come; then, as when the consumer closes the
    iterator, what has not begun is cancelled and what has begun is waited for, so no thread is left behind.
    """
    if workers == 0:
        yield from map(make, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="nearfar-data")
    pending: deque[Future[Made]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(make, item))
            if len(pending) >= workers + 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
