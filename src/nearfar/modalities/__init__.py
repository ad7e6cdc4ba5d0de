"""Kinds of data, a folder for each (`base.py`); a mixed folder is opened as the first of them."""

from collections.abc import Mapping
from typing import Any

from nearfar.errors import not_one_of
from nearfar.modalities.base import Description, Modality
from nearfar.modalities.dataset import DataSet, Instances
from nearfar.modalities.graph import GRAPH, Graphs
from nearfar.modalities.image import IMAGE, Images
from nearfar.modalities.pairs import PAIRS, Pairs
from nearfar.modalities.series import TIME_SERIES, TimeSeries, time_series
from nearfar.modalities.sound import SOUND, Recordings
from nearfar.modalities.text import TEXT, Reading, Texts
from nearfar.modalities.vectors import VECTORS, Vectors

MODALITIES: dict[str, Modality] = {
    modality.name: modality for modality in (IMAGE, SOUND, TEXT, VECTORS, GRAPH, PAIRS, TIME_SERIES)
}


def modality_of(data: Any) -> Modality:
    """The modality of an opened data set."""
    return MODALITIES[data.modality]


def modality_of_views(views: object) -> Modality:
    """The modality with training views of this name, or the one that a user's own views name."""
    if isinstance(views, Mapping) and views.get("modality") in MODALITIES:
        return MODALITIES[views["modality"]]
    name = views.get("name") if isinstance(views, Mapping) else views
    for modality in MODALITIES.values():
        if name in modality.views.names:
            return modality
    names = [name for modality in MODALITIES.values() for name in modality.views.names]
    raise not_one_of("views", name, names)


__all__ = [
    "MODALITIES",
    "DataSet",
    "Description",
    "Graphs",
    "Images",
    "Instances",
    "Modality",
    "Pairs",
    "Reading",
    "Recordings",
    "Texts",
    "TimeSeries",
    "Vectors",
    "modality_of",
    "modality_of_views",
    "time_series",
]
