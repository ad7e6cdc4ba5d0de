"""The pictures of a page: the interactive map, the gallery of neighbours, the strip of views.

    features --map_of--> Map --explorer_data--> JSON of the page, numbers packed as base64

Colours of the map show the class, whether the vote of the neighbours is correct, the nats that the views of an
instance share, or how often it was kept as a negative.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from nearfar.core.randomness import order
from nearfar.core.types import Batch
from nearfar.errors import as_sentence
from nearfar.evaluate.held_out import pointwise_nats
from nearfar.evaluate.knn import ranked_classes
from nearfar.modalities import DataSet
from nearfar.report.facts import (
    UNAVAILABLE,
    Absent,
    Detail,
    Gallery,
    Map,
    Neighbour,
    Picture,
    Query,
    Selected,
    Strip,
    StripRow,
    ViewHistogram,
)
from nearfar.report.pictures import Sample, atlas_of, data_uri, fitted, queries_of, within
from nearfar.report.selection import selection_of, selects
from nearfar.run.trained import Run
from nearfar.search.neighbours import nearest_others, unit_rows

LANDMARKS = 1500  # t-SNE lays out no more than these
FEW = 50  # below this t-SNE has too few neighbours to say more than PCA
_PRINCIPAL = 50  # dimensions t-SNE is given: more change little and cost time


def principal(features: Float[np.ndarray, "image dim"], count: int) -> Float[np.ndarray, "image count"]:
    """The first `count` principal components, zeros where there are fewer."""
    centred = (features - features.mean(axis=0)).astype(np.float64)
    left_vectors, size, _ = np.linalg.svd(centred, full_matrices=False)
    components = (left_vectors * size)[:, :count]
    return np.pad(components, ((0, 0), (0, count - components.shape[1])))


def flat_map(
    features: Float[np.ndarray, "image dim"], like: Float[np.ndarray, "image 2"] | None = None
) -> tuple[Float[np.ndarray, "image 2"], str]:
    """The features in two dimensions within [0, 1], and what drew them: t-SNE, or PCA for a few.

    Of many, t-SNE lays out `LANDMARKS`, and each of the others is put among those it is most similar to.
    `like` is another map of the same images, from which t-SNE starts, so that what stays near stays where it
    was.
    """
    components = principal(unit_rows(features), min(_PRINCIPAL, max(2, features.shape[1])))
    # a collapsed encoder puts everything on one spot: t-SNE's start divides by that spread
    if len(features) < FEW or components[:, 0].std() < 1e-6:
        return _unit_square(components[:, :2]), "PCA"
    landmarks = np.sort(order(0, 0, len(features))[:LANDMARKS])  # the same ones for every run
    start = (components if like is None else like)[landmarks, :2]
    start = start - start.mean(axis=0)
    tsne = TSNE(
        n_components=2,
        init=start / max(float(start[:, 0].std()), 1e-9) * 1e-4,
        learning_rate="auto",
        perplexity=min(30.0, len(landmarks) / 4),
        random_state=0,
        max_iter=1000 if like is None else 300,
    )
    layout = tsne.fit_transform(components[landmarks].astype(np.float32))
    if len(landmarks) == len(features):
        return _unit_square(layout), "t-SNE"
    drawn_by = f"t-SNE of {len(landmarks):,} of them, the others beside the most similar"
    return _unit_square(_place_by_landmarks(components, landmarks, layout)), drawn_by


def _place_by_landmarks(
    rows: Float[np.ndarray, "image dim"],
    landmarks: Int[np.ndarray, "landmark"],
    layout: Float[np.ndarray, "landmark 2"],
) -> Float[np.ndarray, "image 2"]:
    """Every image at the weighted mean of its three nearest landmarks, landmarks at their own place."""
    index = NearestNeighbors(n_neighbors=3).fit(rows[landmarks])
    placed = np.empty((len(rows), 2))
    for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 4096)):
        distance, neighbours = index.kneighbors(rows[part])
        weight = 1 / np.maximum(distance, 1e-9) ** 2
        placed[part] = (layout[neighbours] * (weight / weight.sum(axis=1, keepdims=True))[..., None]).sum(
            axis=1
        )
    placed[landmarks] = layout
    return placed


def aligned(
    points: Float[np.ndarray, "image 2"], target_points: Float[np.ndarray, "image 2"]
) -> Float[np.ndarray, "image 2"]:
    """One map turned, mirrored, scaled and shifted to lie near another of the same points (Procrustes).

    min over s, R, t of |s moved R + t - to|², R orthogonal: R = U V' of the singular vectors of moved' to.
    """
    centre, target = points.mean(axis=0), target_points.mean(axis=0)
    left_vectors, sizes, right = np.linalg.svd((points - centre).T @ (target_points - target))
    spread = float(((points - centre) ** 2).sum())
    scale = float(sizes.sum()) / spread if spread > 0 else 1.0
    return scale * (points - centre) @ left_vectors @ right + target


def _unit_square(points: Float[np.ndarray, "image 2"]) -> Float[np.ndarray, "image 2"]:
    """The points moved and scaled, both axes alike, to fill the square around (1/2, 1/2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    return 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-9)


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


BINS = 25  # of a histogram of views


def visuals_of(
    run: Run, settings: Mapping[str, Any], detail: Detail
) -> tuple[Map | Absent, Gallery | Absent, Strip | Absent, Selected | Absent | None]:
    """Map, gallery, strip and selection, or why they are absent; None where everyone is kept."""
    try:
        images = run.open_data()
        rows = images.sample(0, 0, detail.points)
        absent = None if len(rows) else Absent("The data set holds no images.")
    except UNAVAILABLE as problem:
        absent = Absent(f"The training data could not be opened: {as_sentence(problem)}")
    if absent is not None:
        return absent, absent, absent, absent if selects(settings) else None
    selected = selection_of(run, images, settings, detail)
    kept_shares = selected.kept_shares if isinstance(selected, Selected) else {}
    strip = _strip(run, images, rows, int(settings.get("seed") or 0), detail)
    return *_space(run, images, rows, detail, kept_shares), strip, selected


def _space(
    run: Run, images: DataSet, rows: np.ndarray, detail: Detail, kept_shares: Mapping[int, float]
) -> tuple[Map | Absent, Gallery | Absent]:
    try:
        features = run.embed(images.subset(rows)).detach().float().cpu().numpy()
        if not np.isfinite(features).all():
            absent = Absent("The features of the encoder are not finite: this run has diverged.")
            return absent, absent
        sample = Sample(run, images, rows)
        return map_of(features, sample, detail, kept_shares), _gallery(features, sample, detail)
    except UNAVAILABLE as problem:
        absent = Absent(f"The images could not be embedded: {as_sentence(problem)}")
        return absent, absent


def _gallery(features: np.ndarray, sample: Sample, detail: Detail) -> Gallery | Absent:
    if len(features) < 2:
        return Absent("A single image has no neighbours.")
    queries = queries_of(sample.labels, len(features), detail.queries)
    similarity, neighbours = nearest_others(unit_rows(features), detail.neighbours, queries)
    places_shown = np.unique(np.concatenate([queries, neighbours.ravel()]))
    pictures = {
        int(place): Picture(data_uri(fitted(picture, detail.side)), sample.caption(int(place)))
        for place, picture in zip(places_shown, sample.pictures(places_shown), strict=True)
    }

    rows = []
    for query, places, scores in zip(queries.tolist(), neighbours.tolist(), similarity.tolist(), strict=True):
        similar = (
            Neighbour(pictures[place], score, sample.same_class(query, place))
            for place, score in zip(places, scores, strict=True)
        )
        rows.append(Query(pictures[query], tuple(similar)))
    return Gallery(tuple(rows), len(features), sample.small)


def _strip(run: Run, images: DataSet, rows: np.ndarray, seed: int, detail: Detail) -> Strip | Absent:
    """A few images as training views: with the run's seed and the images' numbers, in the first epochs."""
    try:
        sample = Sample(run, images, rows)
        places = queries_of(sample.labels, len(rows), detail.queries)
        index = rows[places]
        loaded, views = images.load(index), run.views()
        epochs = [
            _draw_views(run, views(loaded, seed, epoch, index), detail.side, f"in epoch {epoch + 1}")
            for epoch in range(detail.epochs)
        ]
        pictures = run.modality.presenter.pictures(loaded, run.description)
        originals = [data_uri(within(picture, detail.side)) for picture in pictures]
        spreads = tuple(_spreads(run, images, rows[: detail.measured], seed))
    except UNAVAILABLE as problem:
        return Absent(f"The views could not be drawn: {as_sentence(problem)}")
    strip_rows = tuple(
        StripRow(
            Picture(originals[row], sample.caption(place)),
            tuple(tuple(view[row] for view in drawn_views) for drawn_views in epochs),
        )
        for row, place in enumerate(places.tolist())
    )
    return Strip(strip_rows, sample.small, spreads, len(rows[: detail.measured]))


def _spreads(run: Run, images: DataSet, index: np.ndarray, seed: int) -> Iterator[ViewHistogram]:
    """Measures of the data before and after augmentation, as the modality defines them."""
    for measure in run.modality.presenter.view_measures(images.load(index), run.views(), seed, index):
        bins = np.linspace(0.0, max(1e-9, measure.originals.max(), measure.views.max()), BINS + 1)
        original, augmented = (
            np.histogram(side, bins)[0] / len(side) for side in (measure.originals, measure.views)
        )
        medians = float(np.median(measure.originals)), float(np.median(measure.views))
        yield ViewHistogram(
            measure.title,
            measure.note,
            tuple(bins.tolist()),
            tuple(original.tolist()),
            tuple(augmented.tolist()),
            medians,
        )


def _draw_views(run: Run, tensors: Sequence[Tensor], side: int, when: str) -> list[list[Picture]]:
    """Each view of each instance."""
    views, description, presenter = run.views(), run.description, run.modality.presenter
    return [
        [
            Picture(data_uri(within(picture, side)), f"view {number} {when}")
            for picture in presenter.view_pictures(views, tensor, description)
        ]
        for number, tensor in enumerate(tensors, start=1)
    ]
