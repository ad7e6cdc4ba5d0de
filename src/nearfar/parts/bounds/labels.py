"""Supervised contrast: many positives in one softmax."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds.claims import objective


@dataclass(frozen=True)
class SupCon(AbstractBound):
    """Minus the supervised contrastive loss, P(u) an anchor's positives and A(u) all its candidates, positives among them:

        form="out"   E[ mean over P(u) of log( e^f(u, p) / sum over A(u) of e^f(u, a) ) ]     (Khosla et al. 2020, Eq. 2)
        form="in"    E[ log( mean over P(u) of e^f(u, p) / sum over A(u) of e^f(u, a) ) ]     (Khosla et al. 2020, Eq. 3)

    By Jensen "in" is never below "out". With one positive both are the N-pair loss.
    """

    equation = (
        "E[ log( e^f(u, p) / sum over all v of e^f(u, v) ) ], the mean over positives p outside the log (form out) or inside (in): "
        "{form}"
    )

    form: Literal["out", "in"] = "out"

    def __post_init__(self) -> None:
        if self.form not in ("out", "in"):
            raise UserError(f"bound.form was {self.form!r}; expected out or in")

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        positives = scores.positive_logsumexp()
        everyone = torch.logaddexp(positives, scores.negative.logsumexp())
        if self.form == "out":
            return scores.over_positives(lambda f, total: f - total, everyone)
        count = scores.positive_count()
        some = count > 0
        values = positives - count.clamp_min(1).log() - everyone
        return torch.where(some, values, 0.0).sum() / some.sum().clamp_min(1)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective(
            "a classification loss in which positives compete with each other; where labels choose them, it speaks of the labels"
        )
