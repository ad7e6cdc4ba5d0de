"""What protocols may be told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.config.settings import MAX_EPOCHS
from nearfar.core.optimisers import LARGEST_LR
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError

# which protocols read an option: another value of it makes another result, and one that nobody asked for reads is a mistake
READ_BY = {
    "k": ("knn",),
    "temperature": ("knn",),
    "labels": ("fractions", "finetune-fractions"),
    "draws": ("fractions", "finetune-fractions", "clustering"),
    **dict.fromkeys(("ways", "shots", "episodes", "queries"), ("few-shot",)),
    **dict.fromkeys(("epochs", "lr", "layer_decay", "batch_size"), ("finetune", "finetune-fractions")),
}
# a number without end is a command without end
MOST = {
    "draws": 10_000,
    "ways": 1_000_000,
    "episodes": 1_000_000,
    "queries": 1_000_000,
    "epochs": MAX_EPOCHS,
    "batch_size": 1_000_000,
}
LEAST_SHARE = 1e-6  # of labels


@dataclass(frozen=True)
class Options:
    """`k`, `temperature`: of nearest neighbours. `labels`: shares, or numbers of each class, of `draws` draws each. `ways`, `shots`,
    `episodes`, `queries`: of few-shot. `epochs`, `lr`, `layer_decay`, `batch_size`: of fine-tuning; of several rates the best on a
    validation fifth of the training set is taken."""

    k: int = 20
    temperature: float = 0.07
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
    unseen: bool | None = None  # that the encoder was never shown the test rows; None: nobody knows
    strategy: Strategy = SINGLE  # processes that all ask the same, and share what can be shared

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise UserError(
                    f"{name} was {getattr(self, name)}; expected a whole number from 1 to {most:,}"
                )
        if self.ways < 2:
            raise UserError(f"ways was {self.ways}; episodes are of at least 2 classes")
        if not 0 <= self.seed < 2**62:
            raise UserError(f"seed was {self.seed}; expected a whole number from 0 and below 2^62")
        if not self.labels or not all(_share_or_number(asked) for asked in self.labels):
            raise UserError(
                f"labels was {list(self.labels)}; expected shares from {LEAST_SHARE:f} to below 1, or whole numbers of each class"
            )
        if not self.shots or min(self.shots) < 1:
            raise UserError(f"shots was {list(self.shots)}; expected whole numbers from 1")
        if not self.lr or not all(0 < rate <= LARGEST_LR for rate in self.lr):
            raise UserError(f"lr was {list(self.lr)}; expected numbers above 0 and at most {LARGEST_LR}")
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"layer_decay was {self.layer_decay}; it must be above 0 and at most 1")

    def changed(self, protocols: Sequence[str]) -> dict[str, Any]:
        """What differs from the defaults, as JSON has it; an option that none of the protocols reads is refused."""
        plain, found = Options(), {}
        for name, readers in READ_BY.items():
            value = getattr(self, name)
            if value == getattr(plain, name):
                continue
            if not set(readers) & set(protocols):
                raise UserError(
                    f"{name} was {value}, which is read by {' and '.join(readers)}; the protocols asked for are {', '.join(protocols)}"
                )
            found[name] = list(value) if isinstance(value, Sequence) else value
        return found


def _share_or_number(asked: float) -> bool:
    return LEAST_SHARE <= asked < 1 or (1 <= asked < math.inf and asked == int(asked))
