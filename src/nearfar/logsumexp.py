"""log sum e^(u . v) over the candidates that count, a tile of anchors at a time, its gradient written out.

Any critic can be streamed through activation checkpointing (see `scores`); most are inner products, and for these the
backward pass is known: with p the softmax over an anchor's candidates and g what comes from above, the anchor's gradient
is g (p V) and a candidate's is the sum of g p u. So a tile is scored again, turned into p where it lies, and multiplied
twice: no graph, no mask of its size, one buffer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def inner(anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "candidate dim"]) -> Tensor:
    return anchors @ keys.T


def matches(
    left: Int[Tensor, "anchor"], right: Int[Tensor, "candidate"]
) -> tuple[Int[Tensor, "match"], Int[Tensor, "match"]]:
    """Rows and columns where left[row] == right[column], by rising row, without comparing all with all."""
    ordered, order = left.sort()
    first, after = (torch.searchsorted(ordered, right.contiguous(), right=side) for side in (False, True))
    counts = after - first
    columns = torch.arange(len(right), device=right.device).repeat_interleave(counts)
    place = torch.arange(len(columns), device=right.device) - (counts.cumsum(0) - counts)[columns]
    rows, by_row = order[first[columns] + place].sort()
    return rows, columns[by_row]


Kept = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # (scores, which are offered, places of the anchors) -> which count


class InnerLogSumExp(torch.autograd.Function):
    """`apply(anchors, keys, bias, rows, columns, tile, kept)`: log-sum-exp and how many count. bias is added to every anchor's scores
    (-inf: nobody counts that candidate), the pairs (rows, columns), by rising row, do not count, and of the others those that
    `kept` says (None: all); it is asked again in the backward pass and has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        keys: Tensor,
        bias: Tensor,
        rows: Tensor,
        columns: Tensor,
        tile: int,
        kept: Kept | None = None,
    ) -> tuple[Float[Tensor, "anchor"], Float[Tensor, "anchor"]]:
        found, count = anchors.new_empty(len(anchors)), anchors.new_empty(len(anchors))
        ctx.tile, ctx.ends, ctx.kept = tile, _ends(rows, len(anchors), tile), kept
        for start, scores, _ in _tiles(anchors, keys, bias, rows, columns, tile, ctx.ends, kept):
            part = slice(start, start + tile)
            if kept is not None:
                count[part] = len(keys) - scores.isneginf().sum(dim=1)
            # where nobody counts the highest is -inf, and -inf less itself would be no number
            top = scores.amax(dim=1).nan_to_num_(neginf=0.0)
            found[part] = scores.sub_(top[:, None]).exp_().sum(dim=1).log_().add_(top)
        ctx.save_for_backward(anchors, keys, bias, rows, columns, found)
        ctx.mark_non_differentiable(count)
        return found, count

    @staticmethod
    def backward(ctx: Any, above: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise RuntimeError(
                "streamed inner products have no second derivative; score them with nf.dense_scores"
            )
        anchors, keys, bias, rows, columns, found = ctx.saved_tensors
        level = found.nan_to_num(neginf=0.0)
        to_anchors = torch.empty_like(anchors) if ctx.needs_input_grad[0] else None
        to_keys = torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        for start, scores, block in _tiles(anchors, keys, bias, rows, columns, ctx.tile, ctx.ends, ctx.kept):
            part = slice(start, start + ctx.tile)
            shares = scores.sub_(level[part, None]).exp_().mul_(above[part, None])
            if to_anchors is not None:
                torch.mm(shares, keys, out=to_anchors[part])
            if to_keys is not None:
                to_keys.addmm_(shares.T, block)
        return to_anchors, to_keys, None, None, None, None, None


def _ends(rows: Tensor, anchors: int, tile: int) -> list[int]:
    """How many of the left-out pairs lie before the end of each tile."""
    starts = torch.arange(0, anchors, tile, device=rows.device)
    return torch.searchsorted(rows, starts + tile).tolist()


def _tiles(
    anchors: Tensor,
    keys: Tensor,
    bias: Tensor,
    rows: Tensor,
    columns: Tensor,
    tile: int,
    ends: list[int],
    kept: Kept | None,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each tile's first row, its scores in one buffer that the next tile takes over, and its anchors."""
    buffer = keys.new_empty(min(tile, len(anchors)), len(keys))
    before = 0
    for start, end in zip(range(0, len(anchors), tile), ends, strict=True):
        block = anchors[start : start + tile]
        with torch.autocast(anchors.device.type, enabled=False):
            scores = torch.addmm(bias, block, keys.T, out=buffer[: len(block)])
        scores[rows[before:end] - start, columns[before:end]] = -torch.inf
        before = end
        if kept is not None:
            places = torch.arange(start, start + len(block), device=scores.device)
            scores.masked_fill_(~kept(scores, ~scores.isneginf(), places), -torch.inf)
        yield start, scores, block
