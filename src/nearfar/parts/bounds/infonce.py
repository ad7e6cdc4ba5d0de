"""InfoNCE, and InfoNCE corrected for negatives of the anchor's class."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.claims import certify, checked, not_covered, objective, per_anchor_ceiling, values


def log_share(positive: Tensor, negatives: Tensor) -> Tensor:
    """log softmax of a positive among itself and its negatives, given as their log-sum-exp."""
    return positive - torch.logaddexp(positive, negatives)


def log_probability(scores: Scores) -> Float[Tensor, ""]:
    """The mean of `log_share` over positives."""
    return scores.over_positives(log_share, scores.negative.logsumexp())


@dataclass(frozen=True)
class InfoNCE(AbstractBound):
    """I >= E[ f(u, v+) - log( (1/m) (e^f(u, v+) + sum_k e^f(u, v_k)) ) ], m = 1 + number of negatives
    (Liu 2022, Eq. 25-33, Wu et al. 2021, Eq. 1, Sáez Maldonado 2021, Eq. 13).

    With several positives per anchor, each is contrasted with the negatives alone and the values are
    averaged. Under a selection that drops the least similar it is CNCE (Wu et al. 2021, Thm 3.1).
    """

    equation = "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], m = 1 + number of v_k"
    reads_only_logsumexp = True
    averages_anchors = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        negative = scores.negative
        return scores.over_positives(
            lambda f, negative_sum, count: log_share(f, negative_sum) + torch.log1p(count),
            negative.logsumexp(),
            negative.count(),
        )

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        return per_anchor_ceiling(math.log(1 + sampling.negatives), sampling)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        ceiling = self.ceiling(sampling, progress)
        if not sampling.exchangeable:
            return not_covered(sampling.reason, ceiling)
        condition = (
            f"the {sampling.negatives} negatives are draws of p(v) that could change places with the "
            "positive if that were independent of the anchor; then the estimate never exceeds I in "
            f"expectation, nor log {1 + sampling.negatives}"
        )
        return certify(condition, sampling, ceiling, averages_anchors=True)


@dataclass(frozen=True)
class Vince(AbstractBound):
    """InfoNCE's number with negatives drawn from any q(v | v+) (Wu et al. 2020, Eq. 4).

    Wu et al. 2020, Eq. 3 subtracts a further K - 1 to have a bound, which leaves nothing of it at any useful
    K, and its q is not normalised. So this is something to maximise, not an estimate.
    """

    objective_only = True
    equation = "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], v_k from any q(v | v+)"
    reads_only_logsumexp = True
    averages_anchors = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return InfoNCE()(scores)

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        return per_anchor_ceiling(math.log(1 + sampling.negatives), sampling)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        reason = (
            f"negatives from a proposal q bound I only after subtracting K - 1 = {sampling.negatives} nats, "
            "which proves nothing"
        )
        return objective(reason, self.ceiling(sampling, progress))


@dataclass(frozen=True)
class Debiased(AbstractBound):
    """E[ f+ - log( (e^f+ + G) / m ) ], G = max( (sum_k e^f_k - tau N e^f+) / (1 - tau), N e^lowest ), m = 1 +
    N (Chuang et al. 2020, Eq. 7 and 8).

    `tau` is the share of an anchor's N negatives expected to be of its own class; the positive stands for
    those, which are taken out of the sum. `lowest` is the least score the critic can give, -1/temperature for
    cosines; without one, G is at least 0. At tau = 0 it is InfoNCE. With `selection=hard` it is HCL (Robinson
    et al. 2021).
    """

    equation = (
        "E[ f(u, v+) - log( (e^f(u, v+) + G) / m ) ], G = max( (sum_k e^f(u, v_k) - t N e^f(u, v+)) / (1 - "
        "t), N e^(least f) ), N = m - 1 the number of v_k, t = {tau}"
    )
    reads_only_logsumexp = True

    averages_anchors = True
    tau: Value = 0.1

    def __post_init__(self) -> None:
        parsed = checked(self.tau, "tau", -1e-12, 1.0, "from 0 and below 1, a number or a schedule")
        object.__setattr__(self, "tau", parsed)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        tau = at(self.tau, progress)
        negative, lowest = scores.negative, scores.lowest

        def value(f: Tensor, negative_sum: Tensor, count: Tensor) -> Tensor:
            return log_share(f, _log_corrected(f, negative_sum, count, tau, lowest)) + torch.log1p(count)

        return scores.over_positives(value, negative.logsumexp(), negative.count())

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return max(values(self.tau, progress)) <= 0

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        return per_anchor_ceiling(math.log(1 + sampling.negatives), sampling)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        if self.is_estimate(sampling, progress):
            return InfoNCE().certificate(sampling, progress)
        reason = (
            "negatives of the anchor's class are subtracted, so it compares with other classes and can "
            "exceed I"
        )
        return objective(reason, self.ceiling(sampling, progress))


def _log_corrected(
    f: Tensor, negative_sum: Tensor, count: Tensor, tau: float, lowest: Tensor | float | None
) -> Tensor:
    """log G from log-sums: log(e^a - e^b) = a + log(1 - e^(b - a)), or the floor."""
    if tau <= 0:
        return negative_sum.expand_as(f)
    positive_part = f + math.log(tau) + count.log()
    has_rest = negative_sum > positive_part
    # the inner zero and one keep gradients finite where the outer floor discards the value
    gap = torch.where(has_rest, positive_part - negative_sum, -1.0)
    corrected = torch.where(has_rest, negative_sum, 0.0) + torch.log1p(-gap.exp()) - math.log1p(-tau)
    corrected = torch.where(has_rest, corrected, -torch.inf)
    if lowest is None:
        return corrected
    return torch.maximum(corrected, count.log() + lowest)
