"""Scores of positives and negatives: held whole, or computed tile by tile.

    dense_scores(anchors, keys)      builds the n x n matrix
    streamed_scores(anchors, keys)   never does; same numbers, same gradients, memory of one tile

Every reduction of `Streamed` runs over blocks of anchors under activation checkpointing: a tile's scores are
thrown away after the forward pass and computed again in the backward pass, so any critic can be streamed. The
one that counts most, log-sum-exp of inner products, has its backward pass written out
(`nearfar.core.kernels`): the same numbers in half the time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nearfar.core.kernels import EMPTY, LogSumExp, checkpoint_tile, count_others, inner
from nearfar.errors import UserError

TILE = 256  # anchors per tile: small enough for a tile to stay in cache, large enough for a good matmul
# scores that are held at once: on a CPU as many as its cache takes, on a GPU as many as keep it busy. Beyond
# this many, log-sum-exp over tiles takes half the time of one matrix (benchmarks/losses.py)
MAX_SCORES_CPU, MAX_SCORES_GPU = 2**21, 2**25
MAX_MATRIX = 2**28  # scores, a gigabyte in float32: beyond this no matrix of all scores is built
MIN_TILE = 32  # anchors: with fewer to a tile, reading the candidates again would cost more
GRAPH = 4  # copies of a tile that the graph of a rule with a gradient holds, about
UNKNOWN = -1  # a candidate whose instance is not known: never the anchor itself
POSITION_TOLERANCE = 1e-3  # of scores, relative to an anchor's largest: rounding differs by far less


def at_least_float32(values: Tensor) -> Tensor:
    """float32 at least: half precision cannot count to 700, and a ceiling must be exact."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


@dataclass(frozen=True)
class Candidates:
    """Things an anchor may be contrasted with, and which instance each of them is."""

    embedding: Float[Tensor, "candidate dim"]
    index: Int[Tensor, "candidate"]

    def negative_mask(self, anchor: Int[Tensor, "anchor"]) -> Bool[Tensor, "anchor candidate"]:
        """Which candidates are not the anchor itself: one comparison for batch, queue and bank alike."""
        return (self.index[None, :] != anchor[:, None]) & (self.index[None, :] != EMPTY)


@dataclass(frozen=True)
class Membership:
    """Which candidates of some anchors a selection keeps.

    `keep`: the negatives; `log_weight`: of them, the weights have mean one over an anchor's negatives.
    `close`: candidates that join the anchor's positives instead. `log_chance`: where membership is random,
    the log of the chance of each anchor's draw.
    """

    keep: Bool[Tensor, "anchor candidate"]
    close: Bool[Tensor, "anchor candidate"] | None = None
    log_weight: Float[Tensor, "anchor candidate"] | None = None
    log_chance: Float[Tensor, "anchor"] | None = None


PerAnchor = Float[Tensor, "anchor"]
Elementwise = Callable[..., Tensor]  # of scores and of columns next to them
ScoresAndMask = tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]
# (scores, which are offered, positions of the anchors) -> membership, row by row for use in tiles
Rule = Callable[[Tensor, Tensor, Tensor], Membership]


class Negatives(ABC):
    """Candidates of each anchor that count, seen only through reductions over them.

    A subclass that cannot compute a reduction leaves it out; a call then raises its `refusal`.
    """

    def refusal(self) -> Exception:
        """The error of a reduction that is left out."""
        return NotImplementedError(type(self).__name__)

    @abstractmethod
    def logsumexp(self) -> PerAnchor:
        """log of the (weighted) sum of e^score; -inf where an anchor has none."""

    @abstractmethod
    def count(self) -> PerAnchor: ...

    @abstractmethod
    def offered(self) -> int:
        """Candidates there are places for, whether they are kept or not, or not there yet."""

    def sum_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        """(Weighted) sum of an elementwise function of the scores; 0 where an anchor has none.

        The function also reads the `per_anchor` tensors, each as a column next to the scores of that anchor:
        `sum_of(lambda score, positive: relu(score - positive), positive)`. Gradients reach the columns too.
        """
        raise self.refusal()

    def mean_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        """The same sum over the number of them."""
        return self.sum_of(function, *per_anchor) / self.count().clamp_min(1.0)

    def hardest(self) -> PerAnchor:
        """The highest score; -inf where an anchor has none."""
        raise self.refusal()

    def divide(
        self, rule: Rule, *, close: bool = False, random: bool = False, unweighted: bool = False
    ) -> "Divided":
        """The candidates after a rule. `close`: the rule returns close candidates too; `random`: it draws,
        and returns the log of the chance; `unweighted`: it returns no weights and has no gradient."""
        raise self.refusal()

    def matrix(self) -> ScoresAndMask:
        """Scores and which are kept, built in full: for looking at them, never for bounds."""
        raise self.refusal()


@dataclass(frozen=True)
class Divided:
    """Candidates after a rule: negatives, those of the positive's side, the log chance of the draw."""

    negatives: Negatives
    close: Negatives | None = None
    log_chance: Float[Tensor, "anchor"] | None = None


@dataclass(frozen=True)
class Dense(Negatives):
    """Negatives as a matrix in float32 at least, a mask of those that count (None: all), log-weights."""

    values: Float[Tensor, "anchor candidate"]
    mask: Bool[Tensor, "anchor candidate"] | None = None
    log_weight: Float[Tensor, "anchor candidate"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", at_least_float32(self.values))

    def offered(self) -> int:
        return self.values.shape[1]

    def logsumexp(self) -> PerAnchor:
        values = self.values if self.log_weight is None else self.values + self.log_weight
        return self._masked(values).logsumexp(dim=1)

    def _masked(self, values: Tensor) -> Tensor:
        return values if self.mask is None else values.masked_fill(~self.mask, -torch.inf)

    def count(self) -> PerAnchor:
        if self.mask is None:
            return self.values.new_full((len(self.values),), self.values.shape[1])
        return self.mask.sum(dim=1).to(self.values.dtype)

    def sum_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        columns = [column[:, None] for column in per_anchor]
        # the inner zero keeps f's gradient finite where the outer one discards its value
        safe = self.values if self.mask is None else self.values.masked_fill(~self.mask, 0.0)
        values = function(safe, *columns)
        if self.log_weight is not None:
            values = values * self.log_weight.exp()
        if self.mask is not None:
            values = values.masked_fill(~self.mask, 0.0)
        return values.sum(dim=1)

    def hardest(self) -> PerAnchor:
        if self.values.shape[1] == 0:
            return self.values.new_full((len(self.values),), -torch.inf)
        return self._masked(self.values).amax(dim=1)

    def divide(
        self, rule: Rule, *, close: bool = False, random: bool = False, unweighted: bool = False
    ) -> Divided:
        values, offered = self.matrix()
        membership = rule(values, offered, torch.arange(len(values), device=values.device))
        negatives = Dense(values, membership.keep, _sum(self.log_weight, membership.log_weight))
        close_negatives = Dense(values, membership.close, self.log_weight) if close else None
        return Divided(negatives, close_negatives, membership.log_chance if random else None)

    def matrix(self) -> ScoresAndMask:
        mask = self.mask if self.mask is not None else torch.ones_like(self.values, dtype=torch.bool)
        return self.values, mask


def _at(rule: Rule, rows: Tensor) -> Rule:
    """The rule for anchors at these positions, where it would be called for the first ones."""
    return lambda values, offered, _: rule(values, offered, rows)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


@dataclass(frozen=True)
class TiledRule:
    """A selection rule applied per tile: to the negatives, or to those `close` to the anchor."""

    rule: Rule
    close: bool
    unweighted: bool


@dataclass(frozen=True)
class Streamed(Negatives):
    """Negatives that are scored when a reduction needs them, `tile` anchors at a time. The rules of
    selections are applied in each tile, and again in the backward pass, so that nothing of the size anchors x
    candidates is ever stored."""

    anchors: Float[Tensor, "anchor dim"]
    index: Tensor
    candidates: Candidates
    tile: int = TILE
    score: Callable[[Tensor, Tensor], Float[Tensor, "anchor candidate"]] = inner
    # False: only log-sum-exp is tiled, for speed; other reductions and rules read one matrix
    all_tiled: bool = True
    rules: tuple["TiledRule", ...] = ()

    def offered(self) -> int:
        return len(self.candidates.index)

    def _tile(self, anchors: Tensor, index: Tensor, keys: Tensor, rows: Tensor) -> Dense:
        negatives: Negatives = Dense(self.score(anchors, keys), self.candidates.negative_mask(index))
        for one in self.rules:
            divided = negatives.divide(_at(one.rule, rows), close=one.close)
            negatives = divided.negatives if divided.close is None else divided.close
        assert isinstance(negatives, Dense)
        return negatives

    @cached_property
    def _rows(self) -> Tensor:
        return torch.arange(len(self.anchors), device=self.anchors.device)

    @cached_property
    def _dense(self) -> Dense:
        return self._tile(self.anchors, self.index, self.candidates.embedding, self._rows)

    def _reduce(self, reduction: Callable[..., Tensor], *per_anchor: Tensor) -> Float[Tensor, "... anchor"]:
        if not self.all_tiled:
            return reduction(self._dense, *per_anchor)

        def tiled(keys: Tensor, anchors: Tensor, index: Tensor, rows: Tensor, *columns: Tensor) -> Tensor:
            return reduction(self._tile(anchors, index, keys, rows), *columns)

        per_row = (self.anchors, self.index, self._rows, *per_anchor)
        blocks = zip(*(t.split(self.tile) for t in per_row), strict=True)
        keys = self.candidates.embedding
        return torch.cat([checkpoint_tile(tiled, keys, *block) for block in blocks], dim=-1)

    @cached_property
    def _sums(self) -> tuple[Float[Tensor, "anchor"], Float[Tensor, "anchor"]]:
        """Log-sum-exp and count in one pass, because ranking candidates twice would cost twice."""
        keys = self.candidates.embedding
        # in half precision torch's own log-sum-exp keeps more digits than exponentials written back to a tile
        precise = keys.dtype == self.anchors.dtype and keys.dtype.itemsize >= 4
        if self.score is inner and len(keys) and precise and all(one.unweighted for one in self.rules):
            keep = self._keep if self.rules else None
            # the mean of candidates without gradient is the gradient: no second pass
            with_mean = self.anchors.requires_grad and not keys.requires_grad and keep is None
            with_mean = with_mean and torch.is_grad_enabled()
            kernel = LogSumExp(self.index, self.candidates.index, self.tile, keep, with_mean)
            value, count, _ = kernel(self.anchors, keys)
            return value, count
        sums = self._reduce(lambda tile: torch.stack([tile.logsumexp(), tile.count()]))
        return sums[0], sums[1].detach()

    @torch.no_grad()
    def _keep(self, values: Tensor, offered: Tensor, rows: Tensor) -> Tensor:
        """Who counts after all rules."""
        for one in self.rules:
            membership = one.rule(values, offered, rows)
            offered = membership.keep if not one.close or membership.close is None else membership.close
        return offered

    def logsumexp(self) -> PerAnchor:
        return self._sums[0]

    def count(self) -> PerAnchor:
        if self.rules:
            return self._sums[1]
        precise = torch.promote_types(self.anchors.dtype, torch.float32)
        return count_others(self.index, self.candidates.index).to(precise)

    def sum_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        return self._reduce(lambda tile, *columns: tile.sum_of(function, *columns), *per_anchor)

    def mean_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        return self._reduce(lambda tile, *columns: tile.mean_of(function, *columns), *per_anchor)

    def hardest(self) -> PerAnchor:
        return self._reduce(Dense.hardest)

    def divide(
        self, rule: Rule, *, close: bool = False, random: bool = False, unweighted: bool = False
    ) -> Divided:
        if not self.all_tiled:  # the matrix fits, and calling a rule once is cheaper
            return self._dense.divide(rule, close=close, random=random)
        chance = None
        if random:

            def chances(tile: Dense, rows: Tensor) -> Tensor:
                log_chance = rule(*tile.matrix(), rows).log_chance
                assert log_chance is not None
                return log_chance

            chance = replace(self, tile=max(1, self.tile // GRAPH))._reduce(chances, self._rows)
        # the graph of a rule with a gradient holds a tile several times over
        tile = self.tile if unweighted else max(1, self.tile // GRAPH)
        negatives, close_negatives = (
            replace(self, tile=tile, rules=(*self.rules, TiledRule(rule, part, unweighted)))
            for part in (False, True)
        )
        return Divided(negatives, close_negatives if close else None, chance)

    def matrix(self) -> ScoresAndMask:
        return self._dense.matrix()


@dataclass(frozen=True)
class Scores:
    """All that a bound may see: log-scores f(u, v) of positives, and of negatives through reductions.

    `more_positives`: further positives among the candidates (those with the anchor's label), as many as there
    are for each anchor, seen through reductions like negatives. `lowest`: the least score there can be, where
    the critic has one.
    """

    positive: Float[Tensor, "anchor positive"]
    negative: Negatives
    more_positives: Negatives | None = None
    lowest: float | Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "positive", at_least_float32(self.positive))

    def over_positives(self, function: Elementwise, *per_anchor: PerAnchor) -> Float[Tensor, ""]:
        """Mean over anchors of the mean over their positives of an elementwise function, which may read
        columns as in `mean_of`. Anchors without positives count nothing."""
        values = function(self.positive, *(column[:, None] for column in per_anchor))
        if self.more_positives is None:
            return values.mean()
        count = self.positive_count()
        total = values.sum(dim=1) + self.more_positives.sum_of(function, *per_anchor)
        return (total / count.clamp_min(1)).sum() / (count > 0).sum().clamp_min(1)

    def positive_count(self) -> PerAnchor:
        count = self.positive.new_full((len(self.positive),), self.positive.shape[1])
        return count if self.more_positives is None else count + self.more_positives.count()

    def positive_logsumexp(self) -> PerAnchor:
        value = self.positive.logsumexp(dim=1)
        return (
            value if self.more_positives is None else torch.logaddexp(value, self.more_positives.logsumexp())
        )

    def score_function_term(
        self, value: Tensor, bound: Callable[..., Tensor], *arguments: Any
    ) -> Tensor | float:
        """What is added to a value for the sake of its gradient alone; scores that were drawn have some."""
        return 0.0

    @staticmethod
    def of(
        positive: Tensor, negative: Tensor, kept: Tensor | None = None, positive_kept: Tensor | None = None
    ) -> "Scores":
        """Scores from plain tensors of log-scores: positive (n,) or (n, p) and which of them are there;
        negative (n, k) and which of them are kept."""
        if positive.ndim == 1:
            positive = positive[:, None]
        if positive.ndim != 2 or negative.ndim != 2 or len(positive) != len(negative):
            raise UserError(
                f"scores need positive (n,) or (n, p) and negative (n, k) with one n; "
                f"they were {tuple(positive.shape)} and {tuple(negative.shape)}"
            )
        for name, mask, scores in (("kept", kept, negative), ("positive_kept", positive_kept, positive)):
            if mask is not None and (mask.shape != scores.shape or mask.dtype != torch.bool):
                raise UserError(
                    f"{name} must be a boolean mask of shape {tuple(scores.shape)}; it was {mask.dtype} of "
                    f"{tuple(mask.shape)}"
                )
        if positive_kept is None:
            return Scores(positive, Dense(negative, kept))
        return Scores(positive[:, :0], Dense(negative, kept), Dense(positive, positive_kept))


def max_scores(device: torch.device) -> int:
    """How many scores are held at once."""
    return MAX_SCORES_CPU if device.type == "cpu" else MAX_SCORES_GPU


def tile_size(anchors: Tensor, keys: Tensor) -> int:
    """How many anchors are scored at once with that many keys."""
    return max(MIN_TILE, max_scores(anchors.device) // max(1, len(keys)))


def inner_product_negatives(
    anchors: Float[Tensor, "anchor dim"],
    index: Int[Tensor, "anchor"],
    candidates: Candidates,
    chunk: int | None = None,
    *,
    all_tiled: bool = False,
) -> Negatives:
    """Inner products with candidates of another identity. `chunk`: in tiles of that many anchors, never as
    one matrix. Without it the size decides, on every device: one matrix if it is small; log-sum-exp in tiles
    if that is faster; all reductions in tiles, with the memory of a tile, if the matrix would be large or
    with `all_tiled`."""
    if chunk is not None:
        return Streamed(anchors, index, candidates, chunk)
    keys = candidates.embedding
    size = len(anchors) * len(keys)
    if size <= max_scores(anchors.device):
        return Dense(inner(anchors, keys), candidates.negative_mask(index))
    return Streamed(
        anchors, index, candidates, tile_size(anchors, keys), all_tiled=all_tiled or size > MAX_MATRIX
    )


def paired_scores(f: Float[Tensor, "anchor key"]) -> Scores:
    """Scores from a matrix of them: row i's positive is column i, all other columns are its negatives."""
    return Scores.of(f.diagonal(), f, ~torch.eye(*f.shape, dtype=torch.bool, device=f.device))


POSITIONS = "the critic's score of a pair depends on where its rows stand in the batch"


def knows_positions(
    cross: Callable[[Tensor, Tensor], Tensor], anchors: Float[Tensor, "n dim"], keys: Float[Tensor, "n width"]
) -> bool:
    """Whether scores depend on where rows stand: cross(u, v[order]) is not cross(u, v)[:, order].

    Such a critic knows which key belongs to an anchor without reading either. Tried on one random order.
    """
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0)).to(keys.device)
    if len(order) > 1 and bool((order == order.sort().values).all()):
        order = order.flip(0)
    with torch.no_grad():
        expected, moved = cross(anchors, keys)[:, order], cross(anchors, keys[order])
    tolerance = POSITION_TOLERANCE * (1 + expected.abs().amax(dim=1, keepdim=True))
    return bool(((moved - expected).abs() > tolerance).any())


def _in_batch(
    anchors: Tensor, keys: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Candidates]:
    if anchors.ndim != 2 or anchors.shape != keys.shape:
        raise UserError(
            f"anchors and keys must both be (n, dim); they were {tuple(anchors.shape)} and "
            f"{tuple(keys.shape)}"
        )
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise UserError(f"temperature was {temperature:g}; it must be above 0")
    # scaling the anchors once scales every score, and lets a learned temperature have its gradient
    anchors, keys = F.normalize(anchors, dim=1) / temperature, F.normalize(keys, dim=1)
    index = torch.arange(len(anchors), device=anchors.device)
    return anchors, (anchors * keys).sum(dim=1, keepdim=True), index, Candidates(keys, index)


def dense_scores(anchors: Tensor, keys: Tensor, temperature: float | Tensor = 1.0) -> Scores:
    """In-batch cosine scores: row i's positive is key i, the others its negatives."""
    anchors, positive, index, candidates = _in_batch(anchors, keys, temperature)
    negative = Dense(anchors @ candidates.embedding.T, candidates.negative_mask(index))
    return Scores(positive, negative, lowest=-1.0 / temperature)


def streamed_scores(
    anchors: Tensor, keys: Tensor, temperature: float | Tensor = 1.0, tile: int = TILE
) -> Scores:
    """The same scores as `dense_scores`, never building n x n."""
    anchors, positive, index, candidates = _in_batch(anchors, keys, temperature)
    return Scores(positive, Streamed(anchors, index, candidates, tile), lowest=-1.0 / temperature)
