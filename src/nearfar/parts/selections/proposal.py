"""Negatives drawn from a proposal, with importance weights: VINCE as a bound (Wu et al. 2020, Eq. 3, corrected)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractSelection
from nearfar.core.randomness import uniform_grid
from nearfar.core.schedules import Progress, Value, at, parse_value
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.parts.selections.draws import checked_number, step_seed


@dataclass(frozen=True)
class ImportanceScores(Scores):
    """Scores whose anchors have weights in every mean over anchors, with mean one in expectation."""

    log_weight: Float[Tensor, "anchor"] = field(default_factory=lambda: torch.zeros(0))

    def over_positives(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, ""]:
        def weighted(f: Tensor, weight: Tensor, *columns: Tensor) -> Tensor:
            return weight * function(f, *columns)

        return super().over_positives(weighted, self.log_weight.exp().to(self.positive.dtype), *per_anchor)


@dataclass(frozen=True)
class Proposal(AbstractSelection):
    """Draws `sample` negatives of each anchor one after another, without replacement, each with a chance
    proportional to r = e^(beta f): the hard ones more often.

    The anchor counts with the weight prod_t p / q, q = r over the sum of r of those left and p = 1 over
    their number. These are the 1 / r of Wu et al. 2020, Cor. 3.1.1, with the normalisation it lacks, so the
    term -K + 1 is not needed: the expectation is InfoNCE's with blindly drawn negatives, for every beta
    (docs/certificates.md). The spread of the weights grows with beta and with `sample`. Chances and weights
    have no gradient, and the mean of the gradient is that of blindly drawn negatives.
    """

    equation = (
        "{sample} of them, drawn in turn with chances r / sum of r, r = e^({beta} f(u, v_k)); u counts with "
        "the weight prod p / q"
    )
    weights_negatives = True  # the weight is that of the negatives drawn last
    drop_reason = "not drawn"
    beta: Value = 0.5
    sample: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", parse_value(self.beta, "selection.beta"))
        object.__setattr__(self, "sample", checked_number(self.sample, "sample"))

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["bound"].averages_anchors:
            return None
        return (
            f"selection=proposal gives anchors weights, and bound={choices['bound']['name']} is no mean over "
            "anchors; use bound=infonce or alpha-cpc"
        )

    def __call__(self, scores: Scores, context: Context | Progress | None = None) -> ImportanceScores:
        progress = context.progress if isinstance(context, Context) else context
        first = context.first if isinstance(context, Context) else 0  # of this rank's anchors among all
        beta, seed = at(self.beta, progress), step_seed()

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            uniform = uniform_grid(seed, rows + first, values.shape[1]).clamp_min(2.0**-53)
            precise = values.detach().to(uniform.device, torch.float64)
            membership = self.draw(beta * precise, offered.to(uniform.device), uniform)
            if membership.log_chance is None or uniform.device == values.device:
                return membership
            return Membership(membership.keep.to(values.device), log_chance=membership.log_chance.to(values))

        divided = scores.negative.divide(rule, random=True)
        assert divided.log_chance is not None
        return ImportanceScores(
            scores.positive, divided.negatives, scores.more_positives, scores.lowest, divided.log_chance
        )

    def draw(self, log_r: Tensor, offered: Tensor, uniform: Tensor) -> Membership:
        """Who is drawn, and the log of the weight p / q of that draw. Log chances plus Gumbel noise, in
        falling order, are draws in turn without replacement."""
        log_r = log_r.masked_fill(~offered, -torch.inf)
        order = (log_r - (-uniform.log()).log()).topk(min(self.sample, log_r.shape[1]), dim=1).indices
        keep = torch.zeros_like(offered).scatter_(1, order, True) & offered
        log_r_drawn = log_r.gather(1, order)
        rest = log_r.masked_fill(keep, -torch.inf).logsumexp(dim=1, keepdim=True)
        log_remaining = torch.logaddexp(rest, log_r_drawn.flip(1).logcumsumexp(dim=1).flip(1))
        turn = torch.arange(log_r_drawn.shape[1], device=log_r_drawn.device)
        number = (offered.sum(dim=1, keepdim=True) - turn).clamp_min(1).to(log_r_drawn.dtype)
        steps = torch.where(log_r_drawn > -torch.inf, log_remaining - number.log() - log_r_drawn, 0.0)
        return Membership(keep, log_chance=steps.sum(dim=1))

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        min_negatives = source.negatives if source.min_negatives is None else source.min_negatives
        return replace(
            source,
            negatives=min(self.sample, source.negatives),
            min_negatives=min(self.sample, min_negatives),
            importance=True,
        )
