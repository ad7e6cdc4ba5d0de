"""Several bounds of the same scores, added: `nce-constant+ml-cpc`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Bound, Certificate, NegativeSampling, Remembering
from nearfar.errors import UserError
from nearfar.parts.bounds.claims import objective


class Sum(nn.Module):
    """The sum of the parts' values, of one set of scores.

    Each part may be below I and their sum above it, so it is an objective, and no estimate; its ceiling is the sum of theirs.
    """

    def __init__(self, *parts: Bound) -> None:
        super().__init__()
        if len({bool(getattr(part, "distance_scores", False)) for part in parts}) > 1:
            raise UserError(
                "bound: scores are distances to one part of the sum (triplet) and logarithms to another; add bounds of one kind"
            )
        self.parts = parts
        self.distance_scores = any(getattr(part, "distance_scores", False) for part in parts)
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return torch.stack([part(scores, progress) for part in self.parts]).sum()

    @property
    def _remembering(self) -> list[Remembering]:
        return [part for part in self.parts if isinstance(part, Remembering)]

    def observe(self, scores: Scores) -> Float[Tensor, "part"]:
        seen = [part.observe(scores) for part in self._remembering]
        return torch.stack(seen) if seen else scores.positive.new_empty(0)

    def advance(self, observed: Float[Tensor, "pair part"], progress: Progress) -> None:
        for part, seen in zip(self._remembering, observed.unbind(1), strict=True):
            part.advance(seen, progress)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        ceilings = [part.certificate(sampling, progress).ceiling for part in self.parts]
        known = [ceiling for ceiling in ceilings if ceiling is not None]
        return objective(
            "a sum of several bounds can exceed what each of them is below",
            sum(known) if len(known) == len(ceilings) else None,
        )
