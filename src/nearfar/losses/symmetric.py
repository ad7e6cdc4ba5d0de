"""log sum of e^(z_i . z_j) over all j but i, of a set with itself: each score is made once for i and j.

The matrix of scores is symmetric, so blocks above the diagonal say everything: a block's row sums belong to i, its column sums to j. With g
from above and s the sums, the gradient at z_i is the sum over j of e^(z_i . z_j) (g_i / s_i + g_j / s_j) z_j: one exponential and two products
for each pair of blocks. Two of the four products that a log-sum-exp and its gradient take otherwise are not needed.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

SIDE = 512  # of a block for each thread: a megabyte in float32


class SymmetricLogSumExp(torch.autograd.Function):
    """`apply(rows, most)`; no score is above `most`, which is at most 40: e^(score - most) is then a number that float32 has."""

    @staticmethod
    def forward(ctx: Any, rows: Float[Tensor, "row dim"], most: float) -> Float[Tensor, "row"]:
        sums = rows.new_zeros(len(rows))
        for one, other, powers in _blocks(rows, most):
            sums[one] += powers.sum(dim=1)
            if one != other:
                sums[other] += powers.sum(dim=0)
        ctx.save_for_backward(rows, sums)
        ctx.most = most
        return sums.log().add_(most)

    @staticmethod
    def backward(ctx: Any, above: Float[Tensor, "row"]) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # create_graph
            raise RuntimeError("this log-sum-exp has no second derivative; score rows with nf.dense_scores")
        rows, sums = ctx.saved_tensors
        share, gradient = above / sums, torch.zeros_like(rows)
        for one, other, powers in _blocks(rows, ctx.most):
            powers.mul_(share[one, None] + share[other])
            gradient[one].addmm_(powers, rows[other])
            if one != other:
                gradient[other].addmm_(powers.T, rows[one])
        return gradient, None


def _blocks(rows: Tensor, most: float) -> Iterator[tuple[slice, slice, Tensor]]:
    """e^(score - most) of the blocks on and above the diagonal, which is 0, in one buffer that the next block takes over."""
    side = min(SIDE, len(rows))
    wide = side * torch.get_num_threads()
    buffer = rows.new_empty(side * wide)
    for start in range(0, len(rows), side):
        own = rows[start : start + side]
        place = start
        while place < len(rows):
            # the block on the diagonal is a square, those beside it are as wide as all threads' caches
            end = min(start + side if place == start else place + wide, len(rows))
            other = rows[place:end]
            scores = buffer[: len(own) * len(other)].view(len(own), len(other))
            torch.mm(own, other.T, out=scores)
            scores.sub_(most).exp_()
            if place == start:
                scores.fill_diagonal_(0.0)
            yield slice(start, start + len(own)), slice(place, end), scores
            place = end
