"""Arms and contests, and imports of peer libraries, which may be missing."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Step = Callable[[], Any]


class PeerMissing(Exception):
    """A peer that is not installed."""


@dataclass(frozen=True)
class Arm:
    """One implementation of a step.

    `make` builds it; building is not timed. `process` runs it in a child process, with our OpenMP and malloc
    settings ("ours") or torch's defaults ("theirs"); `make` must then be picklable. `prefetched` is the
    number of steps that its data loader prepares in advance.
    """

    name: str
    make: Callable[[], Step]
    ours: bool = False
    process: Literal["ours", "theirs"] | None = None
    prefetched: int = 0


@dataclass(frozen=True)
class Contest:
    """Arms that do the same work; one step processes `count` items (images, rows)."""

    title: str
    unit: str
    count: int
    arms: tuple[Arm, ...]


def peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise PeerMissing(module.partition(".")[0]) from problem
