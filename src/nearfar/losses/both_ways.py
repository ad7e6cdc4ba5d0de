"""log sum_j e^(u_i . v_j) for every i and log sum_i e^(u_i . v_j) for every j, each tile of scores made once for both.

The derivative of a log-sum-exp is a softmax. So a tile is scored again in the backward pass, and the softmax over its rows
and the one over its columns, each with its own factor from above, are added before they are multiplied.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class BothLogSumExp(torch.autograd.Function):
    """`apply(anchors, keys, tile)`: of the rows and of the columns of anchors @ keys.T."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, keys: Tensor, tile: int
    ) -> tuple[Float[Tensor, "anchor"], Float[Tensor, "key"]]:
        there, back = [], keys.new_full((len(keys),), -torch.inf)
        for block in anchors.split(tile):
            scores = block @ keys.T
            there.append(scores.logsumexp(dim=1))
            back = torch.logaddexp(back, scores.logsumexp(dim=0))
        of_rows = torch.cat(there)
        ctx.tile = tile
        ctx.save_for_backward(anchors, keys, of_rows, back)
        return of_rows, back

    @staticmethod
    def backward(ctx: Any, above_rows: Tensor, above_columns: Tensor) -> tuple[Tensor, Tensor, None]:
        anchors, keys, of_rows, of_columns = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient is to be differentiated too, so in one piece and by operations that are
            scores = anchors @ keys.T
            both = scores.softmax(dim=1) * above_rows[:, None] + scores.softmax(dim=0) * above_columns
            return both @ keys, both.T @ anchors, None
        to_anchors, to_keys = torch.empty_like(anchors), torch.zeros_like(keys)
        for start in range(0, len(anchors), ctx.tile):
            part = slice(start, start + ctx.tile)
            scores = anchors[part] @ keys.T
            shares = (scores - of_rows[part, None]).exp_().mul_(above_rows[part, None])
            shares.addcmul_(scores.sub_(of_columns).exp_(), above_columns[None, :].expand_as(scores))
            torch.mm(shares, keys, out=to_anchors[part])
            to_keys.addmm_(shares.T, anchors[part])
        return to_anchors, to_keys, None
