"""What arms are made of, and other libraries, which may be absent."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Step = Callable[[], Any]


class Absent(Exception):
    """A peer that is not installed."""


@dataclass(frozen=True)
class Arm:
    """One way to do a step. `make` builds it: what is built is not timed. `process`: of its own, under our settings or as torch comes;
    then `make` must be a function that can be sent there. `ahead`: steps that a loader of its prepares before they are asked for."""

    name: str
    make: Callable[[], Step]
    ours: bool = False
    process: Literal["ours", "theirs"] | None = None
    ahead: int = 0


@dataclass(frozen=True)
class Contest:
    """Arms that do the same, and how many things (images, rows) one step of each deals with."""

    title: str
    unit: str
    count: int
    arms: tuple[Arm, ...]


def peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise Absent(module.partition(".")[0]) from problem
