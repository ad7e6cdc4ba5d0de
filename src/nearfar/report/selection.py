"""Which negatives a run's selection keeps, on a sample of anchors: counts, similarities, pictures.

Measured when the page is written, from the last checkpoint and the data: the candidates of the step that the
run would take next.

Nothing here knows the selections apart. Who is kept is what the selection returns; who was pulled to the
positive's side is whose score raises the positive's or is a further positive; the rest was dropped.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from nearfar.config.sections import PARTS_BY_CHOICE
from nearfar.core.abstract import AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import Progress
from nearfar.core.scores import Dense, Scores
from nearfar.core.types import Batch, Context, Coverage
from nearfar.data.stream import batch_of
from nearfar.errors import as_sentence
from nearfar.modalities import DataSet
from nearfar.report.facts import (
    UNAVAILABLE,
    Absent,
    CandidateGroup,
    Case,
    Cases,
    Detail,
    Neighbour,
    Picture,
    Selected,
)
from nearfar.report.pictures import Sample, data_uri, fitted, queries_of, within
from nearfar.run.trained import Run

ABSENT, NEGATIVE, CLOSE, PULLED, DROPPED, EASY = range(-1, 5)
GROUPS = (NEGATIVE, CLOSE, PULLED, DROPPED, EASY)
_SPREAD = 100.0  # nats


@dataclass(frozen=True)
class ClassifiedCandidates:
    """Anchors and candidates after the selection; `group` is ABSENT for no candidate of that anchor."""

    score: Float[np.ndarray, "anchor candidate"]
    group: Int8[np.ndarray, "anchor candidate"]
    positive: Float[np.ndarray, "anchor"]  # the best of an anchor's positives, before the selection
    anchor: Int[np.ndarray, "anchor"]  # instance ids
    candidate: Int[np.ndarray, "candidate"]


@torch.no_grad()
def training_scores(method: Method, batch: Batch, progress: Progress) -> tuple[Scores, Context]:
    """What the selection decides in a training step on `batch`, for the first pair of views.

    The method runs as it does in training, batch statistics included, or the anchors would not be those that
    the candidates in a queue or bank were embedded with. Nothing of it changes.
    """
    training = method.training
    method.train()
    try:
        pair, (encoded, _) = method.pairs(batch)[0], method.encode_batch(batch)
        return method.score(encoded, batch.index, pair.anchor, pair.key, progress)
    finally:
        method.train(training)


def classify_candidates(
    selection: AbstractSelection, scores: Scores, context: Context, by_rank: bool
) -> ClassifiedCandidates:
    """The group of every candidate. `by_rank`: dropped ones are too easy or too close."""
    values, is_candidate = scores.negative.matrix()
    values, positive = values.detach().double(), scores.positive.detach().double()
    # brought close together, in the order they have: a pulled candidate far below the best must still be felt
    lowest, highest = torch.cat([values, positive], dim=1).aminmax()
    scale = _SPREAD / max(_SPREAD, float(highest - lowest))
    scaled = (values * scale).requires_grad_()
    with torch.enable_grad():
        selected = selection(Scores(positive * scale, Dense(scaled, is_candidate)), context)
    kept_mask = selected.negative.matrix()[1] & is_candidate
    pulled_mask = _pulled(selected.positive, scaled)
    if selected.more_positives is not None:
        pulled_mask = pulled_mask | selected.more_positives.matrix()[1]
    pulled_mask = pulled_mask & is_candidate & ~kept_mask
    group = torch.full_like(is_candidate, DROPPED, dtype=torch.int8)
    if by_rank and is_candidate.any():
        easier, closer = _sides(values, is_candidate, kept_mask, pulled_mask)
        group[easier], group[closer] = EASY, CLOSE
    for mask, name in ((pulled_mask, PULLED), (kept_mask, NEGATIVE), (~is_candidate, ABSENT)):
        group[mask] = name
    arrays = (values, group, positive.amax(dim=1), context.index, context.candidates.index)
    return ClassifiedCandidates(*(tensor.cpu().numpy() for tensor in arrays))


def _pulled(positive: Tensor, values: Tensor) -> Bool[Tensor, "anchor candidate"]:
    """Whose score the positive's score rises with."""
    if not positive.requires_grad:
        return torch.zeros_like(values, dtype=torch.bool)
    (slope,) = torch.autograd.grad(positive.sum(), values, allow_unused=True)
    return torch.zeros_like(values, dtype=torch.bool) if slope is None else slope > 0


def _sides(
    values: Float[Tensor, "anchor candidate"],
    is_candidate: Bool[Tensor, "anchor candidate"],
    kept_mask: Bool[Tensor, "anchor candidate"],
    pulled_mask: Bool[Tensor, "anchor candidate"],
) -> tuple[Bool[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
    """Candidates below all that an anchor keeps or pulls, and those above all that it keeps."""
    order = values.argsort(dim=1, stable=True)
    places = torch.arange(values.shape[1], device=values.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    used = kept_mask | pulled_mask
    lowest = rank.masked_fill(~used, values.shape[1]).amin(dim=1, keepdim=True)
    highest = rank.masked_fill(~kept_mask, -1).amax(dim=1, keepdim=True)
    comparable = is_candidate & used.any(dim=1, keepdim=True)
    easier = comparable & (rank < lowest)
    return easier, comparable & ~easier & (rank > highest)


ANCHORS = 256
LARGEST_BATCH = 512  # anchors, where the batch itself is what they are contrasted with
SCORES = 2**21  # anchors times candidates: what is sorted, and put before a learned acceptance, in a second
BINS = 48
MAX_PER_GROUP = 5  # pictures of a group

TITLES = {
    NEGATIVE: "kept",
    CLOSE: "dropped as too close",
    PULLED: "pulled as positives",
    DROPPED: "dropped",
    EASY: "dropped as too easy",
}
SERIES = {NEGATIVE: 0, CLOSE: 1, PULLED: 2, DROPPED: 3, EASY: 8}
_PARTS = Absent("Anchors are parts of an instance here and are not shown one by one.")


def selects(settings: Mapping[str, Any]) -> bool:
    """Whether the settings name a selection that may drop candidates."""
    choice = settings.get("selection")
    part = PARTS_BY_CHOICE["selection"].get(choice.get("name", "")) if isinstance(choice, Mapping) else None
    return part is not None and not part.keeps_all


def selection_of(
    run: Run, images: DataSet, settings: Mapping[str, Any], detail: Detail
) -> Selected | Absent | None:
    """The effect of the selection at the last checkpoint; None if it keeps every candidate."""
    if not selects(settings):
        return None
    try:
        return _measured(run, images, settings, detail)
    except UNAVAILABLE as problem:
        return Absent(f"The selection could not be measured: {as_sentence(problem)}")


def _measured(run: Run, images: DataSet, settings: Mapping[str, Any], detail: Detail) -> Selected | Absent:
    # candidates are classified in float64, which not every GPU has
    device = run.device if run.device.type == "cuda" else torch.device("cpu")
    method, progress = run.method().to(device), progress_of(run, settings)
    images = run.trained_on(images)
    rows = images.order(2, 0)[: _anchors(method, int(settings["batch_size"]))]
    views = run.views()(images.load(rows), int(settings["seed"]), int(progress.epoch), rows)
    batch = batch_of(images, views, rows).to(device)
    classified, coverage = _classify(method, batch, progress, int(settings["seed"]))
    if not (classified.group >= 0).any():
        return Absent("The anchors have no negatives, so the selection has nothing to choose from.")
    if not np.isfinite(classified.score[classified.group >= 0]).all():
        return Absent("The scores are not finite numbers: this run has diverged.")
    # anchors may be the times of a sequence, with ids that are no instance's
    are_instances = np.array_equal(classified.anchor, rows)
    labels = np.asarray(images.labels) if are_instances and images.labels is not None else None
    name, bins = str(settings["selection"]["name"]), _bins(classified)
    # why a candidate is dropped that is neither nearer nor farther than those kept
    dropped = next(filter(None, (part.drop_reason for part in method.selections)), "")
    groups = {
        g: _group(classified, g, dropped, bins, labels) for g in GROUPS if (classified.group == g).any()
    }
    cases = cases_of(run, images, method, batch, classified, groups, detail) if are_instances else _PARTS
    return Selected(
        name=name,
        step=progress.step,
        anchors=len(classified.anchor),
        candidates=float((classified.group >= 0).sum(axis=1).mean()),
        source=method.negatives.display_name,
        measure=method.critic.measure,
        positive=float(np.median(classified.positive)),
        bins=tuple(bins.tolist()),
        groups=tuple(groups.values()),
        notes=tuple(_notes(method, len(rows), coverage, int(settings["batch_size"]))),
        cases=cases,
        kept_shares=_kept_shares(classified, images.rows) if are_instances else {},
    )


def _kept_shares(classified: ClassifiedCandidates, rows: Int[np.ndarray, "instance"]) -> dict[int, float]:
    """By row of the data, of the anchors that a candidate was offered to, the share that kept it."""
    is_known = (classified.candidate >= 0) & (classified.candidate < len(rows))
    offered, kept_mask = classified.group[:, is_known] >= 0, classified.group[:, is_known] == NEGATIVE
    instance = classified.candidate[is_known]
    counts = np.zeros((2, len(rows)))
    for place, mask in enumerate((offered, kept_mask)):
        np.add.at(counts[place], instance, mask.sum(axis=0))
    return {int(rows[i]): float(counts[1, i] / counts[0, i]) for i in np.flatnonzero(counts[0])}


def _classify(
    method: Method, batch: Batch, progress: Progress, seed: int
) -> tuple[ClassifiedCandidates, Coverage | None]:
    """The classified candidates, and for a ring the share of anchors covered by Wu et al. 2021, Thm 3.1."""
    selection = method.selection
    by_rank = any(part.ranks_by_score for part in method.selections)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # a bank may sample its rows, a selection draw, an encoder drop units
        scores, context = training_scores(method, batch, progress)
        classified = classify_candidates(selection, scores, context, by_rank)
    return _in_units(classified, method, progress), selection.coverage(scores, context)


def progress_of(run: Run, settings: Mapping[str, Any]) -> Progress:
    """Where the run is at its last checkpoint."""
    facts = run.facts
    per_epoch = max(1, run.description.instances // settings["batch_size"])
    moves = facts["hooks"]["AdaptiveSchedules"]["moves"]
    return Progress(facts["step"], settings["epochs"] * per_epoch, per_epoch, moves)


def _anchors(method: Method, batch_size: int) -> int:
    """As many anchors as a batch if they are one another's candidates, otherwise a small number."""
    remembered = method.negatives.prefill_size()
    if not remembered:
        return min(batch_size, LARGEST_BATCH)
    return min(batch_size, ANCHORS, max(8, SCORES // remembered))


def _in_units(classified: ClassifiedCandidates, method: Method, progress: Progress) -> ClassifiedCandidates:
    """Scores as similarities: a cosine without its temperature."""
    unscaled = partial(method.critic.similarity, progress=progress)
    return replace(classified, score=unscaled(classified.score), positive=unscaled(classified.positive))


def _bins(classified: ClassifiedCandidates) -> Float[np.ndarray, "edge"]:
    """Equal bins over the similarities of all candidates."""
    similar = classified.score[classified.group >= 0]
    low, high = float(similar.min()), float(similar.max())
    margin = max(1e-6, 1e-6 * abs(high), 1e-6 * abs(low))  # so that rounding leaves no value outside
    return np.linspace(low - margin, high + margin, BINS + 1)


def _group(
    classified: ClassifiedCandidates,
    group: int,
    dropped: str,
    bins: np.ndarray,
    labels: Int[np.ndarray, "image"] | None,
) -> CandidateGroup:
    inside = classified.group == group
    similar = np.where(inside, classified.score, np.nan)
    has_members = inside.any(axis=1)
    low, high = np.nanmin(similar[has_members], axis=1), np.nanmax(similar[has_members], axis=1)
    return CandidateGroup(
        title=TITLES[group] + (f": {dropped}" if group == DROPPED and dropped else ""),
        series=SERIES[group],
        per_anchor=float(inside.sum(axis=1).mean()),
        share=float(inside.sum() / (classified.group >= 0).sum()),
        low=float(np.median(low)),
        high=float(np.median(high)),
        same=_same_class_share(classified, inside, labels),
        histogram=tuple(np.histogram(classified.score[inside], bins)[0].tolist()),
    )


def _same_class_share(
    classified: ClassifiedCandidates, inside: np.ndarray, labels: Int[np.ndarray, "image"] | None
) -> float | None:
    """Share of these pairs that are of one class, of those whose classes are known."""
    if labels is None:
        return None
    classes = [
        np.where(ids >= 0, labels[np.maximum(ids, 0)], -1)
        for ids in (classified.anchor, classified.candidate)
    ]
    anchor_class, candidate_class = classes[0][:, None], classes[1][None, :]
    is_known = inside & (anchor_class >= 0) & (candidate_class >= 0)
    return (
        float((is_known & (anchor_class == candidate_class)).sum() / is_known.sum())
        if is_known.any()
        else None
    )


def _notes(method: Method, anchors: int, coverage: Coverage | None, batch_size: int) -> Iterator[str]:
    if coverage is not None:
        # rounding down: a share short of all must never read as all
        yield (
            "Wu et al. 2021, Thm 3.1 requires of a ring that every kept e^f is at least the mean over the "
            f"anchor's candidates. This holds for {math.floor(100 * coverage.share)}% of these "
            f"{coverage.anchors:,} anchors. Dropping the closest candidates keeps a bound a bound only if it "
            "holds for every anchor."
        )
    if not method.negatives.prefill_size() and anchors < batch_size:
        yield f"Training contrasts {batch_size:,} images at a time, this sample {anchors:,}: fewer candidates."
    clusters = clusters_of(method)
    if clusters is not None and bool((clusters < 0).all()):
        yield "The clusters are not formed yet; they are formed at the start of the second epoch."


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
        candidates = [classified.candidate[place] for places in examples.values() for place in places]
        sample = Sample(run, images, np.unique([*candidates, *classified.anchor[rows]]).astype(np.int64))
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
            pair = method.pairs(batch)[0]
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
