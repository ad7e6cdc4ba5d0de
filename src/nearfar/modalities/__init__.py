"""Kinds of data, each an object that knows all that depends on its kind (see `base.py`). Order decides what a folder with
files of several kinds is taken for."""

from collections.abc import Mapping
from typing import Any

from nearfar.errors import not_one_of
from nearfar.modalities.base import Description, Modality
from nearfar.modalities.dataset import DataSet, Instances
from nearfar.modalities.graph.modality import GRAPH, Graphs
from nearfar.modalities.image.modality import IMAGE
from nearfar.modalities.image.sets import Images
from nearfar.modalities.pairs.modality import PAIRS, Pairs
from nearfar.modalities.series.modality import TIME_SERIES, TimeSeries, time_series
from nearfar.modalities.sound.modality import SOUND, Recordings
from nearfar.modalities.text.modality import TEXT, Reading, Texts
from nearfar.modalities.vectors.modality import VECTORS, Vectors

MODALITIES: dict[str, Modality] = {
    each.name: each for each in (IMAGE, SOUND, TEXT, VECTORS, GRAPH, PAIRS, TIME_SERIES)
}


def modality_of(data: Any) -> Modality:
    """That of an opened set."""
    return MODALITIES[data.modality]


def modality_of_views(views: object) -> Modality:
    """That which has training views of this name, or which the views' section of a run names (views that somebody made)."""
    if isinstance(views, Mapping) and views.get("modality") in MODALITIES:
        return MODALITIES[views["modality"]]
    name = views.get("name") if isinstance(views, Mapping) else views
    for modality in MODALITIES.values():
        if name in modality.pipelines:
            return modality
    known = [pipeline for modality in MODALITIES.values() for pipeline in modality.pipelines]
    raise not_one_of("views", name, known)


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
