"""Losses of metric learning, as values to maximise: triplet, (N+1)-tuple, multi-class N-pair."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Negatives, Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.claims import checked, objective
from nearfar.parts.bounds.infonce import log_probability


@dataclass(frozen=True)
class Triplet(AbstractBound):
    """Minus the mean over negatives of max(0, |u - v+|^2 - |u - v|^2 + margin) (Sáez Maldonado 2021, Eq. 17-18).

    Scores are minus squared distances. `semi_hard` takes the mean over those negatives alone that are farther than
    the positive yet inside the margin (FaceNet); an anchor without any counts as 0.
    """

    equation = "-E[ max(0, f(u, v_k) - f(u, v+) + {margin}) ]"
    remarks = (("semi_hard", True, "over v_k with f(u, v_k) < f(u, v+) alone"),)
    distance_scores = True
    margin: Value = 1.0
    semi_hard: bool = False

    def __post_init__(self) -> None:
        parsed = checked(self.margin, "margin", 0, math.inf, "a number or schedule above 0")
        object.__setattr__(self, "margin", parsed)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        margin = at(self.margin, progress)
        loss = _semi_hard if self.semi_hard else _hinge
        if scores.also is None:
            losses = [loss(scores.negative, positive, margin) for positive in scores.positive.unbind(dim=1)]
            return -torch.stack(losses).mean()
        # a sum over positives of a mean over negatives is no reduction of either: their mean score stands for the positives
        positive = (
            scores.positive.sum(dim=1) + scores.also.sum_of(lambda f: f)
        ) / scores.positive_count().clamp_min(1)
        return -loss(scores.negative, positive, margin).mean()

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("a margin between distances says nothing about information")


def _hinge(negative: Negatives, positive: Tensor, margin: float) -> Float[Tensor, "anchor"]:
    return negative.mean_of(lambda score, own: torch.relu(score - own + margin), positive)


def _semi_hard(negative: Negatives, positive: Tensor, margin: float) -> Float[Tensor, "anchor"]:
    def between(score: Tensor, own: Tensor) -> Tensor:
        return ((score < own) & (score > own - margin)).to(score.dtype)

    total = negative.mean_of(lambda score, own: between(score, own) * (score - own + margin), positive)
    share = negative.mean_of(between, positive)
    return total / torch.where(share > 0, share, 1.0)


@dataclass(frozen=True)
class Tuple(AbstractBound):
    """Minus log(1 + sum_k e^(f(u, v_k) - f(u, v+))), the (N+1)-tuple loss (Sáez Maldonado 2021, Eq. 19), for negatives of any
    source."""

    equation = "-E[ log(1 + sum_k e^(f(u, v_k) - f(u, v+))) ]"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return log_probability(scores)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _short_by(sampling)


@dataclass(frozen=True)
class NPair(AbstractBound):
    """Minus the multi-class N-pair loss (Sáez Maldonado 2021, Eq. 20): the tuple loss with the other pairs of the batch as negatives.

    It is InfoNCE without its log m (Sáez Maldonado 2021, Eq. 22): the same gradient, another number.
    """

    equation = "-E[ log(1 + sum_k e^(f(u, v_k) - f(u, v+))) ]"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return log_probability(scores)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _short_by(sampling)


def _short_by(sampling: NegativeSampling) -> Certificate:
    m = 1 + sampling.negatives
    return objective(
        f"a classification loss: add log {m} to compare it with I, which is what bound=infonce does"
    )
