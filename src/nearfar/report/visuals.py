"""What a run's data look like to it: the map, the gallery of neighbours, the strip of views."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.modalities import DataSet
from nearfar.report.explore import MapExtent, map_of
from nearfar.report.facts import (
    Absent,
    Gallery,
    Map,
    Neighbour,
    Picture,
    Query,
    Selected,
    Spread,
    Strip,
    StripRow,
)
from nearfar.report.named import Named
from nearfar.report.pictures import data_uri, fitted, within
from nearfar.report.reasons import UNAVAILABLE, said
from nearfar.report.selection import Extent, selection_of, selects
from nearfar.report.space import nearest, queries_of
from nearfar.run.trained import Run

BINS = 25  # of a histogram of views


@dataclass(frozen=True)
class Detail:
    """How much of a run is shown; `shared` among several runs so that their page stays light."""

    points: int = 1500
    sprite_bytes: int = 800_000  # of the thumbnails; with many points, so many for each
    bytes_each: int = 300
    checkpoints: int = 5  # of which the map is shown, the last among them
    side: int = 96  # of a picture in the gallery and the strip
    queries: int = 8
    neighbours: int = 8
    epochs: int = 3
    cases: int = 5
    measured: int = 256  # instances that are measured before and after views are made of them

    def shared(self, runs: int) -> "Detail":
        if runs == 1:
            return self
        return Detail(
            max(300, 2 * self.points // runs),
            max(100_000, self.sprite_bytes // runs),
            side=64 if runs < 4 else 48,
            cases=3,
            checkpoints=1,
        )


@dataclass(frozen=True)
class Visuals:
    map: Map | Absent
    gallery: Gallery | Absent
    strip: Strip | Absent
    selection: Selected | Absent | None  # None: everyone is kept


def visuals_of(run: Run, settings: Mapping[str, Any], detail: Detail) -> Visuals:
    """Map, gallery, strip and what the selection does, or why there are none."""
    seed = int(settings.get("seed") or 0)
    try:
        images = run.images()
        rows = images.sample(0, 0, detail.points)
    except UNAVAILABLE as problem:
        none = Absent(f"The training data could not be opened: {said(problem)}")
        return _nothing(none, settings)
    if not len(rows):
        return _nothing(Absent("The data set holds no images."), settings)
    selected = selection_of(run, images, settings, Extent(detail.cases, detail.side))
    return Visuals(
        *_space(run, images, rows, detail, selected.kept if isinstance(selected, Selected) else {}),
        _strip(run, images, rows, seed, detail),
        selected,
    )


def _nothing(why: Absent, settings: Mapping[str, Any]) -> Visuals:
    return Visuals(why, why, why, why if selects(settings) else None)


def _space(
    run: Run, images: DataSet, rows: np.ndarray, detail: Detail, kept: Mapping[int, float]
) -> tuple[Map | Absent, Gallery | Absent]:
    try:
        features = run.embed(images.subset(rows)).detach().float().cpu().numpy()
        if not np.isfinite(features).all():
            none = Absent("The encoder's features are not finite numbers: this run has diverged.")
            return none, none
        named = Named(run, images, rows)
        extent = MapExtent(max(detail.sprite_bytes, detail.bytes_each * len(rows)), detail.checkpoints)
        return map_of(features, named, extent, kept), _gallery(features, named, detail)
    except UNAVAILABLE as problem:
        none = Absent(f"The images could not be embedded: {said(problem)}")
        return none, none


def _gallery(features: np.ndarray, named: Named, detail: Detail) -> Gallery | Absent:
    if len(features) < 2:
        return Absent("One image has no neighbours.")
    queries = queries_of(named.labels, len(features), detail.queries)
    near, similarity = nearest(features, queries, detail.neighbours)
    shown = np.unique(np.concatenate([queries, near.ravel()]))
    pictures = {
        int(place): Picture(data_uri(fitted(picture, detail.side)), named.caption(int(place)))
        for place, picture in zip(shown, named.pictures(shown), strict=True)
    }

    def neighbour(query: int, place: int, score: float) -> Neighbour:
        labels = named.label(query), named.label(place)
        return Neighbour(pictures[place], score, None if None in labels else labels[0] == labels[1])

    return Gallery(
        tuple(
            Query(
                pictures[query],
                tuple(neighbour(query, *pair) for pair in zip(places, scores, strict=True)),
            )
            for query, places, scores in zip(
                queries.tolist(), near.tolist(), similarity.tolist(), strict=True
            )
        ),
        len(features),
        named.small,
    )


def _strip(run: Run, images: DataSet, rows: np.ndarray, seed: int, detail: Detail) -> Strip | Absent:
    """A few images as the encoder met them: the run's own seed, the first epochs, the images' own numbers."""
    try:
        named = Named(run, images, rows)
        places = queries_of(named.labels, len(rows), detail.queries)
        index = rows[places]
        loaded, views = images.load(index), run.views()
        epochs = [
            _drawn(run, views(loaded, seed, epoch, index), detail.side) for epoch in range(detail.epochs)
        ]
        shown = run.modality.presenter.pictures(loaded, run.description)
        originals = [data_uri(within(picture, detail.side)) for picture in shown]
        spreads = tuple(_spreads(run, images, rows[: detail.measured], seed))
    except UNAVAILABLE as problem:
        return Absent(f"The views could not be drawn: {said(problem)}")
    return Strip(
        tuple(
            StripRow(
                Picture(originals[row], named.caption(place)),
                tuple(
                    tuple(
                        Picture(view[row], f"view {which} in epoch {epoch}")
                        for which, view in enumerate(drawn, start=1)
                    )
                    for epoch, drawn in enumerate(epochs, start=1)
                ),
            )
            for row, place in enumerate(places.tolist())
        ),
        named.small,
        spreads,
        len(rows[: detail.measured]),
    )


def _spreads(run: Run, images: DataSet, index: np.ndarray, seed: int) -> Iterator[Spread]:
    """What the run's views do to its data, as the modality measures it."""
    for found in run.modality.presenter.view_measures(images.load(index), run.views(), seed, index):
        bins = np.linspace(0.0, max(1e-9, found.originals.max(), found.views.max()), BINS + 1)
        before, after = (np.histogram(side, bins)[0] / len(side) for side in (found.originals, found.views))
        medians = float(np.median(found.originals)), float(np.median(found.views))
        yield Spread(
            found.title,
            found.note,
            tuple(bins.tolist()),
            tuple(before.tolist()),
            tuple(after.tolist()),
            medians,
        )


def _drawn(run: Run, tensors: Sequence[Tensor], side: int) -> list[list[str]]:
    """Each view of each instance as a data URI."""
    views, known = run.views(), run.description
    return [
        [
            data_uri(within(picture, side))
            for picture in run.modality.presenter.view_pictures(views, tensor, known)
        ]
        for tensor in tensors
    ]
