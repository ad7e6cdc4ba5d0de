"""Several bounds of the same scores, added: `nce-constant+ml-cpc`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds.claims import objective


class Sum(nn.Module, AbstractBound):
    """The sum of the parts' values, of one set of scores.

    Each part may be below I and their sum above it, so it is an objective, and no estimate; its ceiling is the sum of theirs.
    """

    def __init__(self, *parts: AbstractBound) -> None:
        super().__init__()
        if len({part.distance_scores for part in parts}) > 1:
            raise UserError(
                "bound: scores are distances to one part of the sum (triplet) and logarithms to another; add bounds of one kind"
            )
        self.parts = parts
        self.distance_scores = any(part.distance_scores for part in parts)
        self.needs_bounded_scores = any(part.needs_bounded_scores for part in parts)
        self.reads_negatives = any(part.reads_negatives for part in parts)
        self.has_memory = any(part.has_memory for part in parts)
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return torch.stack([part(scores, progress) for part in self.parts]).sum()

    @property
    def _with_memory(self) -> list[AbstractBound]:
        return [part for part in self.parts if part.has_memory]

    def observe(self, scores: Scores) -> Float[Tensor, "part"]:
        return torch.stack([part.observe(scores) for part in self._with_memory])

    def advance(self, observed: Float[Tensor, "pair part"], progress: Progress) -> None:
        for part, column in zip(self._with_memory, observed.unbind(1), strict=True):
            part.advance(column, progress)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        ceilings = [part.ceiling(sampling, progress) for part in self.parts]
        finite = [ceiling for ceiling in ceilings if ceiling is not None]
        return sum(finite) if len(finite) == len(ceilings) else None

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        why = "a sum of several bounds can exceed what each of them is below"
        return objective(why, self.ceiling(sampling, progress))
