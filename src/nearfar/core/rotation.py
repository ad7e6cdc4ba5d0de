"""Negatives among the keys of all ranks, of which a rank holds two blocks at a time (`exchange=ring`).

A rank scores its anchors against its own block of keys, passes the block to the next rank, and continues with
the block that the previous rank passed (Cheng et al. 2024, Inf-CL). After as many blocks as there are ranks it
has seen all keys. In the backward pass the blocks go round once more, each with its gradient, which ends at
its owner.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.kernels import EMPTY, Gradients, Kernel, LogSumExp, Needed, Tensors, count_others
from nearfar.core.scores import Candidates, Negatives, PerAnchor, at_least_float32, tile_size
from nearfar.core.strategy import Rows
from nearfar.errors import UserError


@dataclass(frozen=True, eq=False)
class RotatedLogSumExp(Kernel):
    """(anchors, keys of this rank) -> log-sum-exp per anchor over the keys of all ranks, and how many count.

    `index` and `key_index` say whose anchors and keys are, as in `LogSumExp`. All ranks have equally many keys.
    """

    index: Int[Tensor, "anchor"]
    key_index: Int[Tensor, "key"]
    layout: Rows

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys = inputs
        value = anchors.new_full((len(anchors),), -torch.inf)
        count = torch.zeros_like(value)
        for block, kernel in self._blocks(keys):
            value = torch.logaddexp(value, kernel.forward(anchors, block)[0])
            count += count_others(self.index, kernel.key_index)
        return value, count

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        anchors, keys = inputs
        to_anchors, to_block = torch.zeros_like(anchors), torch.zeros_like(keys)
        for block, kernel in self._blocks(keys):
            # shares of the sum over all keys, of which a block has some
            parts = kernel.backward((anchors, block), (outputs[0], *outputs), gradients, (True, True))
            assert parts[0] is not None
            assert parts[1] is not None
            to_anchors += parts[0]
            # the gradient follows its block; passed on by the last rank that had the block, it is at its owner
            (to_block,) = self.layout.pass_on(to_block + parts[1])()
        return to_anchors, to_block

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        raise UserError("exchange was ring, which has no second derivatives; use exchange=gather")

    def _blocks(self, keys: Tensor) -> Iterator[tuple[Tensor, LogSumExp]]:
        """The keys of every rank, and the kernel for them. While one block is used the next one arrives."""
        ids, tile = self.key_index, tile_size(self.index, keys)
        for number in reversed(range(len(self.layout.sizes))):
            receive = self.layout.pass_on(keys, ids) if number else None
            yield keys, LogSumExp(self.index, ids, tile)
            if receive is not None:
                keys, ids = receive()


@dataclass(frozen=True)
class Rotated(Negatives):
    """Inner products with keys of all ranks. `candidates`: those of this rank; `layout`: of the anchors.

    A bound reads log-sum-exp and count. Everything else would need other kernels.
    """

    anchors: Float[Tensor, "anchor dim"]
    index: Int[Tensor, "anchor"]
    candidates: Candidates
    layout: Rows

    @property
    def _keys_per_anchor(self) -> int:
        return len(self.candidates.index) // max(1, len(self.index))

    @cached_property
    def _sums(self) -> tuple[PerAnchor, PerAnchor]:
        """Blocks of one size on all ranks: shorter ones end with empty places."""
        missing = self._keys_per_anchor * max(self.layout.sizes) - len(self.candidates.index)
        keys = F.pad(at_least_float32(self.candidates.embedding), (0, 0, 0, missing))
        key_index = F.pad(self.candidates.index, (0, missing), value=EMPTY)
        kernel = RotatedLogSumExp(self.index, key_index, self.layout)
        value, count = kernel(at_least_float32(self.anchors), keys.contiguous())
        return value, count

    def logsumexp(self) -> PerAnchor:
        return self._sums[0]

    def count(self) -> PerAnchor:
        return self._sums[1]

    def offered(self) -> int:
        return self._keys_per_anchor * self.layout.total

    def refusal(self) -> Exception:
        return UserError(
            "exchange was ring, with which bounds can read the log-sum-exp and the number of negatives, and "
            "no selection can be made; use exchange=gather"
        )
