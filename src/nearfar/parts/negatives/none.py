"""Nobody."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import Candidates
from nearfar.core.types import NegativeSampling
from nearfar.parts.negatives.fresh import rows_of


@dataclass(frozen=True)
class NoNegatives(AbstractNegatives):
    """No negatives at all: BYOL, and the case that shows what negatives are for."""

    equation = "nobody"
    has_candidates = False

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        bound = choices["bound"]["name"]
        if not parts["bound"].reads_negatives:
            return None
        return (
            f"bound was {bound} with negatives=none: it compares positive scores with those of negatives, and there are none; use "
            "bound=agreement, which reads positives alone, or negatives=in-batch, which leaves networks and predictor as they are"
        )

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Candidates:
        flat, ids = rows_of(keys[which], index)
        return Candidates(flat[:0], ids[:0])

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        return NegativeSampling(batch_size, 0)
