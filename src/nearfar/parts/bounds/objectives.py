"""Objectives that estimate no information: BYOL, triplet, tuple, N-pair, supervised contrast, codes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress, Value, at
from nearfar.core.scores import Negatives, Scores
from nearfar.core.types import Certificate, NegativeSampling, Sizes
from nearfar.errors import UserError, check_number
from nearfar.parts.bounds.claims import checked, objective
from nearfar.parts.bounds.infonce import log_probability
from nearfar.parts.bounds.variational import over_anchors, positive_over_sum


@dataclass(frozen=True)
class Agreement(AbstractBound):
    """-|q - z|^2 = 2 cos(q, z) - 2 of unit vectors (Sáez Maldonado 2021, Eq. 25, sec. 8.1).

    Reads the positive score as a cosine, so its critic is `Cosine(temperature=1)`.
    """

    objective_only = True
    equation = "E[ 2 f(u, v+) - 2 ] = -E[ |u - v+|^2 ] of unit vectors"
    reads_only_logsumexp = True
    remarks = (("weight", lambda weight: weight != 1, "times {weight}"),)
    reads_negatives = False
    needs_bounded_scores = True  # otherwise longer vectors would agree more
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_number("bound.weight", self.weight, 0, exclude_low=True)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return self.weight * scores.over_positives(lambda f: 2.0 * f - 2.0)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("agreement of two views is no measure of information")


@dataclass(frozen=True)
class Triplet(AbstractBound):
    """Minus the mean of max(0, |u - v+|^2 - |u - v|^2 + margin) (Sáez Maldonado 2021, Eq. 17-18).

    Scores are minus squared distances. `semi_hard` takes the mean over those negatives alone that are farther
    than the positive yet inside the margin (FaceNet); an anchor without any counts as 0.
    """

    objective_only = True
    equation = "-E[ max(0, f(u, v_k) - f(u, v+) + {margin}) ]"
    remarks = (("semi_hard", True, "over v_k with f(u, v_k) < f(u, v+) alone"),)
    distance_scores = True
    margin: Value = 1.0
    semi_hard: bool = False

    def __post_init__(self) -> None:
        parsed = checked(self.margin, "margin", 0, math.inf, "a number or schedule above 0")
        object.__setattr__(self, "margin", parsed)

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        margin = at(self.margin, progress)
        loss = _semi_hard if self.semi_hard else _hinge
        if scores.more_positives is None:
            losses = [loss(scores.negative, positive, margin) for positive in scores.positive.unbind(dim=1)]
            return -torch.stack(losses).mean()
        # no reduction gives a sum over positives of a mean over negatives: the positives' mean score is used
        positive = (
            scores.positive.sum(dim=1) + scores.more_positives.sum_of(lambda f: f)
        ) / scores.positive_count().clamp_min(1)
        return -loss(scores.negative, positive, margin).mean()

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("a margin between distances is no measure of information")


def _hinge(negative: Negatives, positive: Tensor, margin: float) -> Float[Tensor, "anchor"]:
    return negative.mean_of(
        lambda score, positive_score: torch.relu(score - positive_score + margin), positive
    )


def _semi_hard(negative: Negatives, positive: Tensor, margin: float) -> Float[Tensor, "anchor"]:
    def between(score: Tensor, positive_score: Tensor) -> Tensor:
        return ((score < positive_score) & (score > positive_score - margin)).to(score.dtype)

    total = negative.mean_of(
        lambda score, positive_score: between(score, positive_score) * (score - positive_score + margin),
        positive,
    )
    share = negative.mean_of(between, positive)
    return total / torch.where(share > 0, share, 1.0)


TUPLE_EQUATION = "-E[ log(1 + sum_k e^(f(u, v_k) - f(u, v+))) ]"


def _classification_loss(m: int) -> Certificate:
    return objective(f"a classification loss: add log {m} to compare it with I, as bound=infonce does")


@dataclass(frozen=True)
class Tuple(AbstractBound):
    """Minus log(1 + sum_k e^(f(u, v_k) - f(u, v+))), the tuple loss (Sáez Maldonado 2021, Eq. 19)."""

    objective_only = True
    equation = TUPLE_EQUATION
    reads_only_logsumexp = True
    averages_anchors = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return log_probability(scores)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _classification_loss(1 + sampling.negatives)


@dataclass(frozen=True)
class NPair(AbstractBound):
    """Minus the N-pair loss (Sáez Maldonado 2021, Eq. 20): the tuple loss with negatives from the batch.

    It is InfoNCE without its log m (Sáez Maldonado 2021, Eq. 22): the same gradient, another number.
    """

    objective_only = True
    equation = TUPLE_EQUATION
    reads_only_logsumexp = True
    averages_anchors = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return log_probability(scores)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return _classification_loss(1 + sampling.negatives)


@dataclass(frozen=True)
class SupCon(AbstractBound):
    """Minus the supervised contrastive loss, P(u) an anchor's positives among its candidates A(u):

        form="out"   E[ mean over P(u) of log( e^f(u, p) / sum over A(u) of e^f(u, a) ) ]   (Khosla et al. 2020, Eq. 2)
        form="in"    E[ log( mean over P(u) of e^f(u, p) / sum over A(u) of e^f(u, a) ) ]   (Khosla et al. 2020, Eq. 3)

    By Jensen "in" is never below "out". With one positive both are the N-pair loss.
    """

    objective_only = True
    equation = (
        "E[ log( e^f(u, p) / sum over all v of e^f(u, v) ) ], the mean over positives p outside the log "
        "(form out) or inside (in): {form}"
    )
    reads_only_logsumexp = True

    form: Literal["out", "in"] = "out"

    def __post_init__(self) -> None:
        if self.form not in ("out", "in"):
            raise UserError(f"bound.form was {self.form!r}; expected out or in")

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        positives = scores.positive_logsumexp()
        log_total = torch.logaddexp(positives, scores.negative.logsumexp())
        if self.form == "out":
            return scores.over_positives(lambda f, total: f - total, log_total)
        count = scores.positive_count()
        some = count > 0
        values = positives - count.clamp_min(1).log() - log_total
        return torch.where(some, values, 0.0).sum() / some.sum().clamp_min(1)

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective(
            "a classification loss in which positives compete with each other; where labels choose them, it "
            "is about the labels"
        )


@dataclass(frozen=True)
class CrossEntropy(AbstractBound):
    """Minus the cross-entropy -sum_k q_k log p_k of codes q and the softmax p of an anchor's scores with all
    candidates (Caron et al. 2020, Eq. 2; Caron et al. 2021, Eq. 2), for negatives that give codes. The positive
    score is sum_k q_k f(u, w_k)."""

    objective_only = True
    equation = "E[ f(u, v+) - log sum_k e^f(u, w_k) ]"
    reads_only_logsumexp = True
    averages_anchors = True

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return over_anchors(positive_over_sum(scores), scores.negative.count())

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective(
            "the networks make the codes that they predict, so the cross-entropy is no measure of information"
        )


@dataclass(frozen=True)
class NoBound(AbstractBound):
    """Nothing is compared: the loss is the prior's alone."""

    objective_only = True
    equation = "nothing"
    reads_only_logsumexp = True
    reads_negatives = False

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["prior"] is not None and choices["prior"]["name"] != "none":
            return None
        return "bound was none with prior=none: there is nothing to learn; use a prior, or another bound"

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return 0.0 * scores.positive.sum()  # with a graph, as any bound

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("nothing is contrasted: the loss is the prior's alone")


class Sum(nn.Module, AbstractBound):
    """The sum of the parts' values, of one set of scores.

    Each part may be below I and their sum above it, so it is an objective, and no estimate; its ceiling is
    the sum of theirs.
    """

    objective_only = True

    def __init__(self, *parts: AbstractBound) -> None:
        super().__init__()
        if len({part.distance_scores for part in parts}) > 1:
            raise UserError(
                "bound: scores are distances to one part of the sum (triplet) and logarithms to another; "
                "add bounds of one kind"
            )
        self.parts = parts
        self.distance_scores = any(part.distance_scores for part in parts)
        self.needs_bounded_scores = any(part.needs_bounded_scores for part in parts)
        self.reads_negatives = any(part.reads_negatives for part in parts)
        self.averages_anchors = all(part.averages_anchors for part in parts)
        self.reads_only_logsumexp = all(part.reads_only_logsumexp for part in parts)
        self.has_memory = any(part.has_memory for part in parts)
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def meet(self, sizes: Sizes) -> None:
        for part in self.parts:
            part.meet(sizes)

    def forward(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return torch.stack([part(scores, progress) for part in self.parts]).sum()

    @property
    def _with_memory(self) -> list[AbstractBound]:
        return [part for part in self.parts if part.has_memory]

    def observe(self, scores: Scores) -> Float[Tensor, "part"]:
        return torch.stack([part.observe(scores) for part in self._with_memory])

    def advance(self, observed: Float[Tensor, "pair part"], progress: Progress) -> None:
        for part, column in zip(self._with_memory, observed.unbind(1), strict=True):
            part.advance(column, progress)

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        ceilings = [part.ceiling(sampling, progress) for part in self.parts]
        finite = [ceiling for ceiling in ceilings if ceiling is not None]
        return sum(finite) if len(finite) == len(ceilings) else None

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        reason = "a sum of several bounds can exceed what each of them is below"
        return objective(reason, self.ceiling(sampling, progress))
