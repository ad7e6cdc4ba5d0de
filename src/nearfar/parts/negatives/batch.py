"""The others of the batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import Candidates
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.negatives.fresh import GROUPED, rows_of


@dataclass(frozen=True)
class InBatch(AbstractNegatives):
    """Keys of the other instances in the batch.

    `views="both"` takes every view of the others, 2N - 2 negatives for two views (SimCLR, Sáez Maldonado 2021, Eq. 23);
    `views="one"` only the view the positive is of, N - 1 negatives (CLIP-style, and the form that is proven
    to bound mutual information).
    """

    display_name = "the batch"
    equation = "the other instances of the batch, views: {views}"
    views: Literal["one", "both"] = "both"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if choices["negatives"]["views"] == "one" or parts["encoders"].row_per_instance:
            return None
        role = choices["encoders"]["name"]
        return f"negatives.views was both with encoders={role}, whose rows are times or symbols of one view; use negatives.views=one"

    def __post_init__(self) -> None:
        if self.views not in ("one", "both"):
            raise UserError(f"negatives.views was {self.views!r}; expected one or both")

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Candidates:
        if self.views == "one" or len(keys) == 1:
            return Candidates(*rows_of(keys[which], index))
        embedding, ids = zip(*(rows_of(keys[view], index) for view in sorted(keys)), strict=True)
        return Candidates(torch.cat(embedding), torch.cat(ids))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        others = (batch_size - 1) * keys_per_instance + same_instance_negatives
        if self.views == "one" or key_views == 1:
            if keys_per_instance == 1:
                return NegativeSampling(batch_size, others)
            return NegativeSampling(batch_size, others, exchangeable=False, reason=GROUPED)
        why = f"{key_views} views of the same other image are not independent draws, so negatives come in groups"
        return NegativeSampling(batch_size, key_views * others, exchangeable=False, reason=why)
