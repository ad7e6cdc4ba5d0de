"""What a named method is: a function that returns a `Method` of parts, and how it is usually trained."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

from nearfar.config.fields import FIELDS
from nearfar.config.schema import plain
from nearfar.config.sections import sections_of
from nearfar.core.abstract import AbstractNegatives, AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import Value

OptimizerName = Literal["adamw", "sgd", "lars", "muon"]


@dataclass(frozen=True)
class Training:
    """Defaults of the training loop; None: those of every run."""

    optimizer: OptimizerName = "adamw"
    lr: Value = 2e-3
    weight_decay: float = 1e-4
    batch_size: int | None = None
    epochs: int | None = None
    backbone: str | None = None
    clip: float | None = None

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@cache
def method_template(method: Callable[..., Method]) -> Method:
    """The method that a recipe's function returns, made once: runs copy its parts."""
    return method()


@dataclass(frozen=True)
class Variant:
    """A selection that a recipe also exists under; `selection(negatives, epochs)` makes it."""

    about: str
    selection: Callable[[AbstractNegatives, int], AbstractSelection]


@dataclass(frozen=True)
class Recipe:
    """A named method. `method` is called without arguments; its parts have settings, but no weights yet.

    `selection`: the selection of a run of so many epochs, in place of the method's, where one of its
    settings lasts a share of the run. `variants`: by the suffix of their names. `on_cpu`: settings that were
    measured together, for small images on a CPU (`train.defaults`).
    """

    about: str
    method: Callable[..., Method]
    training: Training = Training()
    selection: Callable[[int], AbstractSelection] | None = None
    command: str = "pretrain {name} {data}"  # that trains it
    variants: Mapping[str, Variant] = field(default_factory=dict)
    on_cpu: Mapping[str, Any] = field(default_factory=dict)

    def template(self, epochs: int) -> Method:
        """The method, for a run of so many epochs."""
        method = method_template(self.method)
        return method if self.selection is None else method.replace(selection=self.selection(epochs))

    def settings(self, epochs: int) -> dict[str, Any]:
        """The recipe as plain settings of a run of so many epochs."""
        return {**self.training.settings(), **plain(sections_of(self.template(epochs)))}

    @cached_property
    def choices(self) -> dict[str, dict[str, Any]]:
        """The parts as settings, by choice, for a run of the default length."""
        return plain(sections_of(self.template(FIELDS["epochs"].default)))


def share_of(epochs: int, share: float) -> float:
    """A share of the run in epochs, rounded to four digits."""
    return float(f"{share * epochs:.4g}")
