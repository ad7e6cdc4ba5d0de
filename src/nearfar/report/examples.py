"""Example anchors with pictures of the candidates that a selection kept and dropped."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int
from torch import Tensor

from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.modalities import DataSet
from nearfar.report.classify import EASY, ClassifiedCandidates
from nearfar.report.facts import (
    UNAVAILABLE,
    Absent,
    CandidateGroup,
    Case,
    Cases,
    Neighbour,
    Picture,
    as_sentence,
)
from nearfar.report.pictures import Sample, data_uri, fitted, within
from nearfar.report.space import queries_of
from nearfar.run.trained import Run

MAX_PER_GROUP = 5  # pictures of a group


class Thumbnails:
    """Pictures of anchors and positives as views, and of instances as they are."""

    def __init__(self, run: Run, images: DataSet, method: Method, batch: Batch, side: int) -> None:
        self.run, self.images, self.method, self.batch, self.side = run, images, method, batch, side

    def instances(self, ids: Int[np.ndarray, "instance"]) -> tuple[Sample, dict[int, Picture]]:
        sample = Sample(self.run, self.images, ids)
        pictures = {
            int(row): Picture(data_uri(fitted(picture, self.side)), sample.caption(place))
            for place, (row, picture) in enumerate(zip(ids, sample.pictures(), strict=True))
        }
        return sample, pictures

    def view(self, view_number: int, row: int, caption: str) -> Picture:
        view = self.batch.views[view_number][row : row + 1]
        (picture,) = self.run.modality.presenter.view_pictures(self.run.views(), view, self.run.description)
        return Picture(data_uri(within(picture, self.side)), caption)


def cases_of(
    classified: ClassifiedCandidates, groups: Mapping[int, CandidateGroup], thumbnails: Thumbnails, count: int
) -> Cases | Absent:
    """Anchors of different classes, each with its hardest kept, its closest dropped and its easiest
    candidates."""
    try:
        rows = _rows(classified, thumbnails.images, count)
        examples = {(row, group): _examples(classified, row, group) for row in rows for group in groups}
        places = [
            classified.candidate[place] for places_of_group in examples.values() for place in places_of_group
        ]
        sample, pictures = thumbnails.instances(
            np.unique([*places, *classified.anchor[rows]]).astype(np.int64)
        )
        label = {int(row): sample.label(place) for place, row in enumerate(sample.rows)}

        def neighbour(row: int, place: int) -> Neighbour:
            anchor_id, candidate_id = int(classified.anchor[row]), int(classified.candidate[place])
            both_known = label[anchor_id] is not None and label[candidate_id] is not None
            return Neighbour(
                pictures[candidate_id],
                float(classified.score[row, place]),
                label[anchor_id] == label[candidate_id] if both_known else None,
            )

        cases = tuple(
            Case(
                *_pair(thumbnails, row, pictures[int(classified.anchor[row])]),
                similarity=float(classified.positive[row]),
                note=_clusters(thumbnails.method, int(classified.anchor[row])),
                groups=tuple(
                    (facts, tuple(neighbour(row, place) for place in examples[row, group]))
                    for group, facts in groups.items()
                    if examples[row, group]
                ),
            )
            for row in rows
        )
        return Cases(cases, sample.small)
    except UNAVAILABLE as problem:
        return Absent(f"The examples could not be drawn: {as_sentence(problem)}")


def _rows(classified: ClassifiedCandidates, images: DataSet, count: int) -> list[int]:
    labels = None if images.labels is None else np.asarray(images.labels)[classified.anchor]
    return queries_of(labels, len(classified.anchor), count).tolist()


def _examples(classified: ClassifiedCandidates, row: int, group: int) -> list[int]:
    """Places of the most similar candidates of a group, or of the least similar ones of those that are too
    easy; each instance once."""
    members = np.flatnonzero((classified.group[row] == group) & (classified.candidate >= 0))
    score = classified.score[row, members]
    ranked = members[np.argsort(score if group == EASY else -score, kind="stable")]
    return list(_first_of_each(ranked, classified.candidate))[:MAX_PER_GROUP]


def _first_of_each(places: Int[np.ndarray, "place"], instance: np.ndarray) -> Iterator[int]:
    visited: set[int] = set()
    for place in places.tolist():
        if int(instance[place]) not in visited:
            visited.add(int(instance[place]))
            yield place


def _pair(thumbnails: Thumbnails, row: int, instance_picture: Picture) -> tuple[Picture, Picture]:
    """The anchor's view and its positive: the other view, or the instance itself if a bank holds the
    positives."""
    views = len(thumbnails.batch.views)
    pair = thumbnails.method.encoders.pairs(views, thumbnails.method.symmetric)[0]
    caption = instance_picture.caption
    anchor = thumbnails.view(pair.anchor, row, caption) if pair.anchor < views else instance_picture
    remembered = thumbnails.method.negatives.remembers_positives
    positive = (
        instance_picture if remembered or pair.key >= views else thumbnails.view(pair.key, row, caption)
    )
    return anchor, positive


def clusters_of(method: Method) -> Int[Tensor, "run instance"] | None:
    """The clusters that the selection uses, -1 where none are formed yet; None if it uses none."""
    clusters = (part.cluster_ids() for part in method.selections)
    return next((ids for ids in clusters if ids is not None), None)


def _clusters(method: Method, instance: int) -> str:
    """The clusters of the anchor, in words."""
    clusters = clusters_of(method)
    if clusters is None:
        return ""
    numbers = [
        int(cluster) for cluster in clusters[:, instance : instance + 1].flatten().tolist() if cluster >= 0
    ]
    return f"in cluster {', '.join(str(cluster) for cluster in numbers)}" if numbers else "in no cluster yet"
