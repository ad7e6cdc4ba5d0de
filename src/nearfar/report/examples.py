"""Example anchors with pictures of the candidates that a selection kept and dropped."""

from collections.abc import Mapping

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
    Detail,
    Neighbour,
    Picture,
    as_sentence,
)
from nearfar.report.pictures import Sample, data_uri, fitted, within
from nearfar.report.space import queries_of
from nearfar.run.trained import Run

MAX_PER_GROUP = 5  # pictures of a group


def cases_of(
    run: Run,
    images: DataSet,
    method: Method,
    batch: Batch,
    classified: ClassifiedCandidates,
    groups: Mapping[int, CandidateGroup],
    detail: Detail,
) -> Cases | Absent:
    """Anchors of different classes with their hardest kept, closest dropped and easiest candidates."""
    try:
        labels = None if images.labels is None else np.asarray(images.labels)[classified.anchor]
        rows = queries_of(labels, len(classified.anchor), detail.cases).tolist()
        examples = {(row, group): _examples(classified, row, group) for row in rows for group in groups}
        shown = [classified.candidate[place] for places in examples.values() for place in places]
        sample = Sample(run, images, np.unique([*shown, *classified.anchor[rows]]).astype(np.int64))
        place_of = {int(row): place for place, row in enumerate(sample.rows)}
        pictures = [
            Picture(data_uri(fitted(picture, detail.side)), sample.caption(place))
            for place, picture in enumerate(sample.pictures())
        ]

        def neighbour(row: int, place: int) -> Neighbour:
            anchor, candidate = (
                place_of[int(classified.anchor[row])],
                place_of[int(classified.candidate[place])],
            )
            score = float(classified.score[row, place])
            return Neighbour(pictures[candidate], score, sample.same_class(anchor, candidate))

        def view(number: int, row: int, instance: Picture) -> Picture:
            """The instance as a view of the batch; itself where it is none."""
            if number >= len(batch.views):
                return instance
            tensor = batch.views[number][row : row + 1]
            (picture,) = run.modality.presenter.view_pictures(run.views(), tensor, run.description)
            return Picture(data_uri(within(picture, detail.side)), instance.caption)

        def case(row: int) -> Case:
            instance = pictures[place_of[int(classified.anchor[row])]]
            pair = method.encoders.pairs(len(batch.views), method.symmetric)[0]
            # a bank may hold the positives: the instance itself
            remembered = method.negatives.remembers_positives
            return Case(
                view(pair.anchor, row, instance),
                instance if remembered else view(pair.key, row, instance),
                similarity=float(classified.positive[row]),
                note=_clusters(method, int(classified.anchor[row])),
                groups=tuple(
                    (facts, tuple(neighbour(row, place) for place in examples[row, group]))
                    for group, facts in groups.items()
                    if examples[row, group]
                ),
            )

        return Cases(tuple(case(row) for row in rows), sample.small)
    except UNAVAILABLE as problem:
        return Absent(f"The examples could not be drawn: {as_sentence(problem)}")


def _examples(classified: ClassifiedCandidates, row: int, group: int) -> list[int]:
    """Places of the most similar candidates of a group (too easy: the least similar), each instance once."""
    members = np.flatnonzero((classified.group[row] == group) & (classified.candidate >= 0))
    score = classified.score[row, members]
    ranked = members[np.argsort(score if group == EASY else -score, kind="stable")]
    _, first = np.unique(classified.candidate[ranked], return_index=True)
    return ranked[np.sort(first)][:MAX_PER_GROUP].tolist()


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
