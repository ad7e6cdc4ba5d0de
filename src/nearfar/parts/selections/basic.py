"""All candidates, all of them weighted by similarity, and several selections in turn."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress, Value, at, parse_within
from nearfar.core.scores import Membership, Scores
from nearfar.core.types import Context, NegativeSampling, Sizes
from nearfar.errors import UserError


@dataclass(frozen=True)
class Everyone(AbstractSelection):
    """Keeps every negative: q(v | u) = p(v)."""

    keeps_all = True
    equation = "all K"

    def __call__(self, scores: Scores, context: Context | None = None) -> Scores:
        return scores

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        return source


@dataclass(frozen=True)
class Hard(AbstractSelection):
    """Every negative counts e^(beta f) / mean of e^(beta f) over the anchor's negatives: as if drawn from q(v
    | u) ∝ e^(beta f) p(v) (Robinson et al. 2021, Eq. 4 and 5, by importance weights, whose gradient is taken
    too, as in the authors' code).

    Weights and scores rise together, so a weighted sum of e^f is never below the plain one: bounds that fall
    when a negative's score rises keep their claim (docs/certificates.md). With `bound=debiased` it is HCL.
    """

    equation = "all of them, each weighted by e^(b f(u, v_k)) over its mean, b = {beta}"
    keeps_all = True
    weights_negatives = True  # weights have mean one over the candidates that count, so it comes last
    beta: Value = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", parse_within(self.beta, "selection.beta", 0))

    def __call__(self, scores: Scores, context: Context | Progress | None = None) -> Scores:
        progress = context.progress if isinstance(context, Context) else context
        beta = at(self.beta, progress)

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            count = offered.sum(dim=1, keepdim=True)
            # an anchor without negatives has no mean; what its row holds is masked, but must have a gradient
            log_powers = torch.where(count > 0, (beta * values).masked_fill(~offered, -torch.inf), 0.0)
            log_mean = log_powers.logsumexp(dim=1, keepdim=True) - count.clamp_min(1).to(values.dtype).log()
            return Membership(offered, log_weight=(beta * values - log_mean).masked_fill(~offered, 0.0))

        return replace(scores, negative=scores.negative.divide(rule).negatives)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        return replace(source, weighted=True)


class Chain(nn.Module, AbstractSelection):
    """Each selection chooses from what the one before it left."""

    def __init__(self, *parts: AbstractSelection) -> None:
        super().__init__()
        if any(part.weights_negatives for part in parts[:-1]):
            raise UserError("selection: a weighting selection (hard, proposal) must be the last of a chain")
        self.parts = parts
        self.keeps_all = all(part.keeps_all for part in parts)
        self.ranks_by_score = any(part.ranks_by_score for part in parts)
        self.weights_negatives = any(part.weights_negatives for part in parts)
        self.remembers_instances = any(part.remembers_instances for part in parts)
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def meet(self, sizes: Sizes) -> None:
        for part in self.parts:
            part.meet(sizes)

    def members(self) -> tuple[AbstractSelection, ...]:
        return tuple(member for part in self.parts for member in part.members())

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        for part in self.parts:
            scores = part(scores, context)
        return scores

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        for part in self.parts:
            source = part.sampling(source, progress)
        return source
