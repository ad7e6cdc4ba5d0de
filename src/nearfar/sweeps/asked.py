"""A sweep as it was asked for: which command, of what, over which space, judged how."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearfar.errors import UserError, not_one_of
from nearfar.sweeps.objectives import METRICS, Information, Objective, Training
from nearfar.sweeps.space import MOST_CELLS, Space

COMMANDS = ("pretrain", "train", "distill", "mi")
RECIPE = "supervised"  # what `train` trains
USUAL = ("RECIPE", "DATA")
NAMES = {
    "train": ("DATA",),
    "distill": ("TEACHER", "DATA"),
    "mi": ("X", "Y"),
}  # what stands before the settings


@dataclass(frozen=True)
class Asked:
    """A sweep as it was asked for; plain, so that other processes can be told."""

    command: str
    subjects: tuple[Any, ...]  # RECIPE DATA, DATA, or X Y
    space: Space
    out: Path
    metric: str | None = None
    test: Any = None
    validation: float | None = None
    same_labels: bool = False
    search: str | None = None
    trials: int | None = None
    prune: bool = True
    quiet: bool = False
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.command not in COMMANDS:
            raise not_one_of("--command", self.command, COMMANDS)
        names = NAMES.get(self.command, USUAL)
        if len(self.subjects) != len(names):
            raise UserError(f"{self.command} takes {' and '.join(names)}; {len(self.subjects)} were given")
        if self.validation is not None and not 0 < self.validation < 1:
            raise UserError(f"--validation was {self.validation:g}; expected a share between 0 and 1")
        if self.search is None and self.space.ranges:
            key, span = next(iter(self.space.ranges.items()))
            raise UserError(
                f"{key} was the range {span}; a grid needs values, {key}=a,b,c, and a range --search tpe"
            )
        if self.space.size > MOST_CELLS:
            raise UserError(
                f"the axes and seeds make {self.space.size:,} cells; a sweep has at most {MOST_CELLS:,}"
            )
        if self.trials is not None and not 1 <= self.trials <= MOST_CELLS:
            raise UserError(f"--trials was {self.trials}; expected a whole number from 1 to {MOST_CELLS:,}")
        if self.search is None and self.trials is not None:
            raise UserError("--trials was given without --search; a grid has as many cells as its axes say")
        if self.search is not None and not self.space.varied:
            raise UserError("--search has nothing to vary; give a range such as lr=1e-4..1e-1:log, or values")
        if self.test is not None and str(self.test) == str(self.subjects[-1]):
            raise UserError(
                f"--data was {self.test}, which is also what every cell trains on; give test data of their own"
            )
        known = Information.METRICS if self.command == "mi" else tuple(METRICS)
        if self.metric is not None and self.metric not in known:
            raise not_one_of("--metric", self.metric, known)

    def objective(self) -> Objective:
        if self.command == "mi":
            if self.test is not None:
                raise UserError(
                    "--data was given with --command mi; its figure is told of rows that are kept back"
                )
            x, y = map(str, self.subjects)
            return Information(x, y, self.metric or "at_least", self.validation or 0.5)
        recipe, data = (RECIPE, *self.subjects) if self.command == "train" else self.subjects
        usual = "linear" if self.command == "pretrain" else "accuracy"
        return Training(
            self.command,
            recipe,
            data,
            self.metric or usual,
            self.validation or 0.2,
            asked=self.test,
            same_labels=self.same_labels,
            probed=self.search is not None and self.prune,
        )

    @property
    def title(self) -> str:
        shown = (str(subject) if isinstance(subject, (str, Path)) else "data" for subject in self.subjects)
        return " ".join([self.command, *shown])


def subjects_of(words: Sequence[str], command: str) -> tuple[tuple[str, ...], list[str]]:
    """The words before the first key=value, and the rest."""
    names = NAMES.get(command, USUAL)
    leading: list[str] = []
    for word in words:
        if len(leading) == len(names) or ("=" in word and not Path(word).exists()):
            break
        leading.append(word)
    if len(leading) < len(names):
        examples = {
            "train": "nearfar sweep --command train photos/ lr=1e-3,1e-2",
            "distill": "nearfar sweep --command distill runs/large photos/ objective=kd,crd,crd+kd",
            "mi": "nearfar sweep --command mi x.npy y.npy critic=separable,joint",
        }
        example = examples.get(command, "nearfar sweep simclr photos/ temperature=0.1,0.5")
        raise UserError(f"{names[len(leading)]} is missing; for instance {example} --out sweeps/first")
    return tuple(leading), list(words[len(leading) :])
