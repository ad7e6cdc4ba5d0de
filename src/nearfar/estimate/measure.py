"""The value of a bound on unseen samples, and its standard error.

Every arrangement of anchors and negatives is read from one matrix of scores. `in_batch_arrangement` contrasts
each anchor with all others, as the proof of InfoNCE allows. `independent_arrangements` gives each anchor
negatives that are used nowhere else, as the proof of ML-CPC requires. That uses a sample only once, so many
random arrangements are averaged; each is a lower bound in expectation, and so is their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.scores import Scores, paired_scores
from nearfar.core.types import NegativeSampling
from nearfar.estimate import settings


@dataclass(frozen=True)
class Arrangement:
    """Anchors and their negatives, as rows and columns of a matrix of scores."""

    anchors: Int[Tensor, "anchor"]
    negatives: Int[Tensor, "anchor negative"] | None  # None: all other anchors
    sampling: NegativeSampling

    def scores(self, f: Float[Tensor, "sample sample"], present: Bool[Tensor, "sample"]) -> Scores:
        """Scores among the samples that are present. An anchor without negatives is dropped."""
        if self.negatives is None:
            anchors = self.anchors[present[self.anchors]]
            return paired_scores(f[anchors][:, anchors])
        contrasted = present[self.anchors] & present[self.negatives].any(dim=1)
        anchors, negatives = self.anchors[contrasted], self.negatives[contrasted]
        return Scores.of(f[anchors, anchors], f[anchors[:, None], negatives], present[negatives])


def in_batch_arrangement(samples: int, device: torch.device) -> Arrangement:
    sampling = NegativeSampling(samples, samples - 1, held_out=True, batch_statistics=False)
    return Arrangement(torch.arange(samples, device=device), None, sampling)


def independent_arrangements(
    samples: int, negatives: int, repeats: int, seed: int, device: torch.device
) -> list[Arrangement]:
    """Random arrangements in which no sample appears twice."""
    shuffle = torch.Generator().manual_seed(seed)
    anchors = samples // (1 + negatives)
    sampling = NegativeSampling(anchors, negatives, independent=True, held_out=True, batch_statistics=False)
    arrangements = []
    for _ in range(repeats):
        order = torch.randperm(samples, generator=shuffle)[: anchors * (1 + negatives)].to(device)
        arrangements.append(Arrangement(order[:anchors], order[anchors:].view(anchors, negatives), sampling))
    return arrangements


@dataclass(frozen=True)
class BoundValue:
    """A value in nats, its standard error, and the degrees of freedom of the error."""

    nats: float
    error: float
    freedom: int


@torch.no_grad()
def measure_bound(
    bound: AbstractBound, f: Float[Tensor, "sample sample"], arrangements: Sequence[Arrangement]
) -> BoundValue:
    """Mean over the arrangements, with the jackknife's error, or the error that the critic expects if it is
    larger."""
    group = (
        torch.arange(len(f), device=f.device) % settings.JACKKNIFE_GROUPS
    )  # rows are in random order already
    nats = _mean_value(bound, f, arrangements, group >= 0)
    left_out = torch.stack(
        [_mean_value(bound, f, arrangements, group != g) for g in range(settings.JACKKNIFE_GROUPS)]
    )
    variance = (
        (settings.JACKKNIFE_GROUPS - 1)
        / settings.JACKKNIFE_GROUPS
        * (left_out - left_out.mean()).square().sum()
    )
    expected = expected_variance(f) / len(f)
    return BoundValue(float(nats), math.sqrt(max(float(variance), expected)), settings.JACKKNIFE_GROUPS - 1)


def expected_variance(f: Float[Tensor, "sample sample"]) -> float:
    """Variance of InfoNCE's term if the critic is right: key j belongs to anchor i with chance e^f_ij / sum_k
    e^f_ik.

    A sample that happens to lack a rare event (a bit that flips once in n rows) has too high a mean and too
    small a spread at once. A critic that gives the event a positive chance knows that it can happen.
    """
    log_share = f.double().log_softmax(dim=1)
    term, chance = log_share + math.log(len(f)), log_share.exp() / len(f)
    # a chance of zero times a term of minus infinity is zero
    term = term.where(chance > 0, 0.0)
    return float((chance * (term - (chance * term).sum()).square()).sum())


@torch.no_grad()
def bound_nats(
    bound: AbstractBound, f: Float[Tensor, "sample sample"], arrangements: Sequence[Arrangement]
) -> float:
    """Mean over the arrangements, without its error."""
    present = torch.ones(len(f), dtype=torch.bool, device=f.device)
    return float(_mean_value(bound, f, arrangements, present))


def _mean_value(
    bound: AbstractBound, f: Tensor, arrangements: Sequence[Arrangement], present: Bool[Tensor, "sample"]
) -> Float[Tensor, ""]:
    scores = [arrangement.scores(f, present) for arrangement in arrangements]
    # if all anchors of an arrangement are left out, so is the arrangement
    return torch.stack([bound(part).double() for part in scores if len(part.positive)]).mean()


def average(values: Sequence[BoundValue]) -> BoundValue:
    """Mean of values from samples that share no row."""
    nats = sum(value.nats for value in values) / len(values)
    error = math.sqrt(sum(value.error**2 for value in values)) / len(values)
    return BoundValue(nats, error, sum(value.freedom for value in values))


def average_of_draws(draws: Sequence[BoundValue]) -> BoundValue:
    """Mean of values from samples that share rows; its error is the mean error."""
    nats = sum(draw.nats for draw in draws) / len(draws)
    error = sum(draw.error for draw in draws) / len(draws)
    return BoundValue(nats, error, min(draw.freedom for draw in draws))
