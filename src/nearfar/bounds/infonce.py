"""InfoNCE: how well the positive is told from its negatives."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.schedules import Progress
from nearfar.scores import Scores
from nearfar.types import Certificate, Circumstances


@dataclass(frozen=True)
class InfoNCE:
    """I >= E[ f(u, v+) - log( (1/m) (e^f(u, v+) + sum_k e^f(u, v_k)) ) ], m = 1 + number of negatives
    (000 Eq. 25-33, 001 Eq. 1, 004 Eq. 13).

    With several positives per anchor, each is told from the negatives alone and the values are averaged.
    """

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        negative = scores.negative.logsumexp()[:, None]
        log_m = torch.log1p(scores.negative.count())[:, None]
        return (scores.positive - torch.logaddexp(scores.positive, negative) + log_m).mean()

    def certificate(self, circumstances: Circumstances) -> Certificate:
        m = 1 + circumstances.negatives
        ceiling = math.log(m)
        if circumstances.exchangeable:
            condition = (
                f"the {circumstances.negatives} negatives are drawn independently of the anchor; then the "
                f"estimate on data the critic was not fitted to never exceeds I in expectation, nor log {m}"
            )
            return Certificate("proven", condition, ceiling)
        condition = f"{circumstances.otherwise}; the value still cannot exceed log {m}"
        return Certificate("not covered", condition, ceiling)
