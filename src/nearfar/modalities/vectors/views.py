"""Views of vectors: noise and features left out.

Every feature is brought to mean 0 and standard deviation 1 first, so that noise and a feature left out (set
to its mean) mean the same for all of them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError, check_whole
from nearfar.modalities.base import PlainView, StandardisedDescription


@dataclass(frozen=True)
class Corrupt(AbstractViewSettings):
    """`count` views: Gaussian `noise` on every feature, each left out with probability `dropout`."""

    noise: float = 0.3
    dropout: float = 0.2
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.noise < 0:
            raise UserError(f"views.noise was {self.noise:g}; it must be at least 0")
        if not 0 <= self.dropout < 1:
            raise UserError(f"views.dropout was {self.dropout:g}; it must lie in [0, 1)")
        check_whole("views.count", self.count, 1, 16)

    def training(self, description: StandardisedDescription, device: torch.device) -> "CorruptedVectors":
        return CorruptedVectors(self, description, device)

    def plain_view(self, description: StandardisedDescription, device: torch.device) -> "Standardised":
        return Standardised(description, device)


class Standardised(PlainView):
    """Rows with every feature at mean 0 and standard deviation 1: the view of evaluation."""

    def __init__(self, description: StandardisedDescription, device: torch.device) -> None:
        self.mean, self.std, self.device = np.array(description.mean), np.array(description.std), device

    def __repr__(self) -> str:
        return f"Standardised({self.mean.tolist()}, {self.std.tolist()})"

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (self._tensor((loaded - self.mean) / self.std),)

    def _tensor(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)


class CorruptedVectors(AbstractViews, Standardised):
    """The views of training: view v of row i in epoch e is a function of (seed, e, i, v) and the row."""

    def __init__(self, settings: Corrupt, description: StandardisedDescription, device: torch.device) -> None:
        super().__init__(description, device)
        self.options, self.count = settings, settings.count

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        standard = (loaded - self.mean) / self.std
        return tuple(
            self._tensor(self._corrupted(standard, uniforms(seed, epoch, index, view, 2 * loaded.shape[1])))
            for view in range(self.count)
        )

    def _corrupted(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        dropout, quantile = np.split(draws, 2, axis=1)
        noisy = rows + self.options.noise * normal_quantiles(quantile)
        return np.where(dropout < self.options.dropout, 0.0, noisy)


def normal_quantiles(draws: np.ndarray) -> np.ndarray:
    """The normal quantiles of uniform draws; 0 has none, and no draw is 1."""
    return ndtri(np.maximum(draws, np.finfo(np.float64).tiny))
