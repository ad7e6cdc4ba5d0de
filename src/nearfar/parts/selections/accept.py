"""Learned acceptance: which negatives count is drawn, with learned chances (Wu et al. 2020, App. C)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractSelection
from nearfar.core.randomness import word_grid
from nearfar.core.schedules import Progress
from nearfar.core.scores import Membership, Negatives, Scores, at_least_float32
from nearfar.core.types import Context, NegativeSampling, Sizes
from nearfar.errors import UserError, check_number, check_whole
from nearfar.parts.selections.draws import step_seed

MAX_HIDDEN = 65536


@dataclass(frozen=True)
class CachedReductions:
    """Negatives whose reductions are made once, so that they are the same tensors each time."""

    negative: Negatives

    def __post_init__(self) -> None:
        _ = self.logsumexp, self.count

    @cached_property
    def logsumexp(self) -> Float[Tensor, "anchor"]:
        return self.negative.logsumexp()

    @cached_property
    def count(self) -> Float[Tensor, "anchor"]:
        return self.negative.count()


@dataclass(frozen=True)
class ExchangedNegatives(Negatives):
    """The rows of `second` where `exchanged`, elsewhere those of `first`."""

    first: CachedReductions
    second: CachedReductions
    exchanged: Bool[Tensor, "anchor"]

    def _either(self, first: Tensor, second: Tensor) -> Float[Tensor, "anchor"]:
        return torch.where(self.exchanged, second, first)

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        return self._either(self.first.logsumexp, self.second.logsumexp)

    def count(self) -> Float[Tensor, "anchor"]:
        return self._either(self.first.count, self.second.count)

    def offered(self) -> int:
        return self.first.negative.offered()

    def sum_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        sums = (part.negative.sum_of(function, *per_anchor) for part in (self.first, self.second))
        return self._either(*sums)

    def hardest(self) -> Float[Tensor, "anchor"]:
        return self._either(*(part.negative.hardest() for part in (self.first, self.second)))

    def refusal(self) -> Exception:
        return TypeError("rows are exchanged after all selections")

    def matrix(self) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
        (values, mask), (second_values, second_mask) = (
            part.negative.matrix() for part in (self.first, self.second)
        )
        rows = self.exchanged[:, None]
        return torch.where(rows, second_values, values), torch.where(rows, second_mask, mask)


Aim = Literal["maximise", "minimise"]
PIECE = 2**15  # pairs whose acceptance is computed at a time
AT_ONCE = 64  # anchors whose draws are undone at a time


def one_hidden_layer(z: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Float[Tensor, "pair"]:
    return torch.cat([torch.tanh(piece[:, None] * w1[:, 0] + b1) @ w2[0] + b2 for piece in z.split(PIECE)])


class OneHiddenLayer(torch.autograd.Function):
    """w2 tanh(w1 z + b1) + b2 of each of many numbers z, with the gradient of its weights alone.

    Held by autograd, the hidden layer of all pairs would be as many times the scores as it has units; here it
    is made a piece at a time, in both passes.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Float[Tensor, "pair"]:
        ctx.save_for_backward(z, w1, b1, w2)
        return one_hidden_layer(z, w1, b1, w2, b2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        z, w1, b1, w2 = ctx.saved_tensors
        to_w1, to_b1, to_w2 = torch.zeros_like(w1), torch.zeros_like(b1), torch.zeros_like(w2)
        for piece, gradient in zip(z.split(PIECE), grad_output.split(PIECE), strict=True):
            hidden = torch.tanh(piece[:, None] * w1[:, 0] + b1)
            to_w2[0] += gradient @ hidden
            to_hidden = (1 - hidden.square()) * (gradient[:, None] * w2[0])
            to_b1 += to_hidden.sum(dim=0)
            to_w1[:, 0] += piece @ to_hidden
        return None, to_w1, to_b1, to_w2, grad_output.sum()[None]


@dataclass(frozen=True)
class DrawnScores(Scores):
    """Scores whose negatives were drawn, with the log of the chance of that draw, anchor by anchor."""

    log_chance: Float[Tensor, "anchor"] = field(default_factory=lambda: torch.zeros(0))
    all_scores: Scores | None = None
    aim: Aim = "maximise"

    def score_function_term(self, value: Tensor, bound: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Zero, with the gradient sum_i (value - baseline_i) grad log chance_i of the expected value.

        An anchor's baseline is the value with everyone's scores for that anchor and the drawn ones for all
        others. It does not depend on that anchor's draw, and draws of different anchors are independent, so
        the gradient stays unbiased for any bound; and what the other anchors drew is in value and baseline
        alike, so none of their noise is left in the difference.
        """
        assert self.all_scores is not None
        with torch.no_grad():
            gain = value.detach() - self._baselines(bound, *arguments)
        if self.aim == "minimise":
            gain = -gain
        return (gain * (self.log_chance - self.log_chance.detach())).sum()

    def _baselines(self, bound: Callable[..., Tensor], *arguments: Any) -> Float[Tensor, "anchor"]:
        """The bound with each anchor's draw in turn undone. Every reduction is made once and only its rows
        are exchanged: a bound reads a few numbers of each anchor, never the scores."""
        assert self.all_scores is not None
        drawn_negatives, all_negatives = (
            CachedReductions(self.negative),
            CachedReductions(self.all_scores.negative),
        )

        def undone(anchor: Bool[Tensor, "anchor"]) -> Tensor:
            negative = ExchangedNegatives(drawn_negatives, all_negatives, anchor)
            return bound(Scores(self.positive, negative, self.more_positives, self.lowest), *arguments)

        one_hot = torch.eye(len(self.positive), dtype=torch.bool, device=self.positive.device)
        return torch.func.vmap(undone, chunk_size=AT_ONCE)(one_hot)


class Accept(nn.Module, AbstractSelection):
    """Each candidate is accepted with a chance r in [least, 1] that a small network reads off its similarity.

    The network sees how far a candidate's score is from the mean over its anchor's candidates, in standard
    deviations, so it can learn a ball, a ring or anything between. Wu et al. 2020 writes q = r p, which is
    not normalised; here acceptance is a coin for each candidate, so the chance of a draw is exactly prod r^a
    (1 - r)^(1 - a), and the weights 1 / r of Eq. 17 are left out, as Eq. 4 does. `aim="maximise"` trains r to
    raise the bound, as VINCE+ does (easier negatives do that); `aim="minimise"` trains it to lower the bound,
    towards harder ones. An anchor that accepts no candidate keeps all.
    """

    drop_reason = "not accepted"
    equation = "each with a chance r(f(u, v_k)) in [{least}, 1] that is learned"

    def __init__(self, least: float = 0.1, hidden: int = 16, aim: Aim = "maximise") -> None:
        super().__init__()
        check_number("selection.least", least, 0, 1, exclude_low=True)
        check_whole("selection.hidden", hidden, 1, MAX_HIDDEN)
        if aim not in ("maximise", "minimise"):
            raise UserError(f"selection.aim was {aim!r}; expected maximise or minimise")
        self.least, self.aim = least, aim
        self._make_network()

    def meet(self, sizes: Sizes) -> None:
        self._make_network()  # again, from the seed of the run

    def _make_network(self) -> None:
        hidden = self.settings["hidden"]
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def chances(
        self, values: Float[Tensor, "anchor candidate"], offered: Bool[Tensor, "anchor candidate"]
    ) -> Float[Tensor, "anchor candidate"]:
        """r of each candidate; its gradient reaches the network alone."""
        values = values.detach().masked_fill(~offered, 0.0)
        count = offered.sum(dim=1, keepdim=True).clamp_min(1)
        mean = values.sum(dim=1, keepdim=True) / count
        centred = (values - mean).masked_fill(~offered, 0.0)
        spread = (centred.square().sum(dim=1, keepdim=True) / count).sqrt().clamp_min(1e-6)
        weight = next(self.network.parameters())
        similarity = (centred / spread).to(weight.dtype)
        layer = OneHiddenLayer.apply if torch.is_grad_enabled() else one_hidden_layer
        logit = layer(similarity.flatten(), *self.network.parameters())
        return self.least + (1 - self.least) * torch.sigmoid(logit.view_as(similarity))

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        seed = step_seed()  # then a function of it and the pair's place: a tile draws what the whole would
        first = 0 if context is None else context.first

        def draw(chances: Tensor, rows: Tensor) -> Tensor:
            words = word_grid(seed, rows + first, chances.shape[1])
            return words < (at_least_float32(chances.detach()) * 2.0**53).ceil().long()

        return self.select_drawn(scores, draw)

    def select_drawn(self, scores: Scores, draw: Callable[[Tensor, Tensor], Tensor]) -> DrawnScores:
        """The scores of one draw: `draw(chances, rows)` returns which candidates are accepted."""

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            chances = self.chances(values, offered)
            accepted = offered & draw(chances, rows)
            # where r is 1 a refusal cannot happen, and its log would be -inf times 0
            refusal = torch.log1p(-chances.clamp_max(1 - 1e-7))
            log_chance = torch.where(accepted, chances.log(), refusal).masked_fill(~offered, 0.0).sum(dim=1)
            empty = ~accepted.any(dim=1, keepdim=True)
            return Membership(accepted | (offered & empty), log_chance=log_chance)

        divided = scores.negative.divide(rule, random=True)
        assert divided.log_chance is not None
        return DrawnScores(
            scores.positive,
            divided.negatives,
            scores.more_positives,
            scores.lowest,
            divided.log_chance,
            scores,
            self.aim,
        )

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        reason = (
            "negatives are accepted with learned chances, and Wu et al. 2020, Cor. 3.1.1 takes an "
            "unnormalised q for a density"
        )
        return replace(
            source,
            exchangeable=False,
            independent=False,
            reason=reason,
            min_negatives=min(1, source.negatives),
        )
