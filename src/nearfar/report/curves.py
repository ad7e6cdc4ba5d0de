"""Rows of metrics.jsonl -> curves light enough to draw."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nearfar.report.facts import Curve
from nearfar.system.untrusted import is_number

POINTS = 500

TRAINED = ("loss", "nats", "ceiling", "lr", "grad_norm", "images_per_s", "deviation", "rank", "mean_cosine")
PROBED = ("knn_top1", "linear_top1", "rankme", "lidar", "alpha_req", "uniformity", "alignment")
HELD_OUT = ("nats", "ceiling")
EDGES = ("lower", "upper")  # of a selection by rank: the outer and the inner edge


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every logged number with a finite value, by its name in metrics.jsonl; schedules have dots."""
    curves = {}
    schedule_names = dict.fromkeys(
        name for row in rows if row.get("kind") == "train" for name in row if "." in name
    )
    for kind, names in (("train", (*TRAINED, *schedule_names)), ("probe", PROBED), ("held-out", HELD_OUT)):
        rows_of_kind = of_kind(rows, kind)
        for name in names:
            curve = curve_of((row["epoch"], row.get(name)) for row in rows_of_kind)
            if curve is not None:
                curves[f"held-out {name}" if kind == "held-out" else name] = curve
    if "nats" not in curves:  # a ceiling without an estimate below it says nothing
        curves.pop("ceiling", None)
    return curves


def edges_of(rows: Sequence[Mapping[str, Any]], selection: Mapping[str, Any]) -> dict[str, Curve]:
    """The edges of a selection over training, as shares of an anchor's candidates."""
    trained = of_kind(rows, "train")
    curves = {}
    for name in EDGES:
        fixed = selection.get(name)
        if isinstance(fixed, (int, float)):
            curve = curve_of((row["epoch"], float(fixed)) for row in trained)
        else:
            curve = curve_of((row["epoch"], row.get(f"selection.{name}")) for row in trained)
        if curve is not None:
            curves[name] = curve
    return curves


def of_kind(rows: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """The rows of a kind that say where in the run they are, in that order."""
    placed = (row for row in rows if row.get("kind") == kind and is_number(row.get("epoch")))
    return sorted((row for row in placed if math.isfinite(row["epoch"])), key=lambda row: row["epoch"])


def curve_of(pairs: Iterable[tuple[float, float | None]]) -> Curve | None:
    """A curve of (epoch, value); a null value was never measured, a NaN or infinite one was and is a gap."""
    measured = [(epoch, value) for epoch, value in pairs if is_number(value)]
    table = np.array(measured, dtype=np.float64).reshape(-1, 2)
    epoch, value = table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)
    finite = value[~np.isnan(value)]
    if not len(finite):
        return None
    parts = np.array_split(np.arange(len(value)), min(POINTS, len(value)))
    points = [_point(epoch[part], value[part]) for part in parts]
    at, mean, low, high = (tuple(column) for column in zip(*points, strict=True))
    broken = len(value) - len(finite)
    return Curve(at, mean, low, high, first=float(finite[0]), last=float(finite[-1]), broken=broken)


def _point(epoch: np.ndarray, value: np.ndarray) -> tuple[float, float, float, float]:
    finite = value[~np.isnan(value)]
    if not len(finite):
        return float(epoch.mean()), math.nan, math.nan, math.nan
    return float(epoch.mean()), float(finite.mean()), float(finite.min()), float(finite.max())
