"""The interactive map: the place of each instance, its picture, its neighbours and its numbers.

    features --map_of--> Map --explorer_data--> JSON of the page, numbers packed as base64

Colours show the class, whether the vote of the neighbours is correct, the nats that the views of an instance
share, or how often it was kept as a negative.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from nearfar.core.randomness import order
from nearfar.core.types import Batch
from nearfar.evaluate.held_out import pointwise_nats
from nearfar.evaluate.knn import ranked_classes
from nearfar.report.facts import UNAVAILABLE, Detail, Map
from nearfar.report.pictures import Sample, atlas_of
from nearfar.report.space import aligned, flat_map
from nearfar.search.neighbours import nearest_others, unit_rows

MAX_NEIGHBOURS = 10  # neighbours shown of a point
CONTRASTED = 256  # instances contrasted with one another
MAX_NAME_LENGTH = 300  # characters of a name on the page


def map_of(
    features: Float[np.ndarray, "image dim"], sample: Sample, detail: Detail, kept_shares: Mapping[int, float]
) -> Map:
    flat, drawn_by = flat_map(features)
    # WebP compresses blocks of 16 pixels, so tiles of complete blocks do not affect one another
    side = 32 if sample.small or len(flat) > 5000 else 48
    shares = np.array([kept_shares.get(int(row), np.nan) for row in sample.rows])
    steps = sample.run.steps
    sprite_bytes = max(detail.sprite_bytes, detail.bytes_each * len(flat))
    return Map(
        flat,
        np.full(len(flat), -1) if sample.labels is None else np.maximum(sample.labels, -1),
        tuple(shortened(sample.path(place)) for place in range(len(flat))),
        sample.classes(),
        atlas_of(sample.pictures(), len(flat), side, sprite_bytes),
        drawn_by,
        len(sample.images),
        sample.small,
        nearest_others(unit_rows(features), MAX_NEIGHBOURS)[1],
        predicted=_votes(features, sample.labels),
        nats=_nats(sample),
        kept_shares=shares if kept_shares else None,
        earlier=tuple(_earlier(sample, flat, steps, detail.checkpoints)),
        last=f"step {steps[-1]:,}" if steps else "",
    )


def shortened(name: str) -> str:
    return (
        name
        if len(name) <= MAX_NAME_LENGTH
        else f"{name[: MAX_NAME_LENGTH // 2]}…{name[-MAX_NAME_LENGTH // 2 :]}"
    )


def _votes(
    features: Float[np.ndarray, "image dim"], labels: Int[np.ndarray, "image"] | None
) -> Int[np.ndarray, "image"] | None:
    """The class that the 20 nearest other instances of the map vote for; -1 for instances without a label."""
    if labels is None or (labels >= 0).sum() < 2:
        return None
    labelled = np.flatnonzero(labels >= 0)
    rows, classes = torch.from_numpy(features[labelled]), torch.from_numpy(labels[labelled].astype(np.int64))
    predicted = np.full(len(labels), -1, dtype=np.int64)
    predicted[labelled] = ranked_classes(rows, classes, rows, exclude_self=True)[:, 0].cpu().numpy()
    return predicted


def _nats(sample: Sample) -> Float[np.ndarray, "image"] | None:
    """The nats that two views of each instance share; None if the method does not provide them."""
    run = sample.run
    try:
        method, views = run.method().to(run.device), run.views()
        seed = int(run.settings.as_plain().get("seed") or 0)
        values = np.full(len(sample.rows), np.nan)
        shuffled = order(3, 0, len(sample.rows))
        for part in np.array_split(shuffled, max(1, round(len(shuffled) / CONTRASTED))):
            rows = sample.rows[part]
            loaded = sample.images.load(rows)
            view_tensors = views(loaded, seed, 0, rows)
            if len(view_tensors) == 1:
                view_tensors = (*view_tensors, *views(loaded, seed, 1, rows))
            nats = pointwise_nats(method, Batch(view_tensors, torch.from_numpy(rows)).to(run.device))
            if nats is None or len(nats) != len(part):
                return None
            values[part] = nats.float().cpu().numpy()
    # a user's method may need more than views
    except (*UNAVAILABLE, IndexError, KeyError, TypeError):
        return None
    return values if np.isfinite(values).all() else None


def _earlier(
    sample: Sample, last: Float[np.ndarray, "image 2"], steps: Sequence[int], count: int
) -> list[tuple[str, Float[np.ndarray, "image 2"]]]:
    """Maps of earlier checkpoints, each initialised from the next one and aligned with it."""
    places: list[int] = []
    if count > 1 and steps:
        places = np.unique(np.round(np.linspace(0, len(steps) - 1, count)).astype(int)).tolist()[:-1]
    maps: list[tuple[str, np.ndarray]] = []
    later = last
    for place in reversed(places):
        try:
            features = sample.run.embed_at(steps[place], sample.images.subset(sample.rows)).float().numpy()
            later = aligned(flat_map(features, like=later)[0], later)
        except UNAVAILABLE:  # a damaged checkpoint: the others are shown
            continue
        maps.append((f"step {steps[place]:,}", later))
    return maps[::-1]


def explorer_data(maps: Sequence[tuple[str, Map]]) -> dict[str, Any]:
    """The data of the page's script: one map, or several maps of the same instances side by side."""
    first = maps[0][1]
    atlas = first.atlas
    return {
        "names": first.names,
        "labels": _packed(first.labels, "<i2"),
        "classes": [shortened(name) for name in first.classes],
        "crisp": first.crisp,
        "atlas": {
            "sheets": atlas.sheets,
            "tile": atlas.tile,
            "columns": atlas.columns,
            "each": atlas.per_sheet,
        },
        "fields": [_field(title, drawn_map, first) for title, drawn_map in maps],
    }


def _field(title: str, drawn_map: Map, first: Map) -> dict[str, Any]:
    last = drawn_map.points if drawn_map is first else aligned(drawn_map.points, first.points)
    layers = [*drawn_map.earlier, (drawn_map.last, last)]
    all_places = np.concatenate([places for _, places in layers])
    low, high = all_places.min(axis=0), all_places.max(axis=0)
    scale = 65535 / max(float((high - low).max()), 1e-9)
    return {
        "title": title,
        "layers": [
            {"name": name, "places": _packed(np.round((places - low) * scale), "<u2")}
            for name, places in layers
        ],
        "extent": np.round((high - low) * scale).tolist(),
        "near": _packed(drawn_map.neighbours, "<u4"),
        "count": int(drawn_map.neighbours.shape[1]),
        "said": None if drawn_map.predicted is None else _packed(drawn_map.predicted, "<i2"),
        "numbers": {
            name: _numbers(values)
            for name, values in (("nats", drawn_map.nats), ("kept", drawn_map.kept_shares))
            if values is not None
        },
    }


def _numbers(values: Float[np.ndarray, "point"]) -> dict[str, Any]:
    """One byte per value, between the 2nd and the 98th percentile; 255 for missing values."""
    finite = values[np.isfinite(values)]
    low, high = (float(end) for end in np.percentile(finite, (2, 98)))
    high = high if high > low else low + 1e-9
    level = np.clip((values - low) / (high - low), 0, 1) * 254
    return {
        "low": low,
        "high": high,
        "level": _packed(np.where(np.isfinite(values), np.round(level), 255), "u1"),
    }


def _packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode("ascii")
