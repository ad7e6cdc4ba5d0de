"""Time series, seen at neighbouring times by a small convolutional network.

nearfar pretrain cebra series:recording.csv --out runs/recording       also Parquet, an .npz with `x`; rows in the order of time
"""

from torch import Tensor, nn

from nearfar.modalities.base import AbstractNetworks, Choice, Modality, ViewFamily
from nearfar.modalities.series.data import SeriesReader, TimeSeries, TimeSeriesDescription, time_series
from nearfar.modalities.series.views import CentredWindow, Neighbouring
from nearfar.modalities.showing import NumbersPresenter
from nearfar.parts.encoders import InputSpec

WIDTHS = {"conv1d": 128, "conv1d-small": 32}


class Conv1d(nn.Module):
    """Three convolutions, two with a shortcut, and the mean over time: (n, time, channel) -> (n, width)."""

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


TIME_SERIES = Modality(
    name="series",
    unit="windows",
    plural="time series",
    example="series:recording.csv",
    reader=SeriesReader(),
    views=ViewFamily({"neighbouring": Neighbouring}),
    networks=SeriesNetworks(),
    presenter=NumbersPresenter(CentredWindow),
)

__all__ = ["TIME_SERIES", "TimeSeries", "TimeSeriesDescription", "time_series"]
