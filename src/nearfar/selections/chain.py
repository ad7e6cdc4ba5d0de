"""Several selections in turn: `labelled+ring` takes positives by label, then a ring of the rest.

Selections map scores to scores, so one can follow another.
"""

from torch import nn

from nearfar.errors import UserError
from nearfar.schedules import Progress
from nearfar.scores import Scores
from nearfar.types import Context, NegativeSampling, Selection


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
