"""Bounds with an explicit normaliser: Barber-Agakov, its unnormalised form, and that with a fixed baseline.

Write Z(u) = E_p(v)[e^f(u, v)]. Then I >= E[f - log Z] (UBA). Because log Z <= Z/a + log a - 1 for every a > 0,
I >= E[f] - E[Z/a] - log a + 1 (TUBA), which is linear in the negatives. NWJ is a = e (Wu et al. 2020,
App. A).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Negatives, Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds.claims import certify, checked, not_covered, objective


@dataclass(frozen=True)
class BarberAgakov(AbstractBound):
    """I >= E[log q(v | u)] + H(v) (Sáez Maldonado 2021, sec. 3; Wu et al. 2020, App. A). Scores of positives
    are log q(v | u) of a normalised density q; negatives are not read. `entropy` is H(v) in nats; without it
    the value lacks that constant."""

    equation = "E[ f(u, v+) ] + H(v), f the log of a normalised q(v | u), H(v) known or left out"
    reads_only_logsumexp = True
    reads_negatives = False
    needs_bounded_scores = True  # nothing else limits the value
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
                "the critic's scores are not log q(v | u) of a normalised density q, without which H(v) + "
                "E[f] does not bound I"
            )
        if sampling.more_positives:
            return not_covered(sampling.reason)
        if not sampling.positive_is_key:
            return not_covered(
                "the source of negatives does not declare that the positive is the anchor's own key, and H(v) "
                "is the entropy of that key"
            )
        condition = (
            f"scores are log q(v | u) of a normalised q and H(v) is {self.entropy:.4g} nats; then the "
            "estimate never exceeds I in expectation"
        )
        # no negatives are read, so no cut of them matters
        return certify(condition, replace(sampling, cut="none"))


@dataclass(frozen=True)
class UBA(AbstractBound):
    """E[f(u, v+) - log Z(u)], Z(u) the mean of e^f over negatives (Wu et al. 2020, Lemma A.1)."""

    equation = "E[ f(u, v+) - log mean_k e^f(u, v_k) ]"
    reads_only_logsumexp = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        count = scores.negative.count()
        return over_anchors(positive_over_sum(scores) + count.clamp_min(1).log(), count)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return not_covered(
            f"the log of a mean over {sampling.negatives} negatives lies below log Z(u) in expectation "
            "(Jensen), so the estimate is biased upwards"
        )


def positive_over_sum(scores: Scores) -> Float[Tensor, "anchor"]:
    """The mean of f(u, v+) over an anchor's positives, minus log sum_k e^f(u, v_k)."""
    total = scores.positive.sum(dim=1)
    if scores.more_positives is not None:
        total = total + scores.more_positives.sum_of(lambda f: f)
    return total / scores.positive_count().clamp_min(1) - scores.negative.logsumexp()


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
        f"the {sampling.negatives} negatives are drawn from p(v), independently of the anchor, and the mean "
        "of e^f over them "
        "enters linearly; then the estimate never exceeds I in expectation (its variance may be large)"
    )
    return certify(condition, sampling)


@dataclass(frozen=True)
class TUBA(AbstractBound):
    """I >= E[f] - E[e^f]/a - log a + 1, `log_baseline` = log a (Wu et al. 2020, App. A; Poole et al. 2019).

    Scores more than 30 above the baseline are clipped (`soft_clip`). Tight at log a + log ratio.
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
    """I >= E[f(u, v+)] - E[e^(f(u, v) - 1)] (Wu et al. 2020, Lemma A.2): TUBA with a = e.

    Scores above 31 are clipped (`soft_clip`).
    """

    equation = "E[ f(u, v+) ] - E[ e^(f(u, v_k) - 1) ]"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return _linear(scores, 1.0)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _linear_certificate(sampling)


def _itself(score: Tensor) -> Tensor:
    return score


class DonskerVaradhan(nn.Module, AbstractBound):
    """E[f(u, v+)] - log E[e^f(u, v)], the second mean over all pairs (Sáez Maldonado 2021, sec. 3).

    The gradient of the log term divides by a mean over the batch, which biases it. MINE divides by a running
    mean instead, mean <- momentum mean + (1 - momentum) batch mean, of which this batch is already a part.
    The value is the plain one either way. `momentum` = 0 is the plain gradient, MINE takes 0.99.
    """

    equation = "E[ f(u, v+) ] - log E[ e^f(u, v_k) ]"
    reads_only_logsumexp = True
    has_memory = True
    log_running: Tensor

    def __init__(self, momentum: Value = 0.0) -> None:
        super().__init__()
        self.momentum = checked(
            momentum, "momentum", -math.ulp(0.0), 1, "a number or schedule from 0 to below 1"
        )
        # log of the running mean of e^f; -inf: nothing seen yet
        self.register_buffer("log_running", torch.tensor(-torch.inf))

    def forward(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        log_mean = log_mean_exp(scores.negative)
        batch = log_mean.detach()
        # at most 1 / (1 - momentum), because the running mean contains the batch's
        share = torch.exp(batch - self._updated_mean(batch, progress))
        return scores.over_positives(_itself) - batch - share * (log_mean - batch)

    def _updated_mean(self, log_mean: Tensor, progress: Progress | None) -> Tensor:
        """log of the running mean after a batch of this mean."""
        momentum = at(self.momentum, progress)
        previous = self.log_running.to(log_mean.dtype)
        decayed = previous + (math.log(momentum) if momentum > 0 else -torch.inf)
        updated = torch.logaddexp(decayed, log_mean + math.log1p(-momentum))
        return torch.where(torch.isneginf(previous), log_mean, updated)

    def observe(self, scores: Scores) -> Float[Tensor, ""]:
        return log_mean_exp(scores.negative).detach()

    @torch.no_grad()
    def advance(self, observed: Float[Tensor, "pair"], progress: Progress) -> None:
        mean = observed.logsumexp(dim=0) - math.log(len(observed))
        self.log_running.copy_(self._updated_mean(mean, progress))

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        if sampling.held_out:
            return not_covered(
                "on held-out data the estimate is consistent, but biased upwards at finite size; the log of "
                f"a mean over {sampling.anchors} times {sampling.negatives} pairs lies below the log of its "
                "expectation (Jensen)"
            )
        return not_covered(
            "on the sample the critic was fitted to, the value can exceed I without limit; use held-out data"
        )


@dataclass(frozen=True)
class SMILE(AbstractBound):
    """E[f(u, v+)] - log E[clip(e^f(u, v), e^-clip, e^clip)] (Song and Ermon 2020): Donsker-Varadhan with its
    exponentials clipped, which bounds their variance and with it removes the guarantee."""

    equation = "E[ f(u, v+) ] - log E[ clip(e^f(u, v_k), e^-{clip}, e^{clip}) ]"
    clip: Value = 5.0

    def __post_init__(self) -> None:
        # e^(-2 * 40) is still a normal float32
        parsed = checked(self.clip, "clip", 0, math.nextafter(40.0, 41.0), "above 0 and at most 40")
        object.__setattr__(self, "clip", parsed)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        clip = at(self.clip, progress)
        mean = pooled_mean(scores.negative, lambda score: torch.exp(score.clamp(-clip, clip) - clip))
        log_mean = torch.where(mean > 0, mean.log() + clip, 0.0)
        return scores.over_positives(_itself) - log_mean

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return not_covered(
            f"not a bound: clipping e^f at e^{at(self.clip, progress):g} lowers the mean it subtracts, so "
            "the value can exceed I"
        )


# gradients are squared: (e^30 × 10^6)^2 is still a float32, and no useful log-ratio comes near
SOFT_LIMIT = 30.0


def soft_clip(scores: Tensor) -> Tensor:
    """The scores, growing only logarithmically beyond 30, so that no exponential overflows.

    A bound holds for every critic, so also for the clipped one, if positives and negatives are clipped alike.
    Below 30 nothing changes; at 30 the slope is continuous.
    """
    excess = (scores - SOFT_LIMIT).clamp_min(0.0)
    return scores - excess + torch.log1p(excess)


def over_anchors(per_anchor: Float[Tensor, "anchor"], count: Float[Tensor, "anchor"]) -> Float[Tensor, ""]:
    """Mean over the anchors that have negatives; 0 if there are none."""
    with_any = count > 0
    return torch.where(with_any, per_anchor, 0.0).sum() / with_any.sum().clamp_min(1)


def log_mean_exp(negative: Negatives) -> Float[Tensor, ""]:
    """log of the mean of e^f over all negatives of all anchors; 0 if there are none."""
    total = negative.count().sum()
    pooled = negative.logsumexp().logsumexp(dim=0)
    return torch.where(total > 0, pooled - total.log(), 0.0)


def pooled_mean(negative: Negatives, function: Callable[[Tensor], Tensor]) -> Float[Tensor, ""]:
    """Mean of an elementwise function over all negatives of all anchors; 0 if there are none."""
    count = negative.count()
    return (negative.mean_of(function) * count).sum() / count.sum().clamp_min(1)
