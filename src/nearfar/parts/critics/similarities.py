"""Critics without networks: cosine, inner product, distance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractCritic, AbstractInnerProduct, Anchors, Embedding, Factors, Keys
from nearfar.core.learnt import LearntNumber, current_value, learnable
from nearfar.core.schedules import START, Learnable, Learnt, Progress, Value, at, parse_within


class Cosine(nn.Module, AbstractInnerProduct):
    """Cosine over a temperature (Wu et al. 2021, Eq. 2), plus a bias: numbers, schedules or `learnt(0.07)`.

    A bias is for bounds that read scores one by one, as SigLIP's sigmoid loss does (`JensenShannon`,
    `BinaryNCE`); to a softmax it is nothing.
    """

    equation = "cos(u, v) / {temperature}"
    bounded_above = True
    measure = "cosine"
    unit = True
    remarks = (("bias", lambda bias: bias != 0, "plus {bias}"),)

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        # from the settings, or from the object where a critic was passed as one
        numbers = {
            key: choices["critic"].get(key, getattr(parts["critic"], key, None))
            for key in ("temperature", "bias")
        }
        moving = {key: value for key, value in numbers.items() if isinstance(value, (Learnt, LearntNumber))}
        if moving and parts["bound"].needs_bounded_scores:
            key, value = next(iter(moving.items()))
            written_value = value.written() if isinstance(value, Learnt) else "learnt"
            return (
                f"critic.{key} was {written_value} with bound={choices['bound']['name']}, which reads "
                "positives alone and would rise with it for ever; give a number"
            )
        return None

    def __init__(self, temperature: Learnable = 0.1, bias: Learnable = 0.0) -> None:
        super().__init__()
        self.temperature = learnable(temperature, "temperature", positive=True)
        if not isinstance(self.temperature, LearntNumber):
            parse_within(self.temperature, "temperature", 0, exclude_low=True)
        self.bias = learnable(bias, "critic.bias")

    def prepare(self, embedding: Embedding) -> Embedding:
        """Unit length, in float32 at least: half precision is too coarse for a small temperature."""
        return F.normalize(super().prepare(embedding), dim=-1)

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        scaled = anchors / current_value(self.temperature, progress)
        bias = current_value(self.bias, progress)
        if isinstance(bias, float) and bias == 0.0:
            return scaled, keys
        # one more dimension, in which anchors are the bias and keys are 1
        column = torch.zeros_like(scaled[:, :1]) + bias
        return torch.cat([scaled, column], dim=1), torch.cat([keys, torch.ones_like(keys[:, :1])], dim=1)

    def scale_and_bias(self, progress: Progress = START) -> tuple[float, float]:
        """1/temperature and bias as numbers: a score is scale * cosine + bias."""
        temperature, bias = current_value(self.temperature, progress), current_value(self.bias, progress)
        return float(torch.as_tensor(1.0 / temperature).detach()), float(torch.as_tensor(bias).detach())

    def similarity(self, scores: Any, progress: Progress) -> Any:
        scale, bias = self.scale_and_bias(progress)
        return (scores - bias) / scale

    def lowest_score(self, progress: Progress = START) -> float | Float[Tensor, ""]:
        """The score of opposite vectors."""
        return current_value(self.bias, progress) - 1.0 / current_value(self.temperature, progress)


@dataclass(frozen=True)
class Dot(AbstractInnerProduct):
    """The inner product as it is: for encoders whose maps are the critic (CPC's f_k = z^T W_k c, Liu 2022,
    Eq. 28) and for a softmax over a vocabulary (Wu et al. 2020, sec. 5.1)."""

    equation = "u^T v"

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        return anchors, keys


@dataclass(frozen=True)
class Distance(AbstractCritic):
    """Minus the squared Euclidean distance over a temperature (Sáez Maldonado 2021, Eq. 17); of unit vectors
    when `unit`, and divided by their dimension when `mean`.

    On unit vectors it is 2 cos - 2: the cosine critic up to a constant, at half the temperature.
    """

    equation = "-|u - v|^2 / {temperature}"
    remarks = (("mean", True, "divided by the dimension"),)
    normalised = False
    bounded_above = True
    temperature: Value = 1.0
    unit: bool = True
    mean: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "temperature", parse_within(self.temperature, "temperature", 0, exclude_low=True)
        )

    def prepare(self, embedding: Embedding) -> Embedding:
        precise = super().prepare(embedding)
        return F.normalize(precise, dim=-1) if self.unit else precise

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        return -(anchors - keys).square().sum(dim=1) / self._scale(anchors, progress)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        # |u|^2 + |v|^2 - 2 uv: one matrix product instead of n x m x dim differences
        squares = anchors.square().sum(dim=1)[:, None] + keys.square().sum(dim=1)[None, :]
        return (2.0 * anchors @ keys.T - squares) / self._scale(anchors, progress)

    def _scale(self, anchors: Anchors, progress: Progress) -> float:
        return at(self.temperature, progress) * (anchors.shape[1] if self.mean else 1)
