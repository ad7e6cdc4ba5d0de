"""InfoNCE: how well the positive is distinguished from its negatives."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.claims import not_covered, objective, proven


def log_share(positive: Tensor, negatives: Tensor) -> Tensor:
    """log softmax of a positive among itself and the negatives of its anchor, whose log-sum-exp is given; without other
    positives."""
    return positive - torch.logaddexp(positive, negatives)


def log_probability(scores: Scores) -> Float[Tensor, ""]:
    """Its mean over positives."""
    return scores.over_positives(log_share, scores.negative.logsumexp())


@dataclass(frozen=True)
class InfoNCE(AbstractBound):
    """I >= E[ f(u, v+) - log( (1/m) (e^f(u, v+) + sum_k e^f(u, v_k)) ) ], m = 1 + number of negatives
    (Liu 2022, Eq. 25-33, Wu et al. 2021, Eq. 1, Sáez Maldonado 2021, Eq. 13).

    With several positives per anchor, each is contrasted with the negatives alone and the values are averaged. Under a
    selection that drops the least similar it is CNCE (Wu et al. 2021, Thm 3.1).
    """

    equation = "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], m = 1 + number of v_k"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        negative = scores.negative
        return scores.over_positives(
            lambda f, others, count: log_share(f, others) + torch.log1p(count),
            negative.logsumexp(),
            negative.count(),
        )

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float:
        return math.log(1 + sampling.negatives)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        ceiling = self.ceiling(sampling, progress)
        if not sampling.exchangeable:
            return not_covered(sampling.reason, ceiling)
        condition = (
            f"the {sampling.negatives} negatives are draws of p(v) that could change places with the positive if that were "
            f"independent of the anchor; then the estimate never exceeds I in expectation, nor log {1 + sampling.negatives}"
        )
        return proven(condition, sampling, ceiling)


@dataclass(frozen=True)
class Vince(AbstractBound):
    """InfoNCE's number with negatives drawn from any q(v | v+) (Wu et al. 2020, Eq. 4), as a selection or sampler gives them.

    Wu et al. 2020, Eq. 3 subtracts a further K - 1 to have a bound, which leaves nothing of it at any useful K, and its q is
    not normalised. So this is something to maximise, not an estimate.
    """

    equation = "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], v_k from any q(v | v+)"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return InfoNCE()(scores)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float:
        return math.log(1 + sampling.negatives)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        why = f"negatives from a proposal q bound I only after subtracting K - 1 = {sampling.negatives} nats, which proves nothing"
        return objective(why, self.ceiling(sampling, progress))
