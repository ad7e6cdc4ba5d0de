"""What a named method is: five choices and how it is usually trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rising:
    """A linear schedule over the first `share` of a run, however many epochs the run has."""

    start: float
    end: float
    share: float

    def over(self, epochs: int) -> str:
        """The schedule as a setting, for a run of so many epochs."""
        return f"linear({self.start:g},{self.end:g},{self.share * epochs:.4g})"


@dataclass(frozen=True)
class Share:
    """So many epochs: a share of the run's."""

    share: float

    def over(self, epochs: int) -> float:
        return float(f"{self.share * epochs:.4g}")


CLOSE_AFTER = Share(1 / 3)  # of a run, before close neighbours are pulled
Choice = Mapping[str, Any]  # {"name": a part, its settings ...}


@dataclass(frozen=True)
class Recipe:
    """A method's choices, in the form settings take; `training` holds defaults of the loop."""

    about: str
    views: Choice
    encoders: Choice
    critic: Choice
    negatives: Choice
    bound: Choice
    selection: Choice = field(default_factory=lambda: {"name": "everyone"})
    prior: Choice = field(default_factory=lambda: {"name": "none"})
    training: Choice = field(default_factory=dict)
    command: str = "pretrain {name} {data}"  # that trains it

    def settings(self, epochs: int) -> dict[str, Any]:
        """The recipe as settings of a run of so many epochs."""
        rooms = ("views", "encoders", "critic", "negatives", "selection", "bound", "prior")
        return {**self.training, **{room: _over(getattr(self, room), epochs) for room in rooms}}


def _over(choice: Choice, epochs: int) -> dict[str, Any]:
    return {
        key: value.over(epochs) if isinstance(value, (Rising, Share)) else value
        for key, value in choice.items()
    }
