"""A selection: this file, and a line in `nearfar/parts/selections/__init__.py`:  PARTS["every-other"] =
EveryOther

nearfar pretrain moco photos/ --out runs/a selection=every-other selection.stride=3
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError


@dataclass(frozen=True)
class EveryOther(AbstractSelection):
    """Of the candidates in the source's order, one in `stride`: fewer negatives, whatever their scores."""

    equation = "one in {stride} of the K, in the order of the source"
    drop_reason = "not its turn"
    stride: int = 2

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise UserError(f"selection.stride was {self.stride}; it must be at least 1")

    def __call__(self, scores: Scores, context: Context | None = None) -> Scores:
        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            turn = torch.arange(values.shape[1], device=values.device) % self.stride == 0
            return Membership(offered & turn)

        return replace(scores, negative=scores.negative.divide(rule).negatives)

    def sampling(self, sampling: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        # the choice does not read scores, so the remaining candidates are distributed as before
        return replace(sampling, negatives=-(-sampling.negatives // self.stride), min_negatives=0)
