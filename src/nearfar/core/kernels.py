"""Sums of exponentials of inner products, tile by tile, with their gradients written out.

    LogSumExp            log sum_j e^(u_i . v_j) over the candidates that count
    TwoWayLogSumExp      the same over rows and over columns: each tile of scores is computed once for both
    SymmetricLogSumExp   the same of a set with itself: each score is computed once for i and j
    SummedLogSumExp      its sum over anchors: the gradient is computed in the forward pass
    SoftplusSum          sum_j log(1 + e^(u_i . v_j + b))

The derivative of a log-sum-exp is a softmax, and that of log(1 + e^x) a logistic function. So a tile is
scored again in the backward pass, turned into its derivative in place, and multiplied with anchors and keys:
no graph, no mask of its size, one buffer. Any other function of scores is streamed through activation
checkpointing (`nearfar.core.scores`), which takes twice as long.

Five kernels instead of one, because each saves matrix products or exponentials. Value and gradient of 2,048
anchors and keys of width 128, one thread: the sum in one pass 35 ms (LogSumExp 48), two ways 69 ms (96), a
set of 4,096 with itself 99 ms (189).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

Tensors = Sequence[Tensor]
Gradients = Sequence[Tensor | None]
Needed = Sequence[bool]


def inner(anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "candidate dim"]) -> Tensor:
    return anchors @ keys.T


class Kernel(ABC):
    """A function of tensors whose forward and backward passes are written out.

    `forward` returns the `differentiable` outputs first, then what else it has computed. Second derivatives,
    of gradient penalties and meta-learning, and forward-mode derivatives (`torch.func.jvp`) are those of
    `reference`, which builds the whole matrix.
    """

    differentiable: int = 1

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        """The gradient at each input from those at the differentiable outputs, where `needed`."""

    @abstractmethod
    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The differentiable outputs by differentiable operations."""

    def reference_at(self, *inputs: Tensor) -> "Kernel":
        """The kernel whose `reference` is differentiated at these inputs. Default: itself."""
        return self

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _Value.apply(self, *inputs)


def inside_transform() -> bool:
    """Whether a transform of `torch.func` (grad, vmap, ...) is being computed."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def without_dead_levels(tensor: Tensor) -> Tensor:
    """A tensor that was made inside a transform which has ended, as a plain tensor."""
    while (wrapped := torch._C._functorch.unwrap_if_dead(tensor)) is not tensor:
        tensor = wrapped
    return tensor


def checkpoint_tile(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function(*tensors)`, computed again in the backward pass instead of stored. Inside transforms of
    `torch.func`, which do not take the hooks of activation checkpointing, it is stored."""
    if inside_transform():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)


def _for_each(
    function: Callable[..., tuple[Tensor, ...]], size: int, dims: Any, arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A function under `torch.func.vmap`: one call for each of `size` entries, as kernels reuse one buffer."""
    leaves, structure = tree_flatten(arguments)
    leaf_dims = tree_flatten(dims, is_leaf=lambda dim: dim is None)[0]
    entries = [
        [
            leaf if dim is None else leaf.select(dim, entry)
            for leaf, dim in zip(leaves, leaf_dims, strict=True)
        ]
        for entry in range(size)
    ]
    outputs = [function(*tree_unflatten(entry, structure)) for entry in entries]
    stacked = tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))
    return stacked, (0,) * len(stacked)


def _push(function: Callable[..., tuple[Tensor, ...]], inputs: Tensors, tangents: Tensors) -> Any:
    """The tangents of the outputs. Expanded tensors are copied, as `torch.func.jvp` does not take them."""
    return torch.func.jvp(function, *(tuple(t.contiguous() for t in side) for side in (inputs, tangents)))[1]


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(kernel: Kernel, *inputs: Tensor) -> tuple[Tensor, ...]:
        return kernel.forward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _for_each(_Value.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.kernel, *tensors = inputs
        ctx.split = len(tensors)
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*output[ctx.kernel.differentiable :])
        ctx.other_outputs = len(output) - ctx.kernel.differentiable

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        reference = ctx.kernel.reference_at(*inputs).reference
        return *_push(reference, inputs, tangents), *[None] * ctx.other_outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        inputs, outputs = saved[: ctx.split], [tensor.detach() for tensor in saved[ctx.split :]]
        grad_outputs = gradients[: ctx.kernel.differentiable]
        computed = iter(_Gradient.apply(ctx.kernel, needed, outputs, len(inputs), *inputs, *grad_outputs))
        return None, *(next(computed) if need else None for need in needed)


class _Gradient(torch.autograd.Function):
    """The gradient as a differentiable function of inputs and of gradients at the outputs."""

    @staticmethod
    def forward(
        kernel: Kernel, needed: Sequence[bool], outputs: Sequence[Tensor], split: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        computed = kernel.backward(tensors[:split], outputs, tensors[split:], needed)
        return tuple(gradient for gradient, need in zip(computed, needed, strict=True) if need)  # type: ignore[misc]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _for_each(_Gradient.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.kernel, ctx.needed, _, ctx.split, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _push(_Gradient._of_reference(ctx), ctx.saved_tensors, tangents[4:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pull = torch.func.vjp(_Gradient._of_reference(ctx), *ctx.saved_tensors)[1]
        return None, None, None, None, *pull(gradients)

    @staticmethod
    def _of_reference(ctx: Any) -> Callable[..., tuple[Tensor, ...]]:
        """The same function of the saved tensors, by differentiable operations."""
        kernel = ctx.kernel.reference_at(*ctx.saved_tensors[: ctx.split])

        def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(kernel.reference, *tensors[: ctx.split])[1]
            computed = pull(tuple(tensors[ctx.split :]))
            return tuple(part for part, need in zip(computed, ctx.needed, strict=True) if need)

        return gradient


EMPTY = -2  # a slot that holds nothing yet: never a negative

# of a block, for each thread: half a megabyte in float32, which a core's cache holds
BLOCK_ROWS, BLOCK_SCORES = 256, 2**17

# (scores, which are offered, positions of the anchors) -> which count
Keep = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LogSumExp(Kernel):
    """(anchors, keys) -> log-sum-exp per anchor, number of candidates, their mean weighted by e^score.

    `index` and `key_index` say whose anchors and candidates are. Candidates of the anchor's own instance and
    empty places do not count. Of the others those count that `keep` selects (None: all); it is called again in
    the backward pass and has no gradient.

    Where all candidates count, scores are computed in blocks of anchors and candidates that stay in a core's
    cache, with a running maximum (Milakov and Gimelshein 2018). With `with_mean`, for candidates without
    gradient (a queue, a bank), the weighted mean, which is the gradient, is summed up in the forward pass.
    Where a selection reads all candidates of an anchor, a part is a tile of anchors.
    """

    index: Int[Tensor, "anchor"]
    key_index: Int[Tensor, "candidate"]
    tile: int
    keep: Keep | None = None
    with_mean: bool = False

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys = inputs
        top = anchors.new_full((len(anchors),), -torch.inf)
        total, count = torch.zeros_like(top), torch.empty_like(top)
        mean = torch.zeros_like(anchors) if self.with_mean else anchors.new_empty(0)
        for part, columns, scores in self._blocks(anchors, keys):
            if self.keep is not None:
                count[part] = len(keys) - scores.isneginf().sum(dim=1)
            highest = torch.maximum(top[part], scores.amax(dim=1))
            # where no candidate counts the highest is -inf, and -inf - -inf would be NaN
            level = highest.nan_to_num(neginf=0.0)
            previous = (top[part] - level).exp_()
            scores.sub_(level[:, None]).exp_()
            total[part].mul_(previous).add_(scores.sum(dim=1))
            if self.with_mean:
                mean[part].mul_(previous[:, None]).addmm_(scores, keys[columns])
            top[part] = highest
        if self.with_mean:
            mean.div_(total.clamp_min(torch.finfo(total.dtype).tiny)[:, None])
        return total.log_().add_(top.nan_to_num_(neginf=0.0)), count, mean

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        (anchors, keys), (value, _, mean), (gradient,) = inputs, outputs, gradients
        if self.with_mean and not needed[1]:
            return mean * gradient[:, None], None
        level = value.nan_to_num(neginf=0.0)
        to_anchors = torch.zeros_like(anchors) if needed[0] else None
        to_keys = torch.zeros_like(keys) if needed[1] else None
        for part, columns, scores in self._blocks(anchors, keys):
            shares = scores.sub_(level[part, None]).exp_().mul_(gradient[part, None])
            if to_anchors is not None:
                to_anchors[part].addmm_(shares, keys[columns])
            if to_keys is not None:
                to_keys[columns].addmm_(shares.T, anchors[part])
        return to_anchors, to_keys

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys = inputs
        scores = inner(anchors, keys)
        # a backward pass may come after the transform in which the numbers were made
        index, key_index = map(without_dead_levels, (self.index, self.key_index))
        dropped = (index[:, None] == key_index) | (key_index == EMPTY)
        if self.keep is not None:
            positions = torch.arange(len(anchors), device=anchors.device)
            dropped |= ~self.keep(scores.detach(), ~dropped, positions)
        # an anchor for which no candidate counts has value -inf and gradient 0, not NaN
        some = ~dropped.all(dim=1)
        value = scores.masked_fill(dropped & some[:, None], -torch.inf).logsumexp(dim=1)
        return (torch.where(some, value, -torch.inf),)

    def reference_at(self, *inputs: Tensor) -> Kernel:
        """With the choice of `keep` made once: it need not work on the tensors of a transform."""
        if self.keep is None:
            return self
        anchors, keys = (tensor.detach() for tensor in inputs)
        mask = torch.zeros(len(anchors), len(keys), dtype=torch.bool, device=anchors.device)
        for part, _, scores in self._blocks(anchors, keys):
            mask[part] = ~scores.isneginf()
        return replace(self, keep=lambda scores, offered, positions: mask[positions])

    def _blocks(self, anchors: Tensor, keys: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Slices of anchors and of candidates, and the scores of that block, -inf where a candidate does not
        count, in one buffer that the next block reuses."""
        # `keep` reads all candidates of an anchor; on a CPU a tile may be larger than what the cache holds
        in_cache = self.keep is None and anchors.device.type == "cpu"
        height = max(1, min(BLOCK_ROWS if in_cache else self.tile, len(anchors)))
        width = max(1, BLOCK_SCORES * torch.get_num_threads() // height if in_cache else len(keys))
        buffer = keys.new_empty(height * min(width, len(keys)))
        empty = torch.zeros_like(self.key_index, dtype=keys.dtype).masked_fill_(
            self.key_index == EMPTY, -torch.inf
        )
        leave_out = self._leave_out(len(anchors), len(keys), height, width)
        for start in range(0, len(anchors), height):
            part = slice(start, min(start + height, len(anchors)))
            for first_key in range(0, len(keys), width):
                columns = slice(first_key, min(first_key + width, len(keys)))
                shape = part.stop - part.start, columns.stop - columns.start
                scores = buffer[: shape[0] * shape[1]].view(shape)
                with torch.autocast(anchors.device.type, enabled=False):
                    torch.addmm(empty[columns], anchors[part], keys[columns].T, out=scores)
                leave_out(scores, part, columns)
                if self.keep is not None:
                    positions = torch.arange(part.start, part.stop, device=scores.device)
                    scores.masked_fill_(~self.keep(scores, ~scores.isneginf(), positions), -torch.inf)
                yield part, columns, scores

    @cached_property
    def _own_pairs(self) -> tuple[Int[Tensor, "pair"], Int[Tensor, "pair"]]:
        """Rows and columns of the candidates that are the anchors themselves."""
        return matches(self.index, self.key_index)

    def _leave_out(
        self, anchors: int, keys: int, height: int, width: int
    ) -> Callable[[Tensor, slice, slice], None]:
        """The function that sets the scores of anchors with themselves to -inf, called for one block after the
        other. On a CPU their places are computed once; elsewhere identities are compared in each block, since
        the host would have to wait for places."""
        if self.index.device.type != "cpu":

            def compare(scores: Tensor, part: slice, columns: slice) -> None:
                scores.masked_fill_(self.index[part, None] == self.key_index[columns], -torch.inf)

            return compare
        across = max(1, -(-keys // width))
        rows, pair_columns = self._own_pairs
        number = rows.div(height, rounding_mode="floor") * across + pair_columns.div(
            width, rounding_mode="floor"
        )
        block, order = number.sort()
        rows, pair_columns = rows[order], pair_columns[order]
        count = -(-anchors // height) * across
        ends = torch.searchsorted(block, torch.arange(count), right=True).tolist()
        spans = iter(zip([0, *ends], ends, strict=False))

        def write(scores: Tensor, part: slice, columns: slice) -> None:
            begin, end = next(spans)
            if end > begin:
                scores[rows[begin:end] - part.start, pair_columns[begin:end] - columns.start] = -torch.inf

        return write


def score_tiles(anchors: Tensor, keys: Tensor, tile: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of at most `tile` anchors and their scores with all keys, in one buffer that is reused."""
    buffer = keys.new_empty(min(tile, len(anchors)), len(keys))
    for start in range(0, len(anchors), tile):
        part = slice(start, min(start + tile, len(anchors)))
        with torch.autocast(anchors.device.type, enabled=False):
            yield part, torch.mm(anchors[part], keys.T, out=buffer[: part.stop - start])


def count_others(index: Int[Tensor, "anchor"], key_index: Int[Tensor, "candidate"]) -> Int[Tensor, "anchor"]:
    """How many candidates each anchor has: those of other instances, without empty places."""
    ordered = key_index.sort().values
    own_keys = torch.searchsorted(ordered, index, right=True) - torch.searchsorted(ordered, index)
    return (key_index != EMPTY).sum() - own_keys


def matches(
    first_ids: Int[Tensor, "anchor"], second_ids: Int[Tensor, "candidate"]
) -> tuple[Int[Tensor, "match"], Int[Tensor, "match"]]:
    """Rows and columns where left[row] == right[column], by rising row, without comparing all with all."""
    ordered, order = first_ids.sort()
    first, end = (torch.searchsorted(ordered, second_ids.contiguous(), right=side) for side in (False, True))
    counts = end - first
    columns = torch.arange(len(second_ids), device=second_ids.device).repeat_interleave(counts)
    place = torch.arange(len(columns), device=second_ids.device) - (counts.cumsum(0) - counts)[columns]
    rows, by_row = order[first[columns] + place].sort()
    return rows, columns[by_row]


@dataclass(frozen=True)
class TwoWayLogSumExp(Kernel):
    """(anchors, keys) -> log sum_j e^(u_i . v_j) for every i and log sum_i e^(u_i . v_j) for every j."""

    differentiable = 2
    tile: int

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys = inputs
        of_rows, of_columns = anchors.new_empty(len(anchors)), keys.new_full((len(keys),), -torch.inf)
        for part, scores in score_tiles(anchors, keys, self.tile):
            of_rows[part] = scores.logsumexp(dim=1)
            of_columns = torch.logaddexp(of_columns, scores.logsumexp(dim=0))
        return of_rows, of_columns

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        (anchors, keys), (of_rows, of_columns), (row_gradient, column_gradient) = inputs, outputs, gradients
        to_anchors, to_keys = torch.empty_like(anchors), torch.zeros_like(keys)
        for part, scores in score_tiles(anchors, keys, self.tile):
            shares = (scores - of_rows[part, None]).exp_().mul_(row_gradient[part, None])
            shares.addcmul_(scores.sub_(of_columns).exp_(), column_gradient[None, :].expand_as(scores))
            torch.mm(shares, keys, out=to_anchors[part])
            to_keys.addmm_(shares.T, anchors[part])
        return to_anchors, to_keys

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        scores = inner(*inputs)
        return scores.logsumexp(dim=1), scores.logsumexp(dim=0)


@dataclass(frozen=True)
class SummedLogSumExp(Kernel):
    """(anchors, keys) -> sum_i log sum_j e^(u_i . v_j), and with `with_gradient` its gradient.

    In a sum over anchors every anchor has the same factor, so the softmax of a tile can be multiplied with
    keys and anchors as soon as it is there, and the factor afterwards: three products and one exponential per
    score instead of four and two.
    """

    tile: int
    with_gradient: bool = True

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys = inputs
        sums, to_anchors, to_keys = anchors.new_empty(len(anchors)), anchors.new_empty(0), keys.new_empty(0)
        if self.with_gradient:
            to_anchors, to_keys = torch.empty_like(anchors), torch.zeros_like(keys)
        for part, powers in score_tiles(anchors, keys, self.tile):
            top = powers.amax(dim=1)
            total = powers.sub_(top[:, None]).exp_().sum(dim=1)
            sums[part] = total.log() + top
            if self.with_gradient:
                # the softmax is powers / total: dividing rows of embeddings is less work than dividing scores
                torch.mm(powers, keys, out=to_anchors[part]).div_(total[:, None])
                to_keys.addmm_(powers.T, anchors[part] / total[:, None])
        return sums.sum(), to_anchors, to_keys

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        _, to_anchors, to_keys = outputs
        return to_anchors * gradients[0], to_keys * gradients[0]

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (inner(*inputs).logsumexp(dim=1).sum(),)


SQUARE = 512  # side of a block for each thread: a megabyte in float32


@dataclass(frozen=True)
class SymmetricLogSumExp(Kernel):
    """rows -> log sum of e^(z_i . z_j) over all j but i. No score exceeds `largest`, which is at most 40:
    then e^(score - largest) is a number that float32 has.

    The matrix of scores is symmetric, so the blocks on and above the diagonal are enough: the row sums of a
    block belong to i, its column sums to j. With g the gradient at the output and s the sums, the gradient at
    z_i is the sum over j of e^(z_i . z_j) (g_i / s_i + g_j / s_j) z_j: two products for each pair of blocks.
    """

    largest: float

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        (rows,) = inputs
        sums = rows.new_zeros(len(rows))
        for part, columns, powers in self._blocks(rows):
            sums[part] += powers.sum(dim=1)
            if part != columns:
                sums[columns] += powers.sum(dim=0)
        return sums.log().add_(self.largest), sums

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        (rows,), (_, sums) = inputs, outputs
        share, gradient = gradients[0] / sums, torch.zeros_like(rows)
        for part, columns, powers in self._blocks(rows):
            powers.mul_(share[part, None] + share[columns])
            gradient[part].addmm_(powers, rows[columns])
            if part != columns:
                gradient[columns].addmm_(powers.T, rows[part])
        return (gradient,)

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        (rows,) = inputs
        itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        return (inner(rows, rows).masked_fill(itself, -torch.inf).logsumexp(dim=1),)

    def _blocks(self, rows: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """e^(score - largest) of the blocks on and above the diagonal, which is 0, in one reused buffer."""
        side = min(SQUARE, len(rows))
        width = side * torch.get_num_threads()
        buffer = rows.new_empty(side * width)
        for start in range(0, len(rows), side):
            part, place = slice(start, min(start + side, len(rows))), start
            while place < len(rows):
                # the block on the diagonal is a square, those next to it are as wide as all threads' caches
                columns = slice(place, min(start + side if place == start else place + width, len(rows)))
                shape = part.stop - part.start, columns.stop - columns.start
                scores = buffer[: shape[0] * shape[1]].view(shape)
                torch.mm(rows[part], rows[columns].T, out=scores)
                scores.sub_(self.largest).exp_()
                if place == start:
                    scores.fill_diagonal_(0.0)
                yield part, columns, scores
                place = columns.stop


@dataclass(frozen=True)
class SoftplusSum(Kernel):
    """(anchors, keys, bias) -> sum_j log(1 + e^(u_i . v_j + bias)) for every i; `bias` is one number."""

    tile: int

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys, bias = inputs
        sums = anchors.new_empty(len(anchors))
        for part, scores in score_tiles(anchors, keys, self.tile):
            # log-sigmoid has no threshold beyond which it is only nearly right, unlike torch's softplus
            sums[part] = -F.logsigmoid(scores.add_(bias).neg_()).sum(dim=1)
        return (sums,)

    def backward(self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: Needed) -> Gradients:
        anchors, keys, bias = inputs
        to_anchors, to_keys, to_bias = (torch.zeros_like(tensor) for tensor in inputs)
        for part, scores in score_tiles(anchors, keys, self.tile):
            shares = scores.add_(bias).sigmoid_().mul_(gradients[0][part, None])
            torch.mm(shares, keys, out=to_anchors[part])
            to_keys.addmm_(shares.T, anchors[part])
            to_bias += shares.sum()
        return to_anchors, to_keys, to_bias

    def reference(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        anchors, keys, bias = inputs
        return (-F.logsigmoid(-(inner(anchors, keys) + bias)).sum(dim=1),)
