"""Donsker-Varadhan: the log of one mean over all pairs; with MINE's gradient; clipped (SMILE)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.averages import log_mean_exp, pooled_mean
from nearfar.parts.bounds.claims import checked, not_covered


def _itself(score: Tensor) -> Tensor:
    return score


class DonskerVaradhan(nn.Module, AbstractBound):
    """E[f(u, v+)] - log E[e^f(u, v)], the second mean over all negatives of all anchors (Sáez Maldonado 2021, sec. 3).

    The gradient of the log term divides by a mean over the batch, which biases it. MINE divides by a running mean
    instead, mean <- momentum mean + (1 - momentum) batch mean, of which this batch is already a part. The value
    is the plain one either way. `momentum` = 0 is the plain gradient, MINE takes 0.99.
    """

    equation = "E[ f(u, v+) ] - log E[ e^f(u, v_k) ]"
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
        share = torch.exp(batch - self._moved(batch, progress))
        return scores.over_positives(_itself) - batch - share * (log_mean - batch)

    def _moved(self, log_mean: Tensor, progress: Progress | None) -> Tensor:
        """log of the running mean after a batch of this mean."""
        momentum = at(self.momentum, progress)
        before = self.log_running.to(log_mean.dtype)
        kept = before + (math.log(momentum) if momentum > 0 else -torch.inf)
        moved = torch.logaddexp(kept, log_mean + math.log1p(-momentum))
        return torch.where(torch.isneginf(before), log_mean, moved)

    def observe(self, scores: Scores) -> Float[Tensor, ""]:
        return log_mean_exp(scores.negative).detach()

    @torch.no_grad()
    def advance(self, observed: Float[Tensor, "pair"], progress: Progress) -> None:
        mean = observed.logsumexp(dim=0) - math.log(len(observed))
        self.log_running.copy_(self._moved(mean, progress))

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        if sampling.held_out:
            return not_covered(
                "on held-out data the estimate is consistent, but biased upwards at finite size: the log of a "
                f"mean over {sampling.anchors} times {sampling.negatives} pairs lies below the log of "
                "its expectation (Jensen)"
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
            f"not a bound: clipping e^f at e^{at(self.clip, progress):g} lowers the mean it subtracts, so the "
            "value can exceed I"
        )
