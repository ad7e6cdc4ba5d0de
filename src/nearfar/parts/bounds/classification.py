"""Telling pairs that belong together from pairs that do not, one pair at a time, by logistic regression."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.claims import objective
from nearfar.parts.bounds.variational import over_anchors


@dataclass(frozen=True)
class JensenShannon(AbstractBound):
    """E[-sp(-f(u, v+))] - E[sp(f(u, v))], sp(x) = log(1 + e^x): Deep InfoMax's form (Liu 2022, Eq. 36-37).

    The best f is the log density ratio, and the value is then 2 JS - 2 log 2, JS the Jensen-Shannon
    divergence of joint and product: it grows with I but is not in its units.
    """

    objective_only = True
    equation = "E[ -sp(-f(u, v+)) ] - E[ sp(f(u, v_k)) ], sp(x) = log(1 + e^x)"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        negative = scores.negative.mean_of(lambda score: F.logsigmoid(-score))
        return scores.over_positives(F.logsigmoid) + over_anchors(negative, scores.negative.count())

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("it bounds the Jensen-Shannon divergence, which rises with I but is not I")


@dataclass(frozen=True)
class BinaryNCE(AbstractBound):
    """E[log s(f(u, v+) - log nu)] + nu E[log s(log nu - f(u, v))], s the logistic function and nu the number
    of negatives to a positive (Liu 2022, Eq. 7-12). f is the log density ratio when the value is highest."""

    objective_only = True
    equation = (
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


class ConstantNCE(nn.Module, AbstractBound):
    """BinaryNCE of f(u, v) - log z, z the mean of e^f over positives and negatives of the first step, a
    constant from then on: how contrastive representation distillation normalises e^f (Tian et al. 2020b, Eq.
    9-11; Wu et al. 2018).

    Theirs is h(u, v) = (e^f / Z) / (e^f / Z + N / M) with N negatives, M instances and Z = M z, so h = s(f -
    log z - log N).
    """

    objective_only = True
    equation = (
        "E[ log h(u, v+) ] + N E[ log(1 - h(u, v_k)) ], h(u, v) = e^f / (e^f + N z), N = number of v_k, z "
        "= mean of e^f in the first step"
    )
    has_memory = True
    log_z: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_z", torch.tensor(-torch.inf))  # nothing seen yet

    def forward(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        stored = self.log_z.to(scores.positive.dtype)
        log_z = torch.where(torch.isneginf(stored), self.observe(scores), stored)
        count = scores.negative.count()
        log_n = count.log()
        noise = count * scores.negative.mean_of(
            lambda score, log_n: F.logsigmoid(log_n + log_z - score), log_n
        )
        return scores.over_positives(
            lambda f, log_n, noise: F.logsigmoid(f - log_z - log_n) + noise, log_n, noise
        )

    @torch.no_grad()
    def observe(self, scores: Scores) -> Float[Tensor, ""]:
        total = torch.logaddexp(
            scores.positive_logsumexp().logsumexp(dim=0), scores.negative.logsumexp().logsumexp(dim=0)
        )
        return total - (scores.positive_count().sum() + scores.negative.count().sum()).log()

    @torch.no_grad()
    def advance(self, observed: Float[Tensor, "pair"], progress: Progress) -> None:
        if bool(torch.isneginf(self.log_z)):
            self.log_z.copy_(observed.logsumexp(dim=0) - math.log(len(observed)))

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("the log-likelihood of telling data from noise estimates a density ratio, not I")
