"""Schedules that follow what a run hears: the validation score at every probe, the loss at every step."""

from dataclasses import dataclass
from typing import ClassVar

from nearfar.core.schedules.shapes import Progress, Schedule, check_whole
from nearfar.errors import UserError


@dataclass(frozen=True)
class Adaptive(Schedule):
    """From start to end in `moves` equal moves: one onwards for good news, one back for bad (Wu et al. 2021,
    App. E).

    Which news is the subclass's: it never goes beyond either end.
    """

    start: float
    end: float
    moves: float = 10.0
    monitors: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_whole(self.name, "moves", self.moves)

    def __call__(self, progress: Progress) -> float:
        return (
            self.start + (self.end - self.start) * progress.adaptive_moves.get(self.written(), 0) / self.moves
        )

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


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
class Plateau(Adaptive):
    """`start`, multiplied by `factor` whenever the mean loss of an epoch has not fallen below its least for
    `patience` epochs, `drops` times at most: plateau(0.03, 0.1, 10, 2) (Wu et al. 2020, App. D)."""

    start: float
    end: float = 0.1  # the factor: `Adaptive` walks from start to end, here by powers of it
    moves: float = 2.0
    patience: float = 10.0
    name: ClassVar[str] = "plateau"
    monitors: ClassVar[str] = "epoch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.name, "patience", self.patience)
        if not 0 < self.end < 1:
            raise UserError(f"plateau's factor was {self.end:g}; it must lie between 0 and 1")

    def __call__(self, progress: Progress) -> float:
        return self.start * self.end ** progress.adaptive_moves.get(self.written(), 0)

    def written(self) -> str:
        return f"plateau({self.start},{self.end},{self.patience:g},{self.moves:g})"

    def ends(self) -> tuple[float, float]:
        return self.start, self.start * self.end**self.moves


def on_score(start: float, end: float, moves: float = 10) -> OnScore:
    return OnScore(float(start), float(end), float(moves))


def on_loss(start: float, end: float, moves: float = 200) -> OnLoss:
    return OnLoss(float(start), float(end), float(moves))


def plateau(start: float, factor: float = 0.1, patience: float = 10, drops: float = 2) -> Plateau:
    return Plateau(float(start), float(factor), float(drops), float(patience))
