"""A source that needs `dim`: this file, and a line in `nearfar/parts/negatives/__init__.py`:
PARTS["prototypes"] = LearnedVectors

    nearfar pretrain simclr photos/ --out runs/a negatives=prototypes negatives.size=64

`meet` is called when the method meets its data: `Sizes` has the width of what is scored, the number of instances
and more (`nearfar/core/types.py`)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import Candidates
from nearfar.core.types import NegativeSampling, Sizes


class LearnedVectors(nn.Module, AbstractNegatives):
    """`size` learned vectors that every anchor is contrasted with."""

    equation = "{size} learned vectors"
    display_name = "the prototypes"

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.size = size

    def meet(self, sizes: Sizes) -> None:
        self.vectors = nn.Parameter(torch.randn(self.size, sizes.width(self)))

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        ids = torch.full((len(self.vectors),), -2, device=index.device)  # no instance has this number
        return Candidates(nn.functional.normalize(self.vectors, dim=1), ids)

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        reason = "negatives are learned vectors, not draws of p(v)"
        return NegativeSampling(batch_size, self.size, exchangeable=False, reason=reason)
