"""A few anchors with pictures of what a selection did to their candidates."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int
from torch import Tensor

from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.modalities import DataSet
from nearfar.report.classify import EASY, Sifted
from nearfar.report.facts import Absent, Case, Cases, Group, Neighbour, Picture
from nearfar.report.named import Named
from nearfar.report.pictures import data_uri, fitted, within
from nearfar.report.reasons import UNAVAILABLE, said
from nearfar.report.space import queries_of
from nearfar.run.trained import Run

EACH = 5  # pictures of a group


class Thumbnails:
    """Pictures of anchors and positives as the encoder saw them, and of instances as they are."""

    def __init__(self, run: Run, images: DataSet, method: Method, batch: Batch, side: int) -> None:
        self.run, self.images, self.method, self.batch, self.side = run, images, method, batch, side

    def instances(self, ids: Int[np.ndarray, "instance"]) -> tuple[Named, dict[int, Picture]]:
        named = Named(self.run, self.images, ids)
        pictures = {
            int(row): Picture(data_uri(fitted(picture, self.side)), named.caption(place))
            for place, (row, picture) in enumerate(zip(ids, named.pictures(), strict=True))
        }
        return named, pictures

    def view(self, which: int, row: int, caption: str) -> Picture:
        seen = self.batch.views[which][row : row + 1]
        (drawn,) = self.run.modality.presenter.view_pictures(self.run.views(), seen, self.run.description)
        return Picture(data_uri(within(drawn, self.side)), caption)


def cases_of(sifted: Sifted, groups: Mapping[int, Group], shown: Thumbnails, count: int) -> Cases | Absent:
    """Anchors of as many classes as there are, each with its hardest kept, its closest dropped, its easiest."""
    try:
        rows = _rows(sifted, shown.images, count)
        examples = {(row, group): _examples(sifted, row, group) for row in rows for group in groups}
        places = [sifted.candidate[place] for found in examples.values() for place in found]
        named, pictures = shown.instances(np.unique([*places, *sifted.anchor[rows]]).astype(np.int64))
        label = {int(row): named.label(place) for place, row in enumerate(named.rows)}

        def neighbour(row: int, place: int) -> Neighbour:
            mine, theirs = int(sifted.anchor[row]), int(sifted.candidate[place])
            known = label[mine] is not None and label[theirs] is not None
            return Neighbour(
                pictures[theirs],
                float(sifted.score[row, place]),
                label[mine] == label[theirs] if known else None,
            )

        cases = tuple(
            Case(
                *_pair(shown, row, pictures[int(sifted.anchor[row])]),
                similarity=float(sifted.positive[row]),
                note=_clusters(shown.method, int(sifted.anchor[row])),
                groups=tuple(
                    (facts, tuple(neighbour(row, place) for place in examples[row, group]))
                    for group, facts in groups.items()
                    if examples[row, group]
                ),
            )
            for row in rows
        )
        return Cases(cases, named.small)
    except UNAVAILABLE as problem:
        return Absent(f"The examples could not be drawn: {said(problem)}")


def _rows(sifted: Sifted, images: DataSet, count: int) -> list[int]:
    labels = None if images.labels is None else np.asarray(images.labels)[sifted.anchor]
    return queries_of(labels, len(sifted.anchor), count).tolist()


def _examples(sifted: Sifted, row: int, group: int) -> list[int]:
    """Places of the most similar candidates of a group, or of the least similar of those that are too easy; each
    instance once, and only known ones."""
    members = np.flatnonzero((sifted.group[row] == group) & (sifted.candidate >= 0))
    score = sifted.score[row, members]
    ranked = members[np.argsort(score if group == EASY else -score, kind="stable")]
    return list(_first_of_each(ranked, sifted.candidate))[:EACH]


def _first_of_each(places: Int[np.ndarray, "place"], instance: np.ndarray) -> Iterator[int]:
    seen: set[int] = set()
    for place in places.tolist():
        if int(instance[place]) not in seen:
            seen.add(int(instance[place]))
            yield place


def _pair(shown: Thumbnails, row: int, whole: Picture) -> tuple[Picture, Picture]:
    """The anchor as it was seen and its positive: the other view, or, from a bank, the instance itself."""
    views = len(shown.batch.views)
    pair = shown.method.encoders.pairs(views, shown.method.symmetric)[0]
    caption = whole.caption
    anchor = shown.view(pair.anchor, row, caption) if pair.anchor < views else whole
    remembered = shown.method.negatives.remembers_positives
    positive = whole if remembered or pair.key >= views else shown.view(pair.key, row, caption)
    return anchor, positive


def clusters_of(method: Method) -> Int[Tensor, "run instance"] | None:
    """The clusters that the selection goes by, -1 where there are none yet; None if it goes by none."""
    clusters = (part.cluster_ids() for part in method.selections)
    return next((ids for ids in clusters if ids is not None), None)


def _clusters(method: Method, instance: int) -> str:
    """Which clusters the anchor is in."""
    clusters = clusters_of(method)
    if clusters is None:
        return ""
    known = [
        int(cluster) for cluster in clusters[:, instance : instance + 1].flatten().tolist() if cluster >= 0
    ]
    return f"in cluster {', '.join(str(cluster) for cluster in known)}" if known else "in no cluster yet"
