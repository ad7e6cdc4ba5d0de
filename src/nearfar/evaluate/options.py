"""What protocols may be told."""

from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.errors import UserError
from nearfar.ranks import ALONE, Ranks


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
    ranks: Ranks = ALONE  # processes that all ask the same, and share what can be shared

    def __post_init__(self) -> None:
        for name in ("draws", "ways", "episodes", "queries", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} was {getattr(self, name)}; it must be at least 1")
        if not self.labels or any(not (0 < asked < 1 or asked == int(asked) >= 1) for asked in self.labels):
            raise UserError(
                f"labels was {list(self.labels)}; expected shares between 0 and 1, or whole numbers of each class"
            )
        if not self.shots or min(self.shots) < 1:
            raise UserError(f"shots was {list(self.shots)}; expected whole numbers from 1")
        if not self.lr or min(self.lr) <= 0:
            raise UserError(f"lr was {list(self.lr)}; expected numbers above 0")
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"layer_decay was {self.layer_decay}; it must be above 0 and at most 1")
