"""Views of time series: the windows of a time and of one of its neighbours."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError, check_number
from nearfar.modalities.base import PlainView
from nearfar.modalities.series.data import TimeSeriesDescription, check_window
from nearfar.modalities.vectors.views import normal_quantiles


@dataclass(frozen=True)
class Neighbouring(AbstractViewSettings):
    """Two windows of `window` rows: that of a time, and that of a different time at most `offset` rows away,
    uniformly drawn (Schneider et al. 2023). Gaussian noise of standard deviation `noise` is added to both."""

    window: int = 10
    offset: int = 10
    noise: float = 0.0
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        check_window(self.window, self.offset)
        check_number("views.noise", self.noise, 0)
        if self.count != 2:
            raise UserError(f"views.count was {self.count}; a time and its neighbour are 2")

    def training(self, description: TimeSeriesDescription, device: torch.device) -> "NeighbouringWindows":
        return NeighbouringWindows(self, description, device)

    def plain_view(self, description: TimeSeriesDescription, device: torch.device) -> "CentredWindow":
        return CentredWindow(description, device)


class CentredWindow(PlainView):
    """The window of each time, every channel at mean 0 and standard deviation 1: the view of evaluation."""

    def __init__(self, description: TimeSeriesDescription, device: torch.device) -> None:
        self.mean, self.std, self.device = np.array(description.mean), np.array(description.std), device
        self.window, self.offset = description.window, description.offset

    def __repr__(self) -> str:
        return f"CentredWindow({self.window}, {self.offset}, {self.mean.tolist()}, {self.std.tolist()})"

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (self._windows(loaded, np.full(len(loaded), self.offset)),)

    def _windows(self, loaded: np.ndarray, starts: np.ndarray) -> Tensor:
        times = starts[:, None] + np.arange(self.window)
        rows = (loaded[np.arange(len(loaded))[:, None], times] - self.mean) / self.std
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)


class NeighbouringWindows(CentredWindow, AbstractViews):
    """The views of training: the windows of a time and of a neighbour, a function of (seed, epoch, time)."""

    def __init__(
        self, settings: Neighbouring, description: TimeSeriesDescription, device: torch.device
    ) -> None:
        super().__init__(description, device)
        self.noise = settings.noise

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        (centre,) = super().__call__(loaded, seed, epoch, index)
        place = np.floor(2 * self.offset * uniforms(seed, epoch, index, 0, 1)[:, 0]).astype(np.int64)
        starts = place + (place >= self.offset)  # any of the 2 x offset neighbours, not the time itself
        windows = (centre, self._windows(loaded, starts))
        if not self.noise:
            return windows
        return tuple(self._noisy(view, seed, epoch, index, n) for n, view in enumerate(windows, start=1))

    def _noisy(self, view: Tensor, seed: int, epoch: int, index: np.ndarray, number: int) -> Tensor:
        normal = normal_quantiles(uniforms(seed, epoch, index, number, view[0].numel())).reshape(view.shape)
        return view + self.noise * torch.from_numpy(normal.astype(np.float32)).to(view.device)
