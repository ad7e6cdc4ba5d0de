"""What a sweep does: the command, its subjects, the space and the metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.config.reading import leading_words
from nearfar.errors import UserError, check_whole, not_one_of
from nearfar.sweeps.objectives import METRICS, InformationObjective, Objective, TrainingObjective
from nearfar.sweeps.space import MAX_CELLS, Space

COMMANDS = ("pretrain", "train", "distill", "mi")
TRAIN_RECIPE = "supervised"
# the words before the settings
SUBJECTS = {
    "pretrain": ("RECIPE", "DATA"),
    "train": ("DATA",),
    "distill": ("TEACHER", "DATA"),
    "mi": ("X", "Y"),
}
EXAMPLES = {
    "pretrain": "nearfar sweep simclr photos/ temperature=0.1,0.5",
    "train": "nearfar sweep --command train photos/ lr=1e-3,1e-2",
    "distill": "nearfar sweep --command distill runs/large photos/ objective=kd,crd,crd+kd",
    "mi": "nearfar sweep --command mi x.npy y.npy critic=separable,joint",
}


@dataclass(frozen=True)
class SweepRequest:
    """A checked request, picklable for worker processes."""

    command: str
    subjects: tuple[Any, ...]  # RECIPE DATA, DATA, TEACHER DATA, or X Y
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

    def __post_init__(self) -> None:
        if self.command not in COMMANDS:
            raise not_one_of("--command", self.command, COMMANDS)
        names = SUBJECTS[self.command]
        if len(self.subjects) != len(names):
            raise UserError(f"{self.command} takes {' and '.join(names)}; got {len(self.subjects)} of them")
        if self.validation is not None and not 0 < self.validation < 1:
            raise UserError(f"--validation was {self.validation:g}; expected a share between 0 and 1")
        if self.search is None and self.space.ranges:
            key, span = next(iter(self.space.ranges.items()))
            raise UserError(
                f"{key} was the range {span}; a grid needs values ({key}=a,b,c); a range needs --search tpe"
            )
        if self.space.size > MAX_CELLS:
            raise UserError(
                f"the axes and seeds make {self.space.size:,} cells; a sweep has at most {MAX_CELLS:,}"
            )
        if self.trials is not None:
            check_whole("--trials", self.trials, 1, MAX_CELLS)
        if self.search is None and self.trials is not None:
            raise UserError("--trials was given without --search; the axes determine the cells of a grid")
        if self.search is not None and not self.space.varied:
            raise UserError("--search has nothing to vary; give a range such as lr=1e-4..1e-1:log, or values")
        if self.test is not None and str(self.test) == str(self.subjects[-1]):
            raise UserError(
                f"the test data are {self.test}, which is also the training data; give separate test data"
            )
        metrics = InformationObjective.METRICS if self.command == "mi" else tuple(METRICS)
        if self.metric is not None and self.metric not in metrics:
            raise not_one_of("--metric", self.metric, metrics)

    def objective(self) -> Objective:
        if self.command == "mi":
            if self.test is not None:
                raise UserError(
                    "test data were given with --command mi, which reports on held-out rows of X and Y"
                )
            x, y = map(str, self.subjects)
            return InformationObjective(x, y, self.metric or "at_least", self.validation or 0.5)
        recipe, data = (TRAIN_RECIPE, *self.subjects) if self.command == "train" else self.subjects
        return TrainingObjective(
            self.command,
            recipe,
            data,
            self.metric or ("linear" if self.command == "pretrain" else "accuracy"),
            self.validation or 0.2,
            test_data=self.test,
            same_labels=self.same_labels,
            probes=self.search is not None and self.prune,
        )

    @property
    def title(self) -> str:
        subjects = (str(one) if isinstance(one, (str, Path)) else "data" for one in self.subjects)
        return " ".join([self.command, *subjects])


def split_subjects(words: Sequence[str], command: str) -> tuple[tuple[str, ...], list[str]]:
    """The words before the first key=value, and the others."""
    names = SUBJECTS.get(command, SUBJECTS["pretrain"])
    leading = leading_words(words, len(names))
    if len(leading) < len(names):
        example = EXAMPLES.get(command, EXAMPLES["pretrain"])
        raise UserError(f"{names[len(leading)]} is missing; for instance {example} --out sweeps/first")
    return tuple(leading), list(words[len(leading) :])
