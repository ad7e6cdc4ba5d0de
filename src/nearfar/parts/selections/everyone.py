"""All candidates but the anchor itself."""

from dataclasses import dataclass

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Context, NegativeSampling


@dataclass(frozen=True)
class Everyone(AbstractSelection):
    """Keeps every negative: q(v | u) = p(v)."""

    keeps_all = True
    equation = "all K"

    def __call__(self, scores: Scores, context: Context | None = None) -> Scores:
        return scores

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        return given
