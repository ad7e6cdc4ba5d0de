"""A bound's value on samples the critic has not seen, and how far chance may have moved it.

Every arrangement of anchors and negatives is read off one matrix of scores: `in_batch_trial` contrasts each anchor
with all others (as the proof of InfoNCE allows), `independent_trials` gives each anchor negatives of its own that
stand nowhere else (as the proof of ML-CPC demands), and since that uses a sample only once, many random arrangements
are averaged: each is a lower bound in expectation, so their mean is.
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

GROUPS = 10  # of samples left out in turn, per block


@dataclass(frozen=True)
class Trial:
    """Who is contrasted with whom: rows and columns of a matrix of scores (negatives None: all other anchors)."""

    anchors: Int[Tensor, "anchor"]
    negatives: Int[Tensor, "anchor negative"] | None
    sampling: NegativeSampling

    def scores(self, f: Float[Tensor, "sample sample"], present: Bool[Tensor, "sample"]) -> Scores:
        """Scores of the samples that are present; an anchor without a negative left has nothing to say."""
        if self.negatives is None:
            anchors = self.anchors[present[self.anchors]]
            return paired_scores(f[anchors][:, anchors])
        contrasted = present[self.anchors] & present[self.negatives].any(dim=1)
        anchors, negatives = self.anchors[contrasted], self.negatives[contrasted]
        return Scores.of(f[anchors, anchors], f[anchors[:, None], negatives], present[negatives])


def in_batch_trial(samples: int, device: torch.device) -> Trial:
    sampling = NegativeSampling(samples, samples - 1, held_out=True, batch_statistics=False)
    return Trial(torch.arange(samples, device=device), None, sampling)


def independent_trials(
    samples: int, negatives: int, repeats: int, seed: int, device: torch.device
) -> list[Trial]:
    """Random arrangements in which no sample appears twice: so many anchors, each with negatives of its own."""
    shuffle = torch.Generator().manual_seed(seed)
    anchors = samples // (1 + negatives)
    sampling = NegativeSampling(anchors, negatives, independent=True, held_out=True, batch_statistics=False)
    trials = []
    for _ in range(repeats):
        order = torch.randperm(samples, generator=shuffle)[: anchors * (1 + negatives)].to(device)
        trials.append(Trial(order[:anchors], order[anchors:].view(anchors, negatives), sampling))
    return trials


@dataclass(frozen=True)
class Measured:
    """A value and its standard error; `freedom` is how many independent differences the error was read from."""

    nats: float
    error: float
    freedom: int


@torch.no_grad()
def measured(bound: AbstractBound, f: Float[Tensor, "sample sample"], trials: Sequence[Trial]) -> Measured:
    """Mean over the trials, with the jackknife's error (groups of samples are left out in turn), or what the critic expects if that
    is more."""
    group = torch.arange(len(f), device=f.device) % GROUPS  # rows are in random order already
    nats = _mean_value(bound, f, trials, group >= 0)
    left_out = torch.stack([_mean_value(bound, f, trials, group != g) for g in range(GROUPS)])
    variance = (GROUPS - 1) / GROUPS * (left_out - left_out.mean()).square().sum()
    least = expected_variance(f) / len(f)
    return Measured(float(nats), math.sqrt(max(float(variance), least)), GROUPS - 1)


def expected_variance(f: Float[Tensor, "sample sample"]) -> float:
    """Variance of InfoNCE's term if the critic were right: the key of anchor i is then key j with chance e^f_ij / sum_k e^f_ik.

    A sample that happens to lack a rare event (a bit that flips once in n rows) has a mean that is too high and a spread that is too
    small at once; a critic that never gives such an event the chance zero knows that it can happen.
    """
    log_share = f.double().log_softmax(dim=1)
    term, chance = log_share + math.log(len(f)), log_share.exp() / len(f)
    # a chance of zero times a term of minus infinity is zero
    seen = term.where(chance > 0, 0.0)
    return float((chance * (seen - (chance * seen).sum()).square()).sum())


@torch.no_grad()
def value(bound: AbstractBound, f: Float[Tensor, "sample sample"], trials: Sequence[Trial]) -> float:
    """Mean over the trials, without its error."""
    everyone = torch.ones(len(f), dtype=torch.bool, device=f.device)
    return float(_mean_value(bound, f, trials, everyone))


def _mean_value(
    bound: AbstractBound, f: Tensor, trials: Sequence[Trial], present: Bool[Tensor, "sample"]
) -> Float[Tensor, ""]:
    scores = [trial.scores(f, present) for trial in trials]
    # a few anchors can all be among those left out: then that arrangement is left out with them
    return torch.stack([bound(each).double() for each in scores if len(each.positive)]).mean()


def average(parts: Sequence[Measured]) -> Measured:
    """Mean of values from samples that share no row."""
    nats = sum(part.nats for part in parts) / len(parts)
    error = math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
    return Measured(nats, error, sum(part.freedom for part in parts))


def average_of_draws(draws: Sequence[Measured]) -> Measured:
    """Mean of values from samples that share rows: it is not known to vary less than one of them."""
    nats = sum(draw.nats for draw in draws) / len(draws)
    return Measured(nats, sum(draw.error for draw in draws) / len(draws), min(d.freedom for d in draws))
