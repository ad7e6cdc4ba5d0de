"""sum_i log sum_j e^(u_i . v_j), its gradient made in the same pass.

In a mean over anchors every anchor has the same factor from above. So the softmax of a tile, which is there when its sums are, can be
multiplied with keys and anchors at once, and the factor afterwards: three products and one exponential for a score, where a log-sum-exp
whose anchors might each have a factor of their own takes four and two.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import tile_size


class SummedLogSumExp(torch.autograd.Function):
    """`apply(anchors, keys, tile)`, so many anchors at a time."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "key dim"], tile: int
    ) -> Float[Tensor, ""]:
        to_anchors, to_keys = torch.empty_like(anchors), torch.zeros_like(keys)
        sums, learns = anchors.new_empty(len(anchors)), any(ctx.needs_input_grad)
        buffer = anchors.new_empty(min(tile, len(anchors)), len(keys))
        for start in range(0, len(anchors), tile):
            part = slice(start, start + tile)
            own = anchors[part]
            powers = torch.mm(own, keys.T, out=buffer[: len(own)])
            top = powers.amax(dim=1)
            total = powers.sub_(top[:, None]).exp_().sum(dim=1)
            sums[part] = total.log() + top
            if (
                learns
            ):  # the softmax is powers / total: dividing rows of embeddings is less work than dividing scores
                torch.mm(powers, keys, out=to_anchors[part]).div_(total[:, None])
                to_keys.addmm_(powers.T, own / total[:, None])
        ctx.save_for_backward(anchors, keys, to_anchors, to_keys)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, above: Float[Tensor, ""]) -> tuple[Tensor, Tensor, None]:
        anchors, keys, to_anchors, to_keys = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # create_graph: the gradient is to be differentiated too, so by operations that are
            shares = (anchors @ keys.T).softmax(dim=1) * above
            return shares @ keys, shares.T @ anchors, None
        return to_anchors * above, to_keys * above, None


def summed(anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "key dim"]) -> Float[Tensor, ""]:
    return SummedLogSumExp.apply(anchors, keys, tile_size(anchors, keys))
