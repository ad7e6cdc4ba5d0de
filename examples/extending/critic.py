"""A critic: this file, and a line in `nearfar/parts/critics/__init__.py`:  PARTS["student-t"] = StudentT

nearfar pretrain simclr photos/ --out runs/a critic=student-t critic.freedom=3
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.core.abstract import AbstractCritic
from nearfar.core.schedules import START, Progress
from nearfar.errors import UserError


@dataclass(frozen=True)
class StudentT(AbstractCritic):
    """-(nu + 1)/2 log(1 + |u - v|^2 / nu): heavy tails, as in t-SNE (van der Maaten & Hinton 2008)."""

    equation = "-({freedom} + 1)/2 log(1 + |u - v|^2 / {freedom})"
    bounded_above = True
    normalised = False
    freedom: float = 1.0

    def __post_init__(self) -> None:
        if self.freedom <= 0:
            raise UserError(f"critic.freedom was {self.freedom:g}; it must be above 0")

    def prepare(self, embedding: Tensor) -> Tensor:
        return embedding if embedding.dtype is torch.float64 else embedding.float()

    def _score(self, squared: Tensor) -> Tensor:
        return -(self.freedom + 1) / 2 * torch.log1p(squared.clamp_min(0) / self.freedom)

    def pairs(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        return self._score((anchors - keys).square().sum(dim=1))

    def cross(self, anchors: Tensor, keys: Tensor, progress: Progress = START) -> Tensor:
        squares = anchors.square().sum(dim=1)[:, None] + keys.square().sum(dim=1)[None, :]
        return self._score(squares - 2 * anchors @ keys.T)
