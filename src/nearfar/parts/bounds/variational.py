"""Bounds with an explicit normaliser: Barber-Agakov, its unnormalised form, and that with a fixed baseline.

Write Z(u) = E_p(v)[e^f(u, v)]. Then I >= E[f - log Z] (UBA), and because log Z <= Z/a + log a - 1 for every a > 0,
I >= E[f] - E[Z/a] - log a + 1 (TUBA), which is linear in the negatives. NWJ is a = e (Wu et al. 2020, App. A).
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds.averages import over_anchors, soft_clip
from nearfar.parts.bounds.claims import checked, not_covered, objective, proven


@dataclass(frozen=True)
class BarberAgakov(AbstractBound):
    """I >= E[log q(v | u)] + H(v) (Sáez Maldonado 2021, sec. 3; Wu et al. 2020, App. A). Scores of positives are log q(v | u) of a normalised
    density q; negatives are not read. `entropy` is H(v) in nats; without it the value lacks that constant."""

    equation = "E[ f(u, v+) ] + H(v), f the log of a normalised q(v | u), H(v) known or left out"
    reads_negatives = False
    needs_bounded_scores = True  # scores: nothing else holds the value down
    entropy: float | None = None

    def __post_init__(self) -> None:
        if self.entropy is not None and not math.isfinite(self.entropy):
            raise UserError(f"bound.entropy was {self.entropy}; it must be H(v) in nats, or left out")

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return scores.over_positives(lambda f: f) + (self.entropy or 0.0)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return self.entropy is not None and sampling.normalised is not False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        if self.entropy is None:
            return objective("log q(v | u) bounds I only together with the entropy H(v), which is not given")
        if sampling.normalised is False:
            return objective(
                "the critic's scores are not log q(v | u) of a normalised density q, without which H(v) + E[f] is no bound"
            )
        if sampling.more_positives:
            return not_covered(sampling.reason)
        condition = (
            f"scores are log q(v | u) of a normalised q and H(v) is {self.entropy:.4g} nats; then the estimate never exceeds I "
            "in expectation"
        )
        # no negatives are read, so no cut of them matters
        return proven(condition, replace(sampling, cut="none"))


@dataclass(frozen=True)
class UBA(AbstractBound):
    """E[f(u, v+) - log Z(u)], Z(u) estimated as the mean of e^f over the anchor's negatives (Wu et al. 2020, Lemma A.1)."""

    equation = "E[ f(u, v+) - log mean_k e^f(u, v_k) ]"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        count = scores.negative.count()
        log_z = scores.negative.logsumexp() - count.clamp_min(1).log()
        own = (
            scores.positive.sum(dim=1)
            if scores.also is None
            else scores.positive.sum(dim=1) + scores.also.sum_of(lambda f: f)
        )
        return over_anchors(own / scores.positive_count().clamp_min(1) - log_z, count)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return not_covered(
            f"the log of a mean over {sampling.negatives} negatives lies below log Z(u) in expectation "
            "(Jensen), so the estimate is biased upwards"
        )


def _linear(scores: Scores, log_baseline: float) -> Float[Tensor, ""]:
    """E[g] - E[e^g] + 1 with g = f - log a."""
    positive = scores.over_positives(lambda f: soft_clip(f - log_baseline))
    partition = scores.negative.mean_of(lambda score: torch.exp(soft_clip(score - log_baseline)))
    return positive + 1.0 - over_anchors(partition, scores.negative.count())


def _linear_certificate(sampling: NegativeSampling) -> Certificate:
    if sampling.negatives == 0:
        return not_covered("without negatives nothing holds the value down")
    if not sampling.exchangeable:
        return not_covered(sampling.reason)
    condition = (
        f"the {sampling.negatives} negatives are drawn from p(v), independently of the anchor, and the mean of e^f over them "
        "enters linearly; then the estimate never exceeds I in expectation (its variance may be large)"
    )
    return proven(condition, sampling)


@dataclass(frozen=True)
class TUBA(AbstractBound):
    """I >= E[f] - E[e^f]/a - log a + 1 for any a > 0; `log_baseline` is log a (Wu et al. 2020, App. A, after Poole et al. 2019).

    Scores more than 30 above the baseline are tamed (see `averages.soft_clip`). Tight for f = log a + log ratio.
    """

    equation = "E[ f(u, v+) ] - E[ e^f(u, v_k) ] / a - log a + 1, log a = {log_baseline}"
    log_baseline: Value = 0.0

    def __post_init__(self) -> None:
        parsed = checked(self.log_baseline, "log_baseline", -math.inf, math.inf, "a number or schedule")
        object.__setattr__(self, "log_baseline", parsed)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return _linear(scores, at(self.log_baseline, progress))

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _linear_certificate(sampling)


@dataclass(frozen=True)
class NWJ(AbstractBound):
    """I >= E[f(u, v+)] - E[e^(f(u, v) - 1)] (Wu et al. 2020, Lemma A.2): TUBA with a = e. Tight for f = 1 + log ratio.

    Scores above 31 are tamed (see `averages.soft_clip`).
    """

    equation = "E[ f(u, v+) ] - E[ e^(f(u, v_k) - 1) ]"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return _linear(scores, 1.0)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _linear_certificate(sampling)
