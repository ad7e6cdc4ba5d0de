"""Contrast with the positive re-weighted by alpha: per anchor (alpha-CPC), over the batch (ML-CPC)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds.claims import certify, checked, not_covered, per_anchor_ceiling, values
from nearfar.parts.bounds.infonce import InfoNCE

_POSITIVE = "a number or schedule above 0"


def _check_below(alpha: float, m: float) -> None:
    if alpha >= m > 1:
        raise UserError(
            f"bound.alpha was {alpha:g} with {m - 1:g} negatives to a positive; it must be below {m:g}, "
            "or negatives would not count against the estimate"
        )


def _ceiling(alphas: tuple[float, ...], m: int) -> float:
    for alpha in alphas:
        _check_below(alpha, m)
    return math.log(m / min(alphas))


def _span(alphas: tuple[float, ...]) -> str:
    return " to ".join(f"{alpha:g}" for alpha in dict.fromkeys(alphas))


@dataclass(frozen=True)
class AlphaCPC(AbstractBound):
    """mean_i log( m e^f(u_i, v_i) / (alpha e^f(u_i, v_i) + b sum_k e^f(u_i, v_ik)) ), b = (m - alpha) / (m -
    1) (Song & Ermon 2020, Eq. 4); m = 1 + number of negatives of the anchor.

    A small alpha lifts the ceiling from log m to log(m / alpha), and with it the value above the truth; from 1
    to m the value stays below it. Where
    fewer negatives are there than places for them (a queue that fills, a cave), b stops at 0: with no more
    than alpha - 1 of them the value of an anchor is log(m / alpha) whatever its scores, and its gradient is
    0.
    """

    equation = (
        "E[ log( m e^f(u, v+) / (alpha e^f(u, v+) + b sum_k e^f(u, v_k)) ) ], b = (m - alpha) / (m - 1), "
        "alpha = {alpha}"
    )
    reads_only_logsumexp = True
    averages_anchors = True
    alpha: Value = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked(self.alpha, "alpha", 0, math.inf, _POSITIVE))

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        alpha, count = at(self.alpha, progress), scores.negative.count()
        _check_below(alpha, 1 + scores.negative.offered())
        log_b = torch.log((1 + count - alpha).clamp_min(0) / count.clamp_min(1))
        negative = log_b + scores.negative.logsumexp()
        return scores.over_positives(
            lambda f, negative_sum, count: (
                torch.log1p(count) + (f - torch.logaddexp(math.log(alpha) + f, negative_sum))
            ),
            negative,
            count,
        )

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        return per_anchor_ceiling(_ceiling(values(self.alpha, progress), 1 + sampling.negatives), sampling)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        alphas, ceiling = values(self.alpha, progress), self.ceiling(sampling, progress)
        if set(alphas) == {1.0}:
            return InfoNCE().certificate(sampling, progress)
        if min(alphas) < 1:
            reason = (
                f"alpha = {min(alphas):g} is below 1, so the value can exceed I; on a fair coin seen twice, 2 "
                "negatives and alpha = 0.5 give 0.7174 nats, more than the log 2 = 0.6931 there are"
            )
            return not_covered(reason, ceiling)
        if not sampling.exchangeable:
            return not_covered(sampling.reason, ceiling)
        condition = (
            f"alpha = {_span(alphas)} lies in [1, m], m = {1 + sampling.negatives}, and the negatives are "
            "draws of p(v) that could change places with the positive if that were independent of the "
            "anchor; then the estimate never exceeds I in expectation, nor log(m/alpha) = "
            f"{_ceiling(alphas, 1 + sampling.negatives):.4g}"
        )
        return certify(condition, sampling, ceiling, averages_anchors=True)


@dataclass(frozen=True)
class MultiLabelCPC(AbstractBound):
    """mean_i log( (P + N) e^f(u_i, v_i) / (alpha sum_j e^f(u_j, v_j) + beta sum_jk e^f(u_j, v_jk)) ), the
    sums over all P positives and N negatives of all anchors, beta = (P + N - alpha P) / N.

    For n anchors with one positive and m - 1 negatives each, P + N = nm and beta = (m - alpha) / (m - 1):
    Song & Ermon 2020, Eq. 6; its Eq. 5 is alpha = 1. Where fewer negatives are there than places for them,
    beta stops at 0.
    """

    equation = (
        "E_i[ log( nm e^f(u_i, v_i+) / (alpha sum_j e^f(u_j, v_j+) + b sum_jk e^f(u_j, v_jk)) ) ], b = (m - "
        "alpha) / (m - 1), alpha = {alpha}"
    )
    reads_only_logsumexp = True
    alpha: Value = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked(self.alpha, "alpha", 0, math.inf, _POSITIVE))

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        per_positive = 1 + scores.negative.count().sum() / scores.positive_count().sum()
        return per_positive.log() - math.log(at(self.alpha, progress)) - self.divergence(scores, progress)

    def divergence(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        """KL( p | p' ) where p shares 1 among the positives and p' is the softmax of all weighted scores
        (Song & Ermon 2020, Algorithm 1): how far the value is below log( (P + N) / (alpha P) ), never
        negative."""
        alpha, positives = at(self.alpha, progress), scores.positive_count().sum()
        negatives = scores.negative.count().sum()
        if scores.more_positives is None:
            _check_below(alpha, 1 + scores.negative.offered() / scores.positive.shape[1])
        log_beta = torch.log(
            (positives + negatives - alpha * positives).clamp_min(0) / negatives.clamp_min(1)
        )
        log_z = torch.logaddexp(
            math.log(alpha) + scores.positive_logsumexp().logsumexp(dim=0),
            log_beta + scores.negative.logsumexp().logsumexp(dim=0),
        )
        total = (
            scores.positive.sum()
            if scores.more_positives is None
            else scores.positive.sum() + scores.more_positives.sum_of(lambda f: f).sum()
        )
        return log_z - math.log(alpha) - total / positives - torch.log(positives)

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float:
        return _ceiling(values(self.alpha, progress), 1 + sampling.negatives)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        n, m, alphas = sampling.anchors, 1 + sampling.negatives, values(self.alpha, progress)
        # the fewer negatives, the larger the least alpha: the range must hold when a selection keeps fewest
        min_negatives = m - 1 if sampling.min_negatives is None else sampling.min_negatives
        ceiling, min_alpha = self.ceiling(sampling, progress), smallest_proven_alpha(n, min_negatives)
        smallest_m = 1 + min_negatives
        limits = f"[m/(n(m-1)+1), m] = [{min_alpha:g}, {smallest_m}] for n = {n} and m = {smallest_m}"
        outside = [alpha for alpha in alphas if not min_alpha <= alpha <= smallest_m]
        if outside:
            return not_covered(f"alpha = {outside[0]:g} is outside {limits}", ceiling)
        if not sampling.independent:
            reason = sampling.reason or "anchors share their negatives"
            return not_covered(
                f"{reason}; the proof needs {n} times {m - 1} negatives drawn from p(v) independently",
                ceiling,
            )
        condition = (
            f"alpha = {_span(alphas)} lies in {limits}, and every anchor has negatives of its own, drawn "
            "from p(v) independently of everything else; then the estimate never exceeds I in expectation, "
            f"nor log(m/alpha) = {ceiling:.4g}"
        )
        return certify(condition, sampling, ceiling)


def smallest_proven_alpha(anchors: int, negatives: int) -> float:
    """m / (n (m - 1) + 1), n anchors with m - 1 negatives each (Song & Ermon 2020, Thm 2 and Cor. 2)."""
    return (1 + negatives) / (anchors * negatives + 1)
