"""Losses of a student against labels and a teacher's outputs or distances between instances."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, at
from nearfar.core.types import Encoded, Sizes
from nearfar.errors import UserError
from nearfar.parts.priors.regularisers import checked

TERMS = ("labels", "kd", "cosine", "relational")


class Distillation(nn.Module, AbstractPrior):
    """labels CE(y, p) + kd T^2 KL(p_t^T | p^T) + cosine (1 - cos(W h, t)) + relational H(|h_i - h_j| / mean,
    |t_i - t_j| / mean)

    p are the student's class probabilities, p^T those of logits over the `temperature` T, p_t the teacher's
    (Hinton et al. 2015, sec. 2: the factor T^2 keeps gradients of one size). h and t are features of student
    and teacher, W learnt, H Huber's loss over pairs of rows, distances over their mean (Park et al. 2019, Eq.
    5-7). Each is averaged over rows; labels over those that have one.
    """

    equation = (
        "{labels} CE(label, p) + {kd} T^2 KL(p_t^T, p^T), T = {temperature}; + {cosine} (1 - cos(W h(x), "
        "t(x))) + {relational} Huber of distances between rows, h(x) against t(x)"
    )

    def __init__(
        self,
        labels: Value = 1.0,
        kd: Value = 0.0,
        temperature: Value = 4.0,
        cosine: Value = 0.0,
        relational: Value = 0.0,
        *,
        dim: int | None = None,
        teacher_width: int = 0,
    ) -> None:
        super().__init__()
        self.labels, self.kd = checked(labels, "labels"), checked(kd, "kd")
        self.cosine, self.relational = checked(cosine, "cosine"), checked(relational, "relational")
        self.temperature = checked(temperature, "temperature")
        if self.temperature == 0:
            raise UserError("prior.temperature was 0; it must be above 0")
        self.match: nn.Linear | None = None
        if dim is not None:
            self._make_match(dim, teacher_width)

    def meet(self, sizes: Sizes) -> None:
        self._make_match(sizes.width(self), sizes.teacher_width)

    def _make_match(self, dim: int, teacher_width: int) -> None:
        self.match = nn.Linear(dim, teacher_width) if self.cosine != 0 else None

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["encoders"].gives_supervision:
            return None
        return (
            f"prior was distillation with encoders={choices['encoders']['name']}, which have no teacher; "
            "use nearfar distill"
        )

    def forward(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        supervision = encoded.supervision
        if supervision is None:
            raise UserError(
                "prior=distillation needs supervision, but the encoders provide none; use encoders=distilled"
            )
        weights = {term: at(getattr(self, term), progress) for term in TERMS}
        total = supervision.features.sum() * 0.0
        if weights["labels"] and supervision.labels is not None and supervision.logits is not None:
            total = total + weights["labels"] * cross_entropy(supervision.logits, supervision.labels)
        if weights["kd"]:
            student, teacher = _check_both(
                supervision.logits, supervision.teacher_logits, "kd reads class scores"
            )
            total = total + weights["kd"] * soft_cross_entropy(
                student, teacher, at(self.temperature, progress)
            )
        if weights["cosine"] and self.match is not None:
            student, teacher = _check_both(
                supervision.features, supervision.teacher_features, "cosine reads features"
            )
            total = total + weights["cosine"] * (
                1.0 - F.cosine_similarity(self.match(student), teacher).mean()
            )
        if weights["relational"]:
            student, teacher = _check_both(
                supervision.features, supervision.teacher_features, "relational reads features"
            )
            total = total + weights["relational"] * F.smooth_l1_loss(relations(student), relations(teacher))
        return total


def _check_both(student: Tensor | None, teacher: Tensor | None, purpose: str) -> tuple[Tensor, Tensor]:
    if student is None or teacher is None:
        raise UserError(f"{purpose} of student and teacher, and the teacher gives none")
    return student, teacher


def cross_entropy(logits: Float[Tensor, "row class"], labels: Int[Tensor, "row"]) -> Float[Tensor, ""]:
    """Over the rows whose label is known; 0 where there are none."""
    labelled = labels >= 0
    losses = F.cross_entropy(logits, labels.clamp_min(0), reduction="none")
    return torch.where(labelled, losses, 0.0).sum() / labelled.sum().clamp_min(1)


def soft_cross_entropy(
    student: Float[Tensor, "row class"], teacher: Float[Tensor, "row class"], temperature: float
) -> Float[Tensor, ""]:
    """T^2 KL(teacher | student) of softmaxes at temperature T."""
    ours, theirs = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def relations(features: Float[Tensor, "row dim"]) -> Float[Tensor, "pair"]:
    """Distances of all pairs of rows over their mean."""
    distances = F.pdist(features)
    return distances / distances.mean().clamp_min(torch.finfo(distances.dtype).tiny)
