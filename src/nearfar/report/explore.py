"""The map that a reader can walk about in: where each instance lies, its picture, its neighbours, and what is known of it.

    features --map_of--> Map --explorer_data--> JSON of the page, numbers packed as base64

What a colour can show: the class; whether the neighbours' vote is right; how many nats an instance's views share among others; how
often it was kept as a negative.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from nearfar.core.randomness import order
from nearfar.core.types import Batch
from nearfar.evaluate.held_out import pointwise_nats
from nearfar.evaluate.knn import ranked_classes
from nearfar.report.facts import Map, Point
from nearfar.report.named import Named
from nearfar.report.pictures import atlas_of
from nearfar.report.reasons import UNAVAILABLE
from nearfar.report.space import aligned, flat_map, neighbours_of_all

NEAR = 10  # neighbours shown of a point
AMONG = 256  # instances with whose views those of one are contrasted
LONGEST = 300  # signs of a name on the page


@dataclass(frozen=True)
class MapExtent:
    """How much of a map there is: bytes of thumbnails, and checkpoints."""

    thumbnails: int
    checkpoints: int


def map_of(
    features: Float[np.ndarray, "image dim"], named: Named, extent: MapExtent, kept: Mapping[int, float]
) -> Map:
    flat, drawn_by = flat_map(features)
    points = tuple(
        Point(float(x), float(y), named.label(place), shortened(named.path(place)))
        for place, (x, y) in enumerate(flat)
    )
    # WebP works in blocks of 16, so tiles of whole blocks do not bleed into one another
    side = 32 if named.small or len(points) > 5000 else 48
    shares = np.array([kept.get(int(row), np.nan) for row in named.rows])
    steps = named.run.steps
    return Map(
        points,
        named.classes(),
        atlas_of(named.pictures(), len(points), side, extent.thumbnails),
        drawn_by,
        len(named.images),
        named.small,
        neighbours_of_all(features, NEAR),
        said=_said(features, named.labels),
        nats=_nats(named),
        kept=shares if kept else None,
        earlier=tuple(_earlier(named, flat, steps, extent.checkpoints)),
        last=f"step {steps[-1]:,}" if steps else "",
    )


def shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-LONGEST // 2 :]}"


def _said(
    features: Float[np.ndarray, "image dim"], labels: Int[np.ndarray, "image"] | None
) -> Int[np.ndarray, "image"] | None:
    """The class that the 20 nearest of the other shown instances vote for; -1 for who has no known class."""
    if labels is None or (labels >= 0).sum() < 2:
        return None
    known = np.flatnonzero(labels >= 0)
    rows, classes = torch.from_numpy(features[known]), torch.from_numpy(labels[known].astype(np.int64))
    said = np.full(len(labels), -1, dtype=np.int64)
    said[known] = ranked_classes(rows, classes, rows, exclude_self=True)[:, 0].cpu().numpy()
    return said


def _nats(named: Named) -> Float[np.ndarray, "image"] | None:
    """What the two views of each instance tell of each other, among others drawn by a fixed seed; None where a method has no such number."""
    run = named.run
    try:
        method, views = run.method().to(run.device), run.views()
        seed = int(run.settings.as_plain().get("seed") or 0)
        found = np.full(len(named.rows), np.nan)
        mixed = order(3, 0, len(named.rows))
        for part in np.array_split(mixed, max(1, round(len(mixed) / AMONG))):
            rows = named.rows[part]
            loaded = named.images.load(rows)
            seen = views(loaded, seed, 0, rows)
            if len(seen) == 1:
                seen = (*seen, *views(loaded, seed, 1, rows))
            nats = pointwise_nats(method, Batch(seen, torch.from_numpy(rows)).to(run.device))
            if nats is None or len(nats) != len(part):
                return None
            found[part] = nats.float().cpu().numpy()
    except (
        *UNAVAILABLE,
        IndexError,
        KeyError,
        TypeError,
    ):  # a method of somebody's own may need more than views
        return None
    return found if np.isfinite(found).all() else None


def _earlier(
    named: Named, last: Float[np.ndarray, "image 2"], steps: Sequence[int], count: int
) -> list[tuple[str, Float[np.ndarray, "image 2"]]]:
    """Maps at checkpoints before the last, each started from the one after it and turned to lie like it."""
    chosen: list[int] = []
    if count > 1 and steps:
        chosen = np.unique(np.round(np.linspace(0, len(steps) - 1, count)).astype(int)).tolist()[:-1]
    found: list[tuple[str, np.ndarray]] = []
    after = last
    for place in reversed(chosen):
        try:
            features = named.run.embed_at(steps[place], named.images.subset(named.rows)).float().numpy()
            after = aligned(flat_map(features, like=after)[0], after)
        except UNAVAILABLE:  # a damaged checkpoint: the others are shown
            continue
        found.append((f"step {steps[place]:,}", after))
    return found[::-1]


# ------------------------------------------------------------------------------------- for the page


def explorer_data(maps: Sequence[tuple[str, Map]]) -> dict[str, Any]:
    """What the script of the page needs of one map, or of several of the same instances, side by side."""
    first = maps[0][1]
    atlas = first.atlas
    labels = [-1 if point.label is None else point.label for point in first.points]
    return {
        "names": [point.name for point in first.points],
        "labels": _packed(np.array(labels), "<i2"),
        "classes": [shortened(name) for name in first.classes],
        "crisp": first.crisp,
        "atlas": {"sheets": atlas.sheets, "tile": atlas.tile, "columns": atlas.columns, "each": atlas.each},
        "fields": [_field(title, shown, first) for title, shown in maps],
    }


def _field(title: str, shown: Map, first: Map) -> dict[str, Any]:
    last = shown.places() if shown is first else aligned(shown.places(), first.places())
    layers = [*shown.earlier, (shown.last, last)]
    whole = np.concatenate([places for _, places in layers])
    low, high = whole.min(axis=0), whole.max(axis=0)
    scale = 65535 / max(float((high - low).max()), 1e-9)
    return {
        "title": title,
        "layers": [
            {"name": name, "places": _packed(np.round((places - low) * scale), "<u2")}
            for name, places in layers
        ],
        "extent": np.round((high - low) * scale).tolist(),
        "near": _packed(shown.near, "<u4"),
        "count": int(shown.near.shape[1]),
        "said": None if shown.said is None else _packed(shown.said, "<i2"),
        "numbers": {
            name: _numbers(values)
            for name, values in (("nats", shown.nats), ("kept", shown.kept))
            if values is not None
        },
    }


def _numbers(values: Float[np.ndarray, "point"]) -> dict[str, Any]:
    """A byte for each between the second lowest and highest percentiles; 255 where nothing is known."""
    known = values[np.isfinite(values)]
    low, high = (float(end) for end in np.percentile(known, (2, 98)))
    high = high if high > low else low + 1e-9
    level = np.clip((values - low) / (high - low), 0, 1) * 254
    return {
        "low": low,
        "high": high,
        "level": _packed(np.where(np.isfinite(values), np.round(level), 255), "u1"),
    }


def _packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode("ascii")
