"""A teacher network: this file alone. Keys come from a frozen network that knows more (contrastive
distillation, Tian et al. 2020).

method = nf.Method(Taught(student, teacher, 64), nf.Cosine(0.1), nf.InBatch("one"), nf.Everyone(),
nf.InfoNCE()) run = nf.pretrain(method, data="photos/", out="runs/student")"""

from collections.abc import Sequence

import torch
from torch import nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.types import Batch, Encoded


class Taught(nn.Module, AbstractEncoders):
    """u = the student's view of x, v = the teacher's of x', each mapped linearly to `dim`; only the student
    is saved."""

    equation = "u = A s(x), v = B t(x'): t is frozen"

    def __init__(self, student: nn.Module, teacher: nn.Module, dim: int = 64) -> None:
        super().__init__()
        self.network, self.teacher = student, teacher.requires_grad_(False)
        self.of_student, self.of_teacher = nn.LazyLinear(dim), nn.LazyLinear(dim)

    def with_widths_of(self, example: torch.Tensor) -> "Taught":
        """Sets the widths of the linear maps from a batch of any two instances."""
        with torch.no_grad():
            self.of_student(self.network.eval()(example))
            self.of_teacher(self.teacher.eval()(example))
        return self

    def train(self, mode: bool = True) -> "Taught":
        super().train(mode)
        self.teacher.eval()  # outputs of a frozen network do not depend on its batch
        return self

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        anchor_embeddings = {w: self.of_student(self.network(batch.views[w])) for w in anchors}
        with torch.no_grad():
            teacher_features = {w: self.teacher(batch.views[w]) for w in keys}
        return Encoded(
            anchor_embeddings, {w: self.of_teacher(features) for w, features in teacher_features.items()}
        )

    def backbone(self) -> nn.Module:
        return self.network
