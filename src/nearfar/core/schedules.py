"""A number, or how a number moves over a run.

Wherever nearfar takes a number that could sensibly change while training (alpha, a ring's edges, momentum,
temperature, the learning rate), it takes a `Value`: a float, or a schedule. A schedule is a pure function of
`Progress`, so it needs no state and a resumed run reads the same numbers. The moves of adaptive ones are part
of the progress too: a hook counts them (`nearfar.train.hooks.AdaptiveSchedules`) and checkpoints hold them.

    selection = Ring(lower=linear(0.0, 0.9), upper=0.99)
    bound     = MultiLabelCPC(alpha=geometric(10.0, 0.1))
    encoders  = Momentum(network, momentum=cosine(0.99, 1.0))

In settings the same is written `selection.lower=linear(0,0.9)` or `{linear: {start: 0, end: 0.9}}`.
"""

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from nearfar.errors import UserError, check_number


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


_COUNTS = ("jumps", "moves", "patience")  # numbers of a schedule that are counts


@dataclass(frozen=True)
class Schedule:
    """A pure function of progress. Subclasses define the shape; `epochs` is its length (None: the whole run)."""

    start: float
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Every number becomes a float, so that equal schedules are written alike."""
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None and part.default is None:
                continue
            number = float(value)
            if part.name == "epochs" and not number > 0:
                raise UserError(f"a schedule's epochs was {number}; it must be above 0")
            if part.name in _COUNTS and (not number >= 1 or number != number // 1):
                raise UserError(f"{self.name}'s {part.name} was {number:g}; it must be a whole number from 1")
            object.__setattr__(self, part.name, number)

    def __call__(self, progress: Progress) -> float:
        raise TypeError(f"{type(self).__name__} is abstract: use one of SCHEDULES")

    def written(self) -> str:
        """The schedule as a setting, e.g. `linear(0.0,0.9)`; `parse_value` reads it back."""
        values = [getattr(self, part.name) for part in fields(self)]
        while values and values[-1] is None:
            values.pop()
        return f"{self.name}({','.join('none' if v is None else str(v) for v in values)})"

    def ends(self) -> tuple[float, float]:
        """Two numbers that it stays between: its ends, or zero and its end where it rises."""
        raise TypeError(f"{type(self).__name__} is abstract: use one of SCHEDULES")


@dataclass(frozen=True)
class _StartToEnd(Schedule):
    end: float

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


def _portion(progress: Progress, epochs: float | None) -> float:
    return progress.fraction if epochs is None else min(1.0, progress.epoch / epochs)


@dataclass(frozen=True)
class Linear(_StartToEnd):
    """start + (end - start) t, t rising from 0 to 1."""

    epochs: float | None = None
    name: ClassVar[str] = "linear"

    def __call__(self, progress: Progress) -> float:
        return self.start + (self.end - self.start) * _portion(progress, self.epochs)


@dataclass(frozen=True)
class Geometric(_StartToEnd):
    """start (end / start)^t: equal factors in equal times, as in Song & Ermon 2020, sec. 5.3."""

    epochs: float | None = None
    name: ClassVar[str] = "geometric"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start <= 0 or self.end <= 0:
            raise UserError(
                f"geometric({self.start},{self.end}) needs both ends above 0; use linear to reach 0"
            )

    def __call__(self, progress: Progress) -> float:
        return self.start * (self.end / self.start) ** _portion(progress, self.epochs)


@dataclass(frozen=True)
class CosineSchedule(_StartToEnd):
    """From start to end along half a cosine, after `warmup` epochs of linear rise from 0."""

    end: float = 0.0
    epochs: float | None = None
    warmup: float | None = None
    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        return (0.0, max(self.start, self.end, key=abs)) if self.warmup else super().ends()


@dataclass(frozen=True)
class Steps(Schedule):
    """`start`, multiplied by `factor` at each of the given epochs: steps(0.03, 0.1, 200, 250)."""

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
class Stairs(_StartToEnd):
    """From start to end in `jumps` equal jumps, after equal times: stairs(0, 0.9, 3) is 0, 0.3, 0.6, 0.9 for
    a quarter of the time each (the step policy of Wu et al. 2021, App. E)."""

    jumps: float = 3.0
    epochs: float | None = None
    name: ClassVar[str] = "stairs"

    def __call__(self, progress: Progress) -> float:
        jumps = math.floor(_portion(progress, self.epochs) * (self.jumps + 1))
        return self.start + (self.end - self.start) * min(1.0, jumps / self.jumps)


@dataclass(frozen=True)
class Adaptive(_StartToEnd):
    """From start to end in `moves` equal moves: onwards for good news, back for bad (Wu et al. 2021, App. E).

    Each subclass defines what good news is. The value stays between the ends.
    """

    moves: float = 10.0
    monitors: ClassVar[str] = ""

    def __call__(self, progress: Progress) -> float:
        share = progress.adaptive_moves.get(self.written(), 0) / self.moves
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class OnScore(Adaptive):
    """Moves at every probe: onwards if the validation score rose since the last one, otherwise back."""

    name: ClassVar[str] = "on_score"
    monitors: ClassVar[str] = "score"


@dataclass(frozen=True)
class OnLoss(Adaptive):
    """Moves at every step: onwards if the loss is below its moving average, otherwise back."""

    moves: float = 200.0
    name: ClassVar[str] = "on_loss"
    monitors: ClassVar[str] = "loss"


@dataclass(frozen=True)
class OnStall(Adaptive):
    """From start to end in `moves` moves: one onwards whenever the monitored number has not improved for
    `patience` observations, never back. After a move the comparison starts again, because the number has
    another level there. Moves are equal factors where both ends are above 0, else equal steps.

    A curriculum that moves on when learning stalls at its present difficulty, not by a clock.
    """

    patience: float = 1.0

    def __call__(self, progress: Progress) -> float:
        if min(self.start, self.end) <= 0:
            return super().__call__(progress)
        share = progress.adaptive_moves.get(self.written(), 0) / self.moves
        return self.start * (self.end / self.start) ** share


@dataclass(frozen=True)
class OnBound(OnStall):
    """Follows the held-out bound in nats, at every probe. Higher is better."""

    name: ClassVar[str] = "on_bound"
    monitors: ClassVar[str] = "bound"


@dataclass(frozen=True)
class OnVariance(OnStall):
    """Follows the variance of the loss over the steps of an epoch: half of the mean squared difference of
    successive steps, which leaves a slow fall of the loss out. Lower is better."""

    name: ClassVar[str] = "on_variance"
    monitors: ClassVar[str] = "variance"


@dataclass(frozen=True)
class Plateau(Adaptive):
    """`start`, multiplied by `factor` whenever the mean loss of an epoch has not fallen below its least for
    `patience` epochs, `drops` times at most: plateau(0.03, 0.1, 10, 2) (Wu et al. 2020, App. D)."""

    end: float = 0.1  # the factor: `Adaptive` walks from start to end, here by powers of it
    moves: float = 2.0
    patience: float = 10.0
    name: ClassVar[str] = "plateau"
    monitors: ClassVar[str] = "epoch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.end < 1:
            raise UserError(f"plateau's factor was {self.end:g}; it must lie between 0 and 1")

    def __call__(self, progress: Progress) -> float:
        return self.start * self.end ** progress.adaptive_moves.get(self.written(), 0)

    def written(self) -> str:
        return f"plateau({self.start},{self.end},{self.patience:g},{self.moves:g})"

    def ends(self) -> tuple[float, float]:
        return self.start, self.start * self.end**self.moves


@dataclass(frozen=True)
class Learnt:
    """A number that begins as `start` and is learnt with the networks. Only some parts can learn theirs."""

    start: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", float(self.start))

    def written(self) -> str:
        return f"learnt({self.start})"


Value = float | Schedule
Learnable = float | Schedule | Learnt

linear, geometric, cosine, stairs = Linear, Geometric, CosineSchedule, Stairs
on_score, on_loss, on_bound, on_variance, learnt = OnScore, OnLoss, OnBound, OnVariance, Learnt


def steps(start: float, factor: float, *epochs: float) -> Steps:
    return Steps(float(start), float(factor), tuple(float(e) for e in epochs))


def plateau(start: float, factor: float = 0.1, patience: float = 10, drops: float = 2) -> Plateau:
    return Plateau(start, factor, drops, patience)


def parse_within(
    raw: Any,
    key: str,
    low: float,
    high: float = math.inf,
    *,
    exclude_low: bool = False,
    exclude_high: bool = False,
) -> Value:
    """`parse_value` of a setting that stays within a range (`errors.check_number`)."""
    value = parse_value(raw, key)
    for end in ends(value):
        check_number(
            key, end, low, high, exclude_low=exclude_low, exclude_high=exclude_high, written=as_text(value)
        )
    return value


def ends(value: Value) -> tuple[float, float]:
    """The numbers a value lies between: for a number, itself twice."""
    return value.ends() if isinstance(value, Schedule) else (value, value)


def at(value: Value, progress: Progress | None = None) -> float:
    """The number `value` is now; without progress, what it is at the start."""
    return value(progress or START) if isinstance(value, Schedule) else float(value)


def as_text(value: Value) -> str:
    """A value as one would set it."""
    return value.written() if isinstance(value, Schedule) else f"{value:g}"


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "linear": linear,
    "geometric": geometric,
    "cosine": cosine,
    "steps": steps,
    "stairs": stairs,
    "on_score": on_score,
    "on_loss": on_loss,
    "on_bound": on_bound,
    "on_variance": on_variance,
    "plateau": plateau,
}
_CALL = re.compile(r"\s*([a-z_]+)\s*\(([^()]*)\)\s*")
_LARGEST = 1e100  # far beyond any setting, and safe to multiply


def parse_learnable(raw: Any, key: str = "value") -> Learnable:
    """A `Value` from a setting, or `learnt(0.07)`."""
    if isinstance(raw, Learnt):
        return raw
    name, positional, options = _schedule_parts(raw)
    if name != "learnt":
        return parse_value(raw, key)
    numbers = [*positional, *options.values()]
    if len(numbers) != 1 or numbers[0] is None or not abs(numbers[0]) <= _LARGEST:
        raise UserError(f"{key} was {raw!r}; expected one finite number to begin with, such as learnt(0.07)")
    return learnt(numbers[0])


def parse_value(raw: Any, key: str = "value") -> Value:
    """A `Value` from a setting: a number, `linear(0,0.9)`, or `{linear: {start: 0, end: 0.9}}`."""
    if isinstance(raw, Schedule):
        return raw
    if isinstance(raw, Learnt) or _schedule_parts(raw)[0] == "learnt":
        written_value = raw.written() if isinstance(raw, Learnt) else raw
        raise UserError(f"{key} was {written_value}; it cannot be learnt: expected a number or a schedule")
    if isinstance(raw, str):
        with contextlib.suppress(ValueError):
            raw = float(raw)
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        if abs(raw) > _LARGEST or raw != raw:
            raise UserError(f"{key} was {raw}; it must be a finite number or a schedule")
        return float(raw)
    allowed = "a number or a schedule such as linear(0,0.9); schedules are " + ", ".join(SCHEDULES)
    name, positional, options = _schedule_parts(raw)
    if name not in SCHEDULES:
        raise UserError(f"{key} was {raw!r}; expected {allowed}")
    numbers = [v for v in (*positional, *options.values()) if v is not None]
    if any(abs(v) > _LARGEST or v != v for v in numbers):
        raise UserError(f"{key} was {raw!r}; a schedule's numbers must be finite")
    try:
        schedule = SCHEDULES[name](*positional, **options)
        schedule.ends()
        return schedule
    except OverflowError:
        raise UserError(f"{key} was {raw!r}, which grows beyond every number; use a smaller factor") from None
    except TypeError:
        raise UserError(
            f"{key} was {raw!r}, which has wrong arguments for {name}; expected {allowed}"
        ) from None
    except UserError as problem:
        raise UserError(f"{key}: {problem}") from None


def _schedule_parts(raw: Any) -> tuple[str, list[float | None], dict[str, float]]:
    """(name, positional, named) of a written schedule; an empty name when it is not one."""
    if isinstance(raw, str) and (call := _CALL.fullmatch(raw)):
        try:
            parts = [part.strip().lower() for part in call[2].split(",") if part.strip()]
            return call[1], [None if part == "none" else float(part) for part in parts], {}
        except ValueError:
            return "", [], {}
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, arguments = next(iter(raw.items()))
        numbers = isinstance(arguments, Mapping) and all(
            isinstance(v, (int, float)) for v in arguments.values()
        )
        if isinstance(arguments, Mapping) and numbers:
            return str(name), [], {str(k): v for k, v in arguments.items()}
        if isinstance(arguments, (list, tuple)) and all(isinstance(v, (int, float)) for v in arguments):
            return str(name), list(arguments), {}
    return "", [], {}
