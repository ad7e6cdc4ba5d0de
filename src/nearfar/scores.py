"""Scores of positives and negatives: held whole, or computed tile by tile.

    dense_scores(anchors, keys)      builds the n x n matrix
    streamed_scores(anchors, keys)   never does; same numbers, same gradients, memory of one tile

Every reduction of `Streamed` runs over blocks of anchors under activation checkpointing: a tile's scores are
thrown away after the forward pass and computed again in the backward pass, so any critic can be streamed. The one that
counts most, log-sum-exp of inner products, has its backward pass written out (`logsumexp`): the same numbers in half the time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearfar.errors import UserError
from nearfar.logsumexp import InnerLogSumExp, inner, matches

TILE = 256  # anchors per tile: small enough for a tile to stay in cache, large enough for a good matmul


UNKNOWN = -1  # a candidate whose instance is not known: always somebody else
EMPTY = -2  # a slot that holds nothing yet: never a negative


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision cannot count to 700, and a ceiling must hold to the last digit: scores are float32 at least."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


@dataclass(frozen=True)
class Candidates:
    """Things an anchor may be contrasted with, and which instance each of them is."""

    embedding: Float[Tensor, "candidate dim"]
    index: Int[Tensor, "candidate"]

    def negative_mask(self, anchor: Int[Tensor, "anchor"]) -> Bool[Tensor, "anchor candidate"]:
        """Which candidates are not the anchor itself: one comparison for batch, queue and bank alike."""
        return (self.index[None, :] != anchor[:, None]) & (self.index[None, :] != EMPTY)


class Negatives(Protocol):
    """Kept negatives of each anchor, seen only through reductions over them."""

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        """log of the sum of e^score; -inf where an anchor has none."""

    def count(self) -> Float[Tensor, "anchor"]: ...

    def offered(self) -> int:
        """Candidates there are places for, whether they are kept or not, or not there yet."""

    def mean_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        """Mean of an elementwise function of the scores; 0 where an anchor has none.

        The function also reads what is given `per_anchor`, each as a column beside the scores of that anchor:
        `mean_of(lambda score, positive: relu(score - positive), positive)`. Gradients reach the columns too.
        """

    def hardest(self) -> Float[Tensor, "anchor"]:
        """The highest score; -inf where an anchor has none."""

    def matrix(self) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
        """Scores and which are kept, built in full: for selections that must rank them, never for bounds."""


@dataclass(frozen=True)
class Dense:
    """Negatives as a matrix, in float32 at least, and a mask of those that count (None: all)."""

    values: Float[Tensor, "anchor candidate"]
    kept: Bool[Tensor, "anchor candidate"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", at_least_float32(self.values))

    def offered(self) -> int:
        return self.values.shape[1]

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        values = self.values if self.kept is None else self.values.masked_fill(~self.kept, -torch.inf)
        return values.logsumexp(dim=1)

    def count(self) -> Float[Tensor, "anchor"]:
        if self.kept is None:
            return self.values.new_full((len(self.values),), self.values.shape[1])
        return self.kept.sum(dim=1).to(self.values.dtype)

    def mean_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        columns = [column[:, None] for column in per_anchor]
        if self.kept is None:
            total = function(self.values, *columns).sum(dim=1)
        else:
            # the inner zero keeps f's gradient finite where the outer one discards its value
            safe = self.values.masked_fill(~self.kept, 0.0)
            total = function(safe, *columns).masked_fill(~self.kept, 0.0).sum(dim=1)
        return total / self.count().clamp_min(1.0)

    def hardest(self) -> Float[Tensor, "anchor"]:
        if self.values.shape[1] == 0:
            return self.values.new_full((len(self.values),), -torch.inf)
        values = self.values if self.kept is None else self.values.masked_fill(~self.kept, -torch.inf)
        return values.amax(dim=1)

    def matrix(self) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
        kept = self.kept if self.kept is not None else torch.ones_like(self.values, dtype=torch.bool)
        return self.values, kept


@dataclass(frozen=True)
class Streamed:
    """Negatives that are scored when a reduction asks for them, `tile` anchors at a time."""

    anchors: Float[Tensor, "anchor dim"]
    index: Tensor
    candidates: Candidates
    tile: int = TILE
    score: Callable[[Tensor, Tensor], Float[Tensor, "anchor candidate"]] = inner
    asked: bool = True  # otherwise only log-sum-exp is streamed, for speed, and the rest reads one matrix

    def offered(self) -> int:
        return len(self.candidates.index)

    def _tile(self, anchors: Tensor, index: Tensor, keys: Tensor) -> Dense:
        return Dense(self.score(anchors, keys), self.candidates.negative_mask(index))

    @cached_property
    def _whole(self) -> Dense:
        return self._tile(self.anchors, self.index, self.candidates.embedding)

    @cached_property
    def _own(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the candidates that are the anchors themselves."""
        return matches(self.index, self.candidates.index)

    def _reduce(self, reduction: Callable[..., Tensor], *per_anchor: Tensor) -> Float[Tensor, "anchor"]:
        if not self.asked:
            return reduction(self._whole, *per_anchor)

        def tiled(keys: Tensor, anchors: Tensor, index: Tensor, *columns: Tensor) -> Tensor:
            return reduction(self._tile(anchors, index, keys), *columns)

        blocks = zip(*(t.split(self.tile) for t in (self.anchors, self.index, *per_anchor)), strict=True)
        keys = self.candidates.embedding
        reduced = [
            checkpoint(tiled, keys, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks
        ]
        return torch.cat(reduced)

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        keys, held = self.candidates.embedding, self.candidates.index
        # in half precision torch's own log-sum-exp keeps more digits than exponentials written back to a tile
        precise = keys.dtype == self.anchors.dtype and keys.dtype.itemsize >= 4
        if self.score is not inner or len(keys) == 0 or not precise:
            return self._reduce(Dense.logsumexp)
        bias = torch.zeros_like(held, dtype=keys.dtype).masked_fill_(held == EMPTY, -torch.inf)
        return InnerLogSumExp.apply(self.anchors, keys, bias, *self._own, self.tile)

    def count(self) -> Float[Tensor, "anchor"]:
        own = torch.bincount(self._own[0], minlength=len(self.index))
        precise = torch.promote_types(self.anchors.dtype, torch.float32)
        return ((self.candidates.index != EMPTY).sum() - own).to(precise)

    def mean_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        return self._reduce(lambda tile, *columns: tile.mean_of(function, *columns), *per_anchor)

    def hardest(self) -> Float[Tensor, "anchor"]:
        return self._reduce(Dense.hardest)

    def matrix(self) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
        return self._whole.matrix()


@dataclass(frozen=True)
class Scores:
    """All that a bound may see: log-scores f(u, v) of positives, and of negatives through reductions."""

    positive: Float[Tensor, "anchor positive"]
    negative: Negatives

    def __post_init__(self) -> None:
        object.__setattr__(self, "positive", at_least_float32(self.positive))

    def score_function_term(
        self, value: Tensor, climb: Callable[..., Tensor], *arguments: Any
    ) -> Tensor | float:
        """What is added to a value for the sake of its gradient alone; scores that were drawn have some."""
        return 0.0

    @staticmethod
    def of(positive: Tensor, negative: Tensor, kept: Tensor | None = None) -> "Scores":
        """Scores from plain tensors of log-scores: positive (n,) or (n, p); negative (n, k); kept mask (n, k)."""
        if positive.ndim == 1:
            positive = positive[:, None]
        if positive.ndim != 2 or negative.ndim != 2 or len(positive) != len(negative):
            raise UserError(
                f"scores need positive (n,) or (n, p) and negative (n, k) with one n; "
                f"they were {tuple(positive.shape)} and {tuple(negative.shape)}"
            )
        if kept is not None and (kept.shape != negative.shape or kept.dtype != torch.bool):
            raise UserError(
                f"kept must be a boolean mask of negative's shape {tuple(negative.shape)}; "
                f"it was {kept.dtype} of {tuple(kept.shape)}"
            )
        return Scores(positive, Dense(negative, kept))


def paired_scores(f: Float[Tensor, "anchor key"]) -> Scores:
    """Scores from a matrix of them: row i's positive is column i, all other columns are its negatives."""
    return Scores.of(f.diagonal(), f, ~torch.eye(*f.shape, dtype=torch.bool, device=f.device))


def _in_batch(
    anchors: Tensor, keys: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Candidates]:
    if anchors.ndim != 2 or anchors.shape != keys.shape:
        raise UserError(
            f"anchors and keys must both be (n, dim); they were {tuple(anchors.shape)} and {tuple(keys.shape)}"
        )
    # scaling the anchors once scales every score, and lets a learned temperature have its gradient
    anchors, keys = F.normalize(anchors, dim=1) / temperature, F.normalize(keys, dim=1)
    index = torch.arange(len(anchors), device=anchors.device)
    return anchors, (anchors * keys).sum(dim=1, keepdim=True), index, Candidates(keys, index)


def dense_scores(anchors: Tensor, keys: Tensor, temperature: float | Tensor = 1.0) -> Scores:
    """In-batch cosine scores: row i's positive is key i, the others its negatives."""
    anchors, positive, index, candidates = _in_batch(anchors, keys, temperature)
    return Scores(positive, Dense(anchors @ candidates.embedding.T, candidates.negative_mask(index)))


def streamed_scores(
    anchors: Tensor, keys: Tensor, temperature: float | Tensor = 1.0, tile: int = TILE
) -> Scores:
    """The same scores as `dense_scores`, never building n x n."""
    anchors, positive, index, candidates = _in_batch(anchors, keys, temperature)
    return Scores(positive, Streamed(anchors, index, candidates, tile))
