"""The pictures of a page: the map, the gallery of neighbours, the strip of views."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.modalities import DataSet
from nearfar.report.explore import map_of, queries_of
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
    as_sentence,
)
from nearfar.report.pictures import Sample, data_uri, fitted, within
from nearfar.report.selection import selection_of, selects
from nearfar.run.trained import Run
from nearfar.search.neighbours import nearest_others, unit_rows

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
