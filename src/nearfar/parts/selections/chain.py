"""Several selections in turn: `labelled+ring` takes positives by label, then a ring of the rest.

Selections map scores to scores, so one can follow another.
"""

from torch import nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError


class Chain(nn.Module, AbstractSelection):
    """Each selection chooses from what the one before it left."""

    def __init__(self, *parts: AbstractSelection) -> None:
        super().__init__()
        if any(part.weights_negatives for part in parts[:-1]):
            raise UserError("selection: a weighting selection (hard) must be the last of a chain")
        self.parts = parts
        self.keeps_all = all(part.keeps_all for part in parts)
        self.ranks_by_score = any(part.ranks_by_score for part in parts)
        self.weights_negatives = any(part.weights_negatives for part in parts)
        self.remembers_instances = any(part.remembers_instances for part in parts)
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def members(self) -> tuple[AbstractSelection, ...]:
        return tuple(member for part in self.parts for member in part.members())

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        for part in self.parts:
            scores = part(scores, context)
        return scores

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        for part in self.parts:
            given = part.sampling(given, progress)
        return given
