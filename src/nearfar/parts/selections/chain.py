"""Several selections in turn: `labelled+ring` takes positives by label, then a ring of the rest.

Selections map scores to scores, so one can follow another.
"""

from torch import nn

from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Context, NegativeSampling, Selection
from nearfar.errors import UserError


class Chain(nn.Module):
    """Each selection chooses from what the one before it left."""

    def __init__(self, *parts: Selection) -> None:
        super().__init__()
        if any(getattr(part, "weighs", False) for part in parts[:-1]):
            raise UserError(
                "selection: weights have mean one over those who count, so what weighs them comes last"
            )
        self.parts = parts
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        for part in self.parts:
            scores = part(scores, context)
        return scores

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        for part in self.parts:
            given = part.sampling(given, progress)
        return given
