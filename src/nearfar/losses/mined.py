"""The options of pytorch-metric-learning as parts: a distance is a critic, `indices_tuple` is a selection, and a
reducer is a function of the values that a loss otherwise averages.

With any of them a loss holds the matrix of all scores; without, none is held (`nearfar.losses.labels`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractCritic
from nearfar.core.kernels import matches
from nearfar.core.strategy import Rows as Layout
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError
from nearfar.losses.scoring import described

Indices = Int[Tensor, "pair"]
Reducer = Callable[..., Tensor]
PAIRS, TRIPLETS = 4, 3  # lengths of an `indices_tuple`


def check_distance(distance: Any) -> None:
    is_similarity = getattr(distance, "is_inverted", None)
    is_peers = callable(distance) and isinstance(is_similarity, bool)
    if not (distance is None or isinstance(distance, AbstractCritic) or is_peers):
        raise UserError(
            f"distance was {described(distance)}; expected a distance of pytorch-metric-learning or a critic "
            "such as nf.Cosine(1.0)"
        )


def distance_scores(distance: Any, anchors: Tensor, keys: Tensor) -> Float[Tensor, "n m"]:
    """Scores of a critic, similarities of pytorch-metric-learning, or its distances negated."""
    if isinstance(distance, AbstractCritic):
        return distance.cross(distance.prepare(anchors), distance.prepare(keys))
    values = distance(anchors, keys)
    return values if distance.is_inverted else -values


@dataclass(frozen=True)
class MinedPairs:
    """Positives and negatives of anchors, by number. A triplet miner's triplets stay together."""

    anchors: Indices
    positives: Indices
    negative_anchors: Indices
    negatives: Indices
    are_triplets: bool = False

    def triplets(self) -> tuple[Indices, Indices, Indices]:
        """(anchor, positive, negative) of all positives and negatives of each anchor."""
        if self.are_triplets:
            return self.anchors, self.positives, self.negatives
        rows, columns = matches(self.anchors, self.negative_anchors)
        return self.anchors[rows], self.positives[rows], self.negatives[columns]


def pairs_of_masks(positive: Bool[Tensor, "n m"], negative: Bool[Tensor, "n m"]) -> MinedPairs:
    (anchors, positives), (negative_anchors, negatives) = (
        mask.nonzero(as_tuple=True) for mask in (positive, negative)
    )
    return MinedPairs(anchors, positives, negative_anchors, negatives)


def read_pairs(
    indices_tuple: Any, anchors: Layout, keys: Layout, device: torch.device, gather: bool
) -> MinedPairs:
    """The pairs or triplets of a miner, whose numbers are those of this rank's rows, from all ranks."""
    is_sequence = isinstance(indices_tuple, Sequence) and len(indices_tuple) in (PAIRS, TRIPLETS)
    if not is_sequence or not all(_is_index(part) for part in indices_tuple):
        hint = "; pass a matrix of positives as mask=" if isinstance(indices_tuple, Tensor) else ""
        raise UserError(
            f"indices_tuple was {described(indices_tuple)}; expected (anchors, positives, negatives) or "
            f"(anchors, positives, anchors, negatives) as tensors of whole numbers{hint}"
        )
    are_triplets = len(indices_tuple) == TRIPLETS
    order = (0, 1, 0, 2) if are_triplets else range(PAIRS)
    columns = []
    for place, number in enumerate(order):
        part = indices_tuple[number].to(device=device, dtype=torch.int64)
        side = keys if place % 2 else anchors
        if len(part) and not (int(part.min()) >= 0 and int(part.max()) < side.sizes[side.rank]):
            raise UserError(f"indices_tuple has row {int(part.max())} of {side.sizes[side.rank]}")
        columns.append(gather_layout(len(part), device, gather).all_gather(part + side.start))
    return MinedPairs(columns[0], columns[1], columns[2], columns[3], are_triplets)


def _is_index(part: Any) -> bool:
    return isinstance(part, Tensor) and part.ndim == 1 and not part.is_floating_point()


@dataclass(frozen=True)
class Terms:
    """The values that a loss averages: over those that `count`, if no reducer is given.

    `indices` and `kind` say what each value is of, in the words of pytorch-metric-learning: an `element`
    (anchor), a `pos_pair` or a `triplet`.
    """

    values: Float[Tensor, "term"]
    count: Bool[Tensor, "term"]
    indices: Tensor | tuple[Tensor, ...]
    kind: str

    def reduced(self, reducer: Reducer | None, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        """`reducer`: a function of the values, or a reducer of pytorch-metric-learning."""
        if isinstance(reducer, nn.Module):
            values = self.values if len(self.values) else 0
            loss = {"losses": values, "indices": self.indices, "reduction_type": self.kind}
            return reducer({"loss": loss}, embeddings, labels)
        if not len(self.values):
            return embeddings.new_zeros(())
        if reducer is not None:
            return reducer(self.values)
        return torch.where(self.count, self.values, 0.0).sum() / self.count.sum().clamp_min(1)


def grouped_logsumexp(
    values: Float[Tensor, "pair"], groups: Int[Tensor, "pair"], count: int
) -> Float[Tensor, "group"]:
    """log of the sum of e^value of each group, -inf for a group without values."""
    top = values.new_full((count,), -torch.inf).scatter_reduce(0, groups, values.detach(), "amax")
    top = top.masked_fill(top.isneginf(), 0.0)
    return values.new_zeros(count).index_add(0, groups, (values - top[groups]).exp()).log() + top
