"""Rows of metrics.jsonl -> curves light enough to draw."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nearfar.report.facts import Curve

POINTS = 500

TRAINED = (
    "loss",
    "nats",
    "ceiling",
    "lr",
    "grad_norm",
    "images_per_s",
    "deviation",
    "rank",
    "mean_cosine",
)
PROBED = ("knn_top1",)


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every logged number that has at least one finite value, by its name in metrics.jsonl."""
    drawn = {}
    for kind, names in (("train", TRAINED), ("probe", PROBED)):
        of_kind = sorted((row for row in rows if row.get("kind") == kind), key=lambda row: row["epoch"])
        for name in names:
            curve = curve_of((row["epoch"], row.get(name)) for row in of_kind)
            if curve is not None:
                drawn[name] = curve
    return drawn


def curve_of(pairs: Iterable[tuple[float, float | None]]) -> Curve | None:
    """A curve of (epoch, value); a null value was never measured, a NaN or infinite one was and is a gap."""
    measured = [(epoch, value) for epoch, value in pairs if value is not None]
    table = np.array(measured, dtype=np.float64).reshape(-1, 2)
    epoch, value = table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)
    finite = value[~np.isnan(value)]
    if not len(finite):
        return None
    points = [
        _point(epoch[part], value[part]) for part in np.array_split(np.arange(len(value)), _parts(value))
    ]
    at, mean, low, high = (tuple(column) for column in zip(*points, strict=True))
    broken = len(value) - len(finite)
    return Curve(at, mean, low, high, first=float(finite[0]), last=float(finite[-1]), broken=broken)


def _parts(value: np.ndarray) -> int:
    return min(POINTS, len(value))


def _point(epoch: np.ndarray, value: np.ndarray) -> tuple[float, float, float, float]:
    finite = value[~np.isnan(value)]
    if not len(finite):
        return float(epoch.mean()), math.nan, math.nan, math.nan
    return float(epoch.mean()), float(finite.mean()), float(finite.min()), float(finite.max())
