"""Telling pairs that belong together from pairs that do not, one pair at a time, by logistic regression."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.bounds.averages import over_anchors
from nearfar.bounds.claims import objective
from nearfar.schedules import Progress
from nearfar.scores import Scores
from nearfar.types import Certificate, NegativeSampling


@dataclass(frozen=True)
class JensenShannon:
    """E[-sp(-f(u, v+))] - E[sp(f(u, v))], sp(x) = log(1 + e^x): Deep InfoMax's form (Liu 2022, Eq. 36-37).

    The best f is the log density ratio, and the value is then 2 JS - 2 log 2, JS the Jensen-Shannon divergence of
    joint and product: it grows with I but is not in its units.
    """

    equation: ClassVar[str] = "E[ -sp(-f(u, v+)) ] - E[ sp(f(u, v_k)) ], sp(x) = log(1 + e^x)"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        negative = scores.negative.mean_of(lambda score: F.logsigmoid(-score))
        return scores.over_positives(F.logsigmoid) + over_anchors(negative, scores.negative.count())

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("it bounds the Jensen-Shannon divergence, which rises with I but is not I")


@dataclass(frozen=True)
class BinaryNCE:
    """E[log s(f(u, v+) - log nu)] + nu E[log s(log nu - f(u, v))], s the logistic function and nu the number of
    negatives to a positive (Liu 2022, Eq. 7-12). f is the log density ratio when the value is highest."""

    equation: ClassVar[str] = (
        "E[ log s(f(u, v+) - log nu) ] + nu E[ log s(log nu - f(u, v_k)) ], s(x) = 1 / (1 + e^-x), nu = "
        "number of v_k"
    )

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        nu = scores.negative.count()
        log_nu = nu.log()  # -inf without noise: then everything is data, surely
        noise = nu * scores.negative.mean_of(lambda score, log_nu: F.logsigmoid(log_nu - score), log_nu)
        return scores.over_positives(lambda f, log_nu, noise: F.logsigmoid(f - log_nu) + noise, log_nu, noise)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("the log-likelihood of telling data from noise estimates a density ratio, not I")
