"""sum_j log(1 + e^(u_i . v_j + b)) a tile of anchors at a time, its gradient written out, as in `nearfar.core.logsumexp`.

The derivative of log(1 + e^x) is the logistic function s(x). So a tile is scored again in the backward pass, turned into
s(x) where it lies, and multiplied twice: no graph, one buffer.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class SoftplusSum(torch.autograd.Function):
    """`apply(anchors, keys, bias, tile)`, bias a tensor of one number."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, keys: Tensor, bias: Tensor, tile: int) -> Float[Tensor, "anchor"]:
        ctx.tile = tile
        ctx.save_for_backward(anchors, keys, bias)
        # log-sigmoid has no threshold beyond which it is only nearly right, unlike torch's softplus
        sums = [-F.logsigmoid(scores.neg_()).sum(dim=1) for scores, _ in _tiles(anchors, keys, bias, tile)]
        return torch.cat(sums)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        anchors, keys, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient is to be differentiated too, so in one piece and by operations that are
            slope = (anchors @ keys.T + bias).sigmoid() * above[:, None]
            return slope @ keys, slope.T @ anchors, slope.sum().reshape(bias.shape), None
        to_anchors, to_keys, to_bias = (torch.zeros_like(each) for each in (anchors, keys, bias))
        for scores, part in _tiles(anchors, keys, bias, ctx.tile):
            shares = scores.sigmoid_().mul_(above[part, None])
            torch.mm(shares, keys, out=to_anchors[part])
            to_keys.addmm_(shares.T, anchors[part])
            to_bias += shares.sum()
        return to_anchors, to_keys, to_bias, None


def _tiles(anchors: Tensor, keys: Tensor, bias: Tensor, tile: int) -> Iterator[tuple[Tensor, slice]]:
    """Each tile's scores, in one buffer that the next tile takes over, and which anchors they are of."""
    buffer = keys.new_empty(min(tile, len(anchors)), len(keys))
    for start in range(0, len(anchors), tile):
        part = slice(start, start + tile)
        block = anchors[part]
        yield torch.mm(block, keys.T, out=buffer[: len(block)]).add_(bias), part
