"""Convolutional networks over the rows of a window."""

from torch import Tensor, nn

from nearfar.modalities.base import AbstractNetworks, Choice
from nearfar.modalities.series.data import TimeSeriesDescription
from nearfar.parts.encoders import InputSpec

WIDTHS = {"conv1d": 128, "conv1d-small": 32}


class Conv1d(nn.Module):
    """Three convolutions over time, the last two with a shortcut, then the mean over the window: (n, window,
    channels) -> (n, width)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.dim = width
        self.first = nn.Conv1d(channels, width, 3, padding=1)
        self.later = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (n, window, channels)
        x = nn.functional.gelu(self.first(x.transpose(1, 2)))  # (n, width, window)
        for layer in self.later:
            x = x + nn.functional.gelu(layer(x))
        return x.mean(dim=2)


class SeriesNetworks(AbstractNetworks):
    names = tuple(WIDTHS)
    default = "conv1d"
    smallest = "conv1d-small"

    def inputs(self, network: str, choice: Choice, description: TimeSeriesDescription) -> InputSpec:
        channels = len(description.mean)
        return InputSpec(
            lambda view: Conv1d(channels, WIDTHS[network]),
            ((description.window, channels),) * choice["count"],
            {"instances": description.instances},
        )
