"""Views of vectors: noise and features left out, or values of other rows.

Every number is brought to mean 0 and standard deviation 1 first, so that noise and a feature left out (set
to its mean) mean the same for all of them. A category is shown by an indicator for each level; one that is
left out, or was not seen in training, has none.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import check_number, check_whole
from nearfar.modalities.base import PlainView
from nearfar.modalities.vectors.data import VectorsDescription

NO_LEVEL = -1.0


@dataclass(frozen=True)
class Corrupt(AbstractViewSettings):
    """`count` views: Gaussian `noise` on every feature, each left out with probability `dropout`."""

    noise: float = 0.3
    dropout: float = 0.2
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        check_number("views.noise", self.noise, 0)
        check_number("views.dropout", self.dropout, 0, 1, exclude_high=True)
        check_whole("views.count", self.count, 1, 16)

    def training(self, description: VectorsDescription, device: torch.device) -> "CorruptedVectors":
        return CorruptedVectors(self, description, device)

    def plain_view(self, description: VectorsDescription, device: torch.device) -> "Standardised":
        return Standardised(description, device)


@dataclass(frozen=True)
class Scarf(AbstractViewSettings):
    """A row and `count` - 1 corrupted copies: a share `rate` of the columns, drawn for each copy, takes the values
    that the column has in other rows, drawn from its empirical marginal (Bahri et al. 2022, SCARF). With `both`,
    the first view is corrupted too."""

    rate: float = 0.6
    both: bool = False
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        check_number("views.rate", self.rate, 0, 1)
        check_whole("views.count", self.count, 1, 16)

    def training(self, description: VectorsDescription, device: torch.device) -> "ResampledVectors":
        return ResampledVectors(self, description, device)

    def plain_view(self, description: VectorsDescription, device: torch.device) -> "Standardised":
        return Standardised(description, device)


class Standardised(PlainView):
    """Rows with every number at mean 0 and standard deviation 1: the view of evaluation."""

    def __init__(self, description: VectorsDescription, device: torch.device) -> None:
        self.mean, self.std, self.device = np.array(description.mean), np.array(description.std), device
        self.levels = description.level_counts

    def __repr__(self) -> str:
        return f"Standardised({self.mean.tolist()}, {self.std.tolist()}, {self.levels})"

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (self._tensor((loaded - self.mean) / self.std),)

    def _tensor(self, rows: np.ndarray) -> Tensor:
        """Standardised columns, those of categories as indicators of their levels."""
        if any(self.levels):
            parts = [
                rows[:, [column]] if not count else rows[:, [column]] == np.arange(count)
                for column, count in enumerate(self.levels)
            ]
            rows = np.concatenate(parts, axis=1)
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)


class CorruptedVectors(AbstractViews, Standardised):
    """The views of training: view v of row i in epoch e is a function of (seed, e, i, v) and the row."""

    def __init__(self, settings: Corrupt, description: VectorsDescription, device: torch.device) -> None:
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
        is_category = np.array(self.levels) > 0
        noisy = np.where(is_category, rows, rows + self.options.noise * normal_quantiles(quantile))
        return np.where(dropout < self.options.dropout, np.where(is_category, NO_LEVEL, 0.0), noisy)


class ResampledVectors(AbstractViews, Standardised):
    """The views of `Scarf`: a function of (seed, epoch, index, view), the row and the training data's marginals."""

    def __init__(self, settings: Scarf, description: VectorsDescription, device: torch.device) -> None:
        super().__init__(description, device)
        self.options, self.count = settings, settings.count
        self.marginals = np.array(description.marginals).T  # (value, column)

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return tuple(
            self._tensor((self._resampled(loaded, seed, epoch, index, view) - self.mean) / self.std)
            for view in range(self.count)
        )

    def _resampled(self, rows: np.ndarray, seed: int, epoch: int, index: np.ndarray, view: int) -> np.ndarray:
        if view == 0 and self.count > 1 and not self.options.both:
            return rows
        width = rows.shape[1]
        choice, quantile = np.split(uniforms(seed, epoch, index, view, 2 * width), 2, axis=1)
        rank = choice.argsort(axis=1).argsort(axis=1)
        values = self.marginals[(quantile * len(self.marginals)).astype(np.int64), np.arange(width)]
        count = int(self.options.rate * width + 1e-9)  # 0.29 of 100 columns are 29
        return np.where(rank < count, values, rows)


def normal_quantiles(draws: np.ndarray) -> np.ndarray:
    """The normal quantiles of uniform draws; 0 has none, and no draw is 1."""
    return ndtri(np.maximum(draws, np.finfo(np.float64).tiny))
