"""A source that needs `dim`: this file, and a line in `nearfar/parts/negatives/__init__.py`:
PARTS["prototypes"] = LearnedVectors

    nearfar pretrain simclr photos/ --out runs/a negatives=prototypes negatives.size=64

Its keyword-only parameter is filled in by name, here with how wide what is scored is; `instances`, `data`,
`size` and `views` are available in the same way (`nearfar/config/building.py`)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import Candidates
from nearfar.core.types import NegativeSampling


class LearnedVectors(nn.Module, AbstractNegatives):
    """`size` learned vectors that every anchor is contrasted with."""

    equation = "{size} learned vectors"
    display_name = "the prototypes"

    def __init__(self, size: int = 64, *, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(size, dim))

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        ids = torch.full((len(self.vectors),), -2, device=index.device)  # no instance has this number
        return Candidates(nn.functional.normalize(self.vectors, dim=1), ids)

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        reason = "negatives are learned vectors, not draws of p(v)"
        return NegativeSampling(batch_size, len(self.vectors), exchangeable=False, reason=reason)
