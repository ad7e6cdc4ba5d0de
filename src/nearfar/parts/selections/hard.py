"""Negatives weighted by their similarity (Robinson et al. 2021)."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress, Value, at, ends, parse_value, written
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling
from nearfar.errors import UserError


@dataclass(frozen=True)
class Hard(AbstractSelection):
    """Every negative counts e^(beta f) / mean of e^(beta f) over the anchor's negatives: as if drawn from q(v | u) ∝ e^(beta f) p(v)
    (Robinson et al. 2021, Eq. 4 and 5, by importance weights, whose gradient is taken too, as in the authors' code).

    Weights and scores rise together, so a weighted sum of e^f is never below the plain one: bounds that fall when a negative's score
    rises keep their claim (docs/certificates.md). With `bound=debiased` it is HCL.
    """

    equation = "all of them, each weighted by e^(b f(u, v_k)) over its mean, b = {beta}"
    keeps_all = True
    weights_negatives = True  # nobody may be left out after it: weights have mean one over those who count
    beta: Value = 1.0

    def __post_init__(self) -> None:
        beta = parse_value(self.beta, "selection.beta")
        if not all(0 <= end < math.inf for end in ends(beta)):
            raise UserError(
                f"selection.beta was {written(beta)}; it must be at least 0, a number or a schedule"
            )
        object.__setattr__(self, "beta", beta)

    def __call__(self, scores: Scores, context: Context | Progress | None = None) -> Scores:
        progress = context.progress if isinstance(context, Context) else context
        beta = at(self.beta, progress)

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            count = offered.sum(dim=1, keepdim=True)
            # an anchor without negatives has no mean; what its row holds is masked, but must have a gradient
            among = torch.where(count > 0, (beta * values).masked_fill(~offered, -torch.inf), 0.0)
            log_mean = among.logsumexp(dim=1, keepdim=True) - count.clamp_min(1).to(values.dtype).log()
            return Membership(offered, log_weight=(beta * values - log_mean).masked_fill(~offered, 0.0))

        return replace(scores, negative=scores.negative.divide(rule).kept)

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        return replace(given, weighted=True)
