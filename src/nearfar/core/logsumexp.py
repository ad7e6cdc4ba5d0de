"""log sum e^(u . v) over the candidates that count, a part at a time, its gradient written out.

Any critic can be streamed through activation checkpointing (see `scores`); most are inner products, and for these the
backward pass is known: with p the softmax over an anchor's candidates and g what comes from above, the anchor's gradient
is g (p V) and a candidate's is the sum of g p u. So a part is scored again, turned into p where it lies, and multiplied
twice: no graph, no mask of its size, one buffer.

Where all candidates count, parts are blocks of anchors and candidates that stay in a core's cache, and sums over blocks are kept with
their running maximum (Milakov and Gimelshein 2018). Candidates without gradient (a queue, a bank) need no second pass: p V is summed
up beside the sum itself. Where a selection looks at all candidates of an anchor, a part is a tile of anchors.
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


HIGH, BLOCK = (
    256,
    2**17,
)  # anchors, and scores, of a block, for each thread: half a megabyte in float32, which a core's cache holds

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
        count = anchors.new_empty(len(anchors))
        ctx.tile, ctx.kept, mean = tile, kept, anchors.new_empty(0)
        if kept is None:
            known = not ctx.needs_input_grad[1] and ctx.needs_input_grad[0]
            found, mean = _summed(anchors, keys, bias, rows, columns, tile, known)
        else:
            found = _kept_sum(anchors, keys, bias, rows, columns, tile, kept, count)
        ctx.save_for_backward(anchors, keys, bias, rows, columns, found, mean)
        ctx.mark_non_differentiable(count)
        return found, count

    @staticmethod
    def backward(ctx: Any, above: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise RuntimeError(
                "streamed inner products have no second derivative; score them with nf.dense_scores"
            )
        anchors, keys, bias, rows, columns, found, mean = ctx.saved_tensors
        nothing = (None,) * 5
        if len(mean):
            return mean * above[:, None], None, *nothing
        level = found.nan_to_num(neginf=0.0)
        to_anchors = torch.zeros_like(anchors) if ctx.needs_input_grad[0] else None
        to_keys = torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        pairs = (rows, columns, ctx.tile)
        parts = (
            _blocks(anchors, keys, bias, *pairs)
            if ctx.kept is None
            else _tiles(anchors, keys, bias, *pairs, ctx.kept)
        )
        for one, other, scores in parts:
            shares = scores.sub_(level[one, None]).exp_().mul_(above[one, None])
            if to_anchors is not None:
                to_anchors[one].addmm_(shares, keys[other])
            if to_keys is not None:
                to_keys[other].addmm_(shares.T, anchors[one])
        return to_anchors, to_keys, *nothing


def _summed(
    anchors: Tensor, keys: Tensor, bias: Tensor, rows: Tensor, columns: Tensor, tile: int, known: bool
) -> tuple[Float[Tensor, "anchor"], Float[Tensor, "anchor dim"]]:
    """log-sum-exp over all candidates, block by block, and, if `known`, their mean weighted by e^score."""
    top = anchors.new_full((len(anchors),), -torch.inf)
    total = torch.zeros_like(top)
    mean = torch.zeros_like(anchors) if known else anchors.new_empty(0)
    for one, other, scores in _blocks(anchors, keys, bias, rows, columns, tile):
        highest = torch.maximum(top[one], scores.amax(dim=1))
        # where nobody counts the highest is -inf, and -inf less itself would be no number
        level = highest.nan_to_num(neginf=0.0)
        before = (top[one] - level).exp_()
        scores.sub_(level[:, None]).exp_()
        total[one].mul_(before).add_(scores.sum(dim=1))
        if known:
            mean[one].mul_(before[:, None]).addmm_(scores, keys[other])
        top[one] = highest
    if known:
        mean.div_(total.clamp_min(torch.finfo(total.dtype).tiny)[:, None])
    return total.log_().add_(top.nan_to_num_(neginf=0.0)), mean


def _kept_sum(
    anchors: Tensor,
    keys: Tensor,
    bias: Tensor,
    rows: Tensor,
    columns: Tensor,
    tile: int,
    kept: Kept,
    count: Tensor,
) -> Float[Tensor, "anchor"]:
    """log-sum-exp over the candidates that a selection keeps; how many they are is written to `count`."""
    found = anchors.new_empty(len(anchors))
    for part, _, scores in _tiles(anchors, keys, bias, rows, columns, tile, kept):
        count[part] = len(keys) - scores.isneginf().sum(dim=1)
        top = scores.amax(dim=1).nan_to_num_(neginf=0.0)
        found[part] = scores.sub_(top[:, None]).exp_().sum(dim=1).log_().add_(top)
    return found


Part = tuple[slice, slice, Tensor]  # of the anchors, of the candidates, and their scores


def _blocks(
    anchors: Tensor, keys: Tensor, bias: Tensor, rows: Tensor, columns: Tensor, tile: int
) -> Iterator[Part]:
    """Scores of blocks of anchors and candidates, in one buffer that the next block takes over."""
    cpu = anchors.device.type == "cpu"  # where no tile is as small as what the cache holds
    high = max(1, min(HIGH if cpu else tile, len(anchors)))
    wide = max(1, BLOCK * torch.get_num_threads() // high) if cpu else len(keys)
    buffer = keys.new_empty(high * min(wide, len(keys)))
    across = max(1, -(-len(keys) // wide))
    # the left-out pairs, sorted by the block they are in
    block = rows.div(high, rounding_mode="floor") * across + columns.div(wide, rounding_mode="floor")
    block, order = block.sort()
    rows, columns = rows[order], columns[order]
    count = -(-len(anchors) // high) * across
    ends = torch.searchsorted(block, torch.arange(count, device=block.device), right=True).tolist()
    before = number = 0
    for start in range(0, len(anchors), high):
        own = anchors[start : start + high]
        for left in range(0, len(keys), wide):
            other = keys[left : left + wide]
            scores = buffer[: len(own) * len(other)].view(len(own), len(other))
            with torch.autocast(anchors.device.type, enabled=False):
                torch.addmm(bias[left : left + wide], own, other.T, out=scores)
            end = ends[number]
            if end > before:
                scores[rows[before:end] - start, columns[before:end] - left] = -torch.inf
            before, number = end, number + 1
            yield slice(start, start + len(own)), slice(left, left + len(other)), scores


def _tiles(
    anchors: Tensor, keys: Tensor, bias: Tensor, rows: Tensor, columns: Tensor, tile: int, kept: Kept
) -> Iterator[Part]:
    """Scores of a tile of anchors with all candidates, of which those that do not count are -inf, in one buffer."""
    buffer = keys.new_empty(min(tile, len(anchors)), len(keys))
    starts = torch.arange(0, len(anchors), tile, device=rows.device)
    before = 0
    for start, end in zip(starts.tolist(), torch.searchsorted(rows, starts + tile).tolist(), strict=True):
        block = anchors[start : start + tile]
        with torch.autocast(anchors.device.type, enabled=False):
            scores = torch.addmm(bias, block, keys.T, out=buffer[: len(block)])
        scores[rows[before:end] - start, columns[before:end]] = -torch.inf
        before = end
        places = torch.arange(start, start + len(block), device=scores.device)
        scores.masked_fill_(~kept(scores, ~scores.isneginf(), places), -torch.inf)
        yield slice(start, start + len(block)), slice(0, len(keys)), scores
