"""Classifies the candidates of some anchors by what a selection does with them.

    Method, Batch --watched--> Scores and Context before the selection --sift--> Sifted

Nothing here knows the selections apart. Who is kept is what the selection returns; who was pulled to the
positive's side is whose score raises the positive's or is a further positive; the rest was dropped.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from nearfar.core.abstract import AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import Progress
from nearfar.core.scores import Dense, Scores
from nearfar.core.types import Batch, Context

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
    """What the selection is asked in a training step on `batch`, for the first pair of views.

    The method runs as it does in training, batch statistics included, or the anchors would not be those that
    the candidates in a queue or bank were embedded beside. Nothing of it changes.
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
