"""Time series, seen at neighbouring times by a small convolutional network.

nearfar pretrain cebra series:recording.csv --out runs/recording       also Parquet, an .npz with `x`; rows in the order of time
"""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.series.data import SeriesReader, TimeSeries, TimeSeriesDescription, time_series
from nearfar.modalities.series.networks import SeriesNetworks
from nearfar.modalities.series.show import SeriesPresenter
from nearfar.modalities.series.views import Neighbouring

TIME_SERIES = Modality(
    name="series",
    unit="windows",
    plural="time series",
    example="series:recording.csv",
    reader=SeriesReader(),
    views=ViewFamily({"neighbouring": Neighbouring}),
    networks=SeriesNetworks(),
    presenter=SeriesPresenter(),
)

__all__ = ["TIME_SERIES", "TimeSeries", "TimeSeriesDescription", "time_series"]
