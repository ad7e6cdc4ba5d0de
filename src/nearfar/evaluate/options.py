"""Options of the evaluation protocols."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.config.fields import MAX_EPOCHS
from nearfar.core.optimisers import LARGEST_LR
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError, check_number, check_whole
from nearfar.evaluate.knn import NEIGHBOURS, VOTE_TEMPERATURE

# which protocols read an option; one that none of the requested protocols reads is refused
READ_BY = {
    "k": ("knn",),
    "temperature": ("knn",),
    "labels": ("fractions", "finetune-fractions"),
    "draws": ("fractions", "finetune-fractions", "clustering"),
    **dict.fromkeys(("ways", "shots", "episodes", "queries"), ("few-shot",)),
    **dict.fromkeys(("epochs", "lr", "layer_decay", "batch_size"), ("finetune", "finetune-fractions")),
}
MAXIMA = {
    "draws": 10_000,
    "ways": 1_000_000,
    "episodes": 1_000_000,
    "queries": 1_000_000,
    "epochs": MAX_EPOCHS,
    "batch_size": 1_000_000,
}
MIN_LABEL_SHARE = 1e-6


@dataclass(frozen=True)
class Options:
    """`k`, `temperature`: of nearest neighbours. `labels`: shares of the labels, or numbers per class, with
    `draws` draws each. `ways`, `shots`, `episodes`, `queries`: of few-shot. `epochs`, `lr`, `layer_decay`,
    `batch_size`: of fine-tuning; of several rates the best on a validation fifth of the training set is used.
    `unseen`: the encoder never saw the test rows; None: unknown. `strategy`: of the processes."""

    k: int = NEIGHBOURS
    temperature: float = VOTE_TEMPERATURE
    seed: int = 0
    labels: Sequence[float] = (0.01, 0.1)
    draws: int = 5
    ways: int = 5
    shots: Sequence[int] = (1, 5)
    episodes: int = 600
    queries: int = 15
    epochs: int = 20
    lr: Sequence[float] = (1e-3,)
    layer_decay: float = 0.7
    batch_size: int = 128
    unseen: bool | None = None
    strategy: Strategy = SINGLE

    def __post_init__(self) -> None:
        for name, maximum in MAXIMA.items():
            check_whole(name, getattr(self, name), 1, maximum)
        check_whole("ways", self.ways, 2)
        if not 0 <= self.seed < 2**62:
            raise UserError(f"seed was {self.seed}; expected a whole number from 0 and below 2^62")
        if not self.labels or not all(map(_is_share_or_count, self.labels)):
            raise UserError(
                f"labels was {list(self.labels)}; expected shares from {MIN_LABEL_SHARE:f} to below 1, "
                "or whole numbers per class"
            )
        if not self.shots or min(self.shots) < 1:
            raise UserError(f"shots was {list(self.shots)}; expected whole numbers from 1")
        if not self.lr or not all(0 < rate <= LARGEST_LR for rate in self.lr):
            raise UserError(f"lr was {list(self.lr)}; expected numbers above 0 and at most {LARGEST_LR}")
        check_number("layer_decay", self.layer_decay, 0, 1, exclude_low=True)

    def changed(self, protocols: Sequence[str]) -> dict[str, Any]:
        """Options that differ from their defaults, as JSON; stops at one that none of the protocols reads."""
        defaults, changes = Options(), {}
        for name, readers in READ_BY.items():
            value = getattr(self, name)
            if value == getattr(defaults, name):
                continue
            if not set(readers) & set(protocols):
                raise UserError(
                    f"{name} was {value}, but it is an option of {' and '.join(readers)}, not of the protocols "
                    f"{', '.join(protocols)}"
                )
            changes[name] = list(value) if isinstance(value, Sequence) else value
        return changes


def _is_share_or_count(amount: float) -> bool:
    return MIN_LABEL_SHARE <= amount < 1 or (1 <= amount < math.inf and amount == int(amount))
