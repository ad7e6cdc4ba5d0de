"""Shapes of schedules: each a pure function of how far a run is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from nearfar.errors import UserError


@dataclass(frozen=True)
class Progress:
    """Where a run is: `step` of `steps`, `steps_per_epoch` of them to an epoch."""

    step: int = 0
    steps: int = 1
    steps_per_epoch: int = 1
    # moves of each adaptive schedule, as written
    adaptive_moves: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def fraction(self) -> float:
        """0 at the first step, 1 at the end of the run."""
        return min(1.0, self.step / max(1, self.steps))

    @property
    def epoch(self) -> float:
        return self.step / max(1, self.steps_per_epoch)


START = Progress()


@dataclass(frozen=True)
class Schedule:
    """A pure function of progress. Subclasses say the shape; `epochs` is how long it takes (None: the whole
    run)."""

    name: ClassVar[str] = ""

    def __call__(self, progress: Progress) -> float:
        raise TypeError(f"{type(self).__name__} is abstract: use one of SCHEDULES")

    def written(self) -> str:
        """The schedule as a setting, e.g. `linear(0.0,0.9)`; `parse_value` reads it back."""
        values = [getattr(self, field.name) for field in fields(self)]
        while values and values[-1] is None:
            values.pop()
        return f"{self.name}({','.join('none' if v is None else str(v) for v in values)})"

    def ends(self) -> tuple[float, float]:
        """Two numbers it always stays between: where it begins and ends, or zero where it rises from
        there."""
        raise TypeError(f"{type(self).__name__} is abstract: use one of SCHEDULES")


def _portion(progress: Progress, epochs: float | None) -> float:
    if epochs is None:
        return progress.fraction
    return min(1.0, progress.epoch / epochs)


def _check_epochs(epochs: float | None) -> None:
    if epochs is not None and not epochs > 0:
        raise UserError(f"a schedule's epochs was {epochs}; it must be above 0")


def check_whole(schedule: str, key: str, number: float) -> None:
    if not number >= 1 or number != number // 1:
        raise UserError(f"{schedule}'s {key} was {number:g}; it must be a whole number from 1")


@dataclass(frozen=True)
class Linear(Schedule):
    """start + (end - start) t, t rising from 0 to 1."""

    start: float
    end: float
    epochs: float | None = None
    name: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)

    def __call__(self, progress: Progress) -> float:
        t = _portion(progress, self.epochs)
        return self.start + (self.end - self.start) * t

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


@dataclass(frozen=True)
class Geometric(Schedule):
    """start (end / start)^t: equal factors in equal times, so 10 -> 0.1 passes 1 half-way (Song & Ermon 2020,
    sec. 5.3)."""

    start: float
    end: float
    epochs: float | None = None
    name: ClassVar[str] = "geometric"

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)
        if self.start <= 0 or self.end <= 0:
            raise UserError(
                f"geometric({self.start},{self.end}) needs both ends above 0; use linear to reach 0"
            )

    def __call__(self, progress: Progress) -> float:
        return self.start * (self.end / self.start) ** _portion(progress, self.epochs)

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """From start to end along half a cosine, after `warmup` epochs of linear rise from 0."""

    start: float
    end: float = 0.0
    epochs: float | None = None
    warmup: float | None = None
    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)
        if self.warmup is not None and self.warmup < 0:
            raise UserError(f"cosine's warmup was {self.warmup}; it must be at least 0 epochs")

    def __call__(self, progress: Progress) -> float:
        total = self.epochs if self.epochs is not None else progress.steps / max(1, progress.steps_per_epoch)
        warmup = min(self.warmup or 0.0, total)
        if progress.epoch < warmup:
            # (step + 1) so that the very first step already moves
            return self.start * min(1.0, (progress.step + 1) / max(1.0, warmup * progress.steps_per_epoch))
        t = min(1.0, (progress.epoch - warmup) / max(total - warmup, 1e-12))
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * t))

    def ends(self) -> tuple[float, float]:
        if self.warmup:
            return 0.0, max(self.start, self.end, key=abs)
        return self.start, self.end


@dataclass(frozen=True)
class Steps(Schedule):
    """`start`, multiplied by `factor` at each of the given epochs: steps(0.03, 0.1, 200, 250)."""

    start: float
    factor: float
    epochs: tuple[float, ...]
    name: ClassVar[str] = "steps"

    def __post_init__(self) -> None:
        if self.factor < 0:
            raise UserError(
                f"steps' factor was {self.factor}; it must be at least 0, or the sign would alternate"
            )

    def __call__(self, progress: Progress) -> float:
        return self.start * self.factor ** sum(progress.epoch >= epoch for epoch in self.epochs)

    def written(self) -> str:
        return f"steps({','.join(str(v) for v in (self.start, self.factor, *self.epochs))})"

    def ends(self) -> tuple[float, float]:
        return self.start, self.start * self.factor ** len(self.epochs)


@dataclass(frozen=True)
class Stairs(Schedule):
    """From start to end in `jumps` equal jumps, after equal times: stairs(0, 0.9, 3) is 0, 0.3, 0.6, 0.9 for
    a quarter of the time each (the step policy of Wu et al. 2021, App. E)."""

    start: float
    end: float
    jumps: float = 3.0
    epochs: float | None = None
    name: ClassVar[str] = "stairs"

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)
        check_whole(self.name, "jumps", self.jumps)

    def __call__(self, progress: Progress) -> float:
        jumps = math.floor(_portion(progress, self.epochs) * (self.jumps + 1))
        return self.start + (self.end - self.start) * min(1.0, jumps / self.jumps)

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


Value = float | Schedule


@dataclass(frozen=True)
class Learnt:
    """A number that begins as `start` and is learnt with the networks. Only some parts can learn theirs."""

    start: float

    def written(self) -> str:
        return f"learnt({self.start})"


Learnable = float | Schedule | Learnt


def _float(number: float | None) -> float | None:
    return None if number is None else float(number)


def linear(start: float, end: float, epochs: float | None = None) -> Linear:
    return Linear(float(start), float(end), _float(epochs))


def geometric(start: float, end: float, epochs: float | None = None) -> Geometric:
    return Geometric(float(start), float(end), _float(epochs))


def cosine(
    start: float, end: float = 0.0, epochs: float | None = None, warmup: float | None = None
) -> CosineSchedule:
    return CosineSchedule(float(start), float(end), _float(epochs), _float(warmup))


def steps(start: float, factor: float, *epochs: float) -> Steps:
    return Steps(float(start), float(factor), tuple(float(e) for e in epochs))


def stairs(start: float, end: float, jumps: float = 3, epochs: float | None = None) -> Stairs:
    return Stairs(float(start), float(end), float(jumps), _float(epochs))


def learnt(start: float) -> Learnt:
    return Learnt(float(start))


def ends(value: Value) -> tuple[float, float]:
    """The numbers a value lies between: for a number, itself twice."""
    return value.ends() if isinstance(value, Schedule) else (value, value)


def at(value: Value, progress: Progress | None = None) -> float:
    """The number `value` is now; without progress, what it is at the start."""
    return value(progress or START) if isinstance(value, Schedule) else float(value)


def written(value: Value) -> str:
    """A value as one would set it."""
    return value.written() if isinstance(value, Schedule) else f"{value:g}"
