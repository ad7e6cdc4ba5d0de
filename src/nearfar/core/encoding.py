"""How a batch becomes embeddings: in one pass or in chunks, and with the keys and scores of all ranks.

Cached gradients (Gao et al. 2021): with `chunk`, that many instances are encoded at a time and only their
embeddings are stored. The loss is computed from all embeddings. When its gradient reaches the embeddings of a
chunk, the chunk is encoded again, with the same random numbers, this time with a graph. So memory is that of
one chunk and the gradient is the same, unless a network mixes instances: batch norm sees chunks.

Activation checkpointing (Chen et al. 2016) does the same with the blocks of a network, for all instances at
once: with `recompute`, only the inputs of blocks are stored. Batch norm then still sees the whole batch.

Every pass, also the second one, starts with the buffers of before the step. Buffer updates are averaged over
chunks here, and over ranks when the step is taken (`Method.advance`): running statistics move once per step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.buffers import BufferUpdates, deferred_buffers
from nearfar.core.networks import blocks_of, replaced_forwards
from nearfar.core.scores import Elementwise, Negatives, PerAnchor, Scores
from nearfar.core.strategy import SINGLE, Rows, Strategy
from nearfar.core.types import Batch, BatchGroups, Encoded, Supervision
from nearfar.errors import UserError

Statistics = Literal["synchronised", "per-rank", "shuffled"]
Exchange = Literal["gather", "ring"]


@dataclass(frozen=True)
class Encoding:
    """How a method encodes. `chunk`: instances at a time. `batch_norm`: the rows of its statistics, which are
    those of all ranks, of each rank, or of each rank after keys were shuffled between ranks. `recompute`: the
    blocks of the networks are computed again for the gradient. `exchange`: each rank gathers the keys of all
    ranks, or keys pass from rank to rank (`nearfar.core.rotation`)."""

    strategy: Strategy = SINGLE
    batch_norm: Statistics = "synchronised"
    chunk: int | None = None
    recompute: bool = False
    exchange: Exchange = "gather"

    @property
    def rotates(self) -> bool:
        """Whether keys pass from rank to rank."""
        return self.exchange == "ring" and self.strategy.is_distributed

    def encode(
        self, encoders: AbstractEncoders, batch: Batch, anchors: Sequence[int], keys: Sequence[int]
    ) -> tuple[Encoded, BufferUpdates]:
        """Embeddings of the requested views, and the buffer updates of the networks."""
        strategy = self.strategy
        training = not isinstance(encoders, nn.Module) or encoders.training
        shuffles = strategy.is_distributed and self.batch_norm == "shuffled" and training
        seed = torch.initial_seed()  # of this step, equal on all ranks

        def encode_part(part: Batch, views: Any) -> tuple[Encoded, BufferUpdates]:
            part = replace(part, views=views)
            blocks = recomputed_blocks(encoders, self._statistics) if self.recompute else nullcontext()
            with (
                forbid_inplace_inputs(views),
                deferred_buffers(encoders) as updates,
                self._statistics(),
                blocks,
            ):
                if shuffles:
                    return encode_shuffled(encoders, part, anchors, keys, strategy, seed), updates
                return encoders.encode(part, anchors, keys), updates

        with strategy.rank_randomness():
            parts = [batch] if self.chunk is None else chunks(batch, self.chunk)
            if len(parts) == 1:
                return encode_part(batch, batch.views)
            passes = [checkpoint(encode_part, part, part.views, use_reentrant=False) for part in parts]
        sizes = [len(part.index) for part in parts]
        return _concatenate([encoded for encoded, _ in passes], sizes), mean_updates(
            [updates for _, updates in passes]
        )

    def _statistics(self) -> AbstractContextManager[None]:
        synchronised = self.batch_norm == "synchronised"
        return self.strategy.synchronised_batch_norm() if synchronised else nullcontext()


DEFAULT_ENCODING = Encoding()


def recomputed_blocks(
    networks: object, statistics: Callable[[], AbstractContextManager[None]] = nullcontext
) -> AbstractContextManager[None]:
    """Inside, blocks store their inputs only and are computed again when their gradient is. `statistics`: the
    context of batch norms in the second pass, whose buffer updates are thrown away."""
    return replaced_forwards({block: _recomputed(block, statistics) for block in blocks_of(networks)})


def _recomputed(
    block: nn.Module, statistics: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    forward = block.forward

    @contextmanager
    def second_pass() -> Iterator[None]:
        with deferred_buffers(block), statistics():
            yield

    def checkpointed(*inputs: Any, **options: Any) -> Any:
        contexts = lambda: (nullcontext(), second_pass())
        tensors = [
            leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and not leaf.is_inference()
        ]
        versions = [tensor._version for tensor in tensors]
        output = checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **options)
        if versions != [tensor._version for tensor in tensors]:
            raise UserError(
                f"checkpoint_activations was true, but a block ({type(block).__name__}) changes its input in "
                "place and could not be computed again; use checkpoint_activations=false"
            )
        return output

    return checkpointed


@contextmanager
def forbid_inplace_inputs(views: Any) -> Iterator[None]:
    """Refuses networks that change their input in place: other passes would see the changed values."""
    leaves = [leaf for leaf in tree_leaves(views) if isinstance(leaf, Tensor) and not leaf.is_inference()]
    previous = [(leaf._version, _edge_bytes(leaf)) for leaf in leaves]
    yield
    if [(leaf._version, _edge_bytes(leaf)) for leaf in leaves] != previous:
        raise UserError(
            "The network changes its input in place, but other networks read the same batch; work on a copy "
            "(x = x - mean, not x -= mean)."
        )


def _edge_bytes(leaf: Tensor) -> bytes:
    """The bytes of the first and last instance on a CPU: torch does not count writes through numpy."""
    if leaf.device.type != "cpu" or leaf.layout is not torch.strided or not leaf.ndim or not len(leaf):
        return b""
    edges = (leaf[row].detach().reshape(-1) for row in (0, -1))
    return b"".join(edge.view(torch.uint8).numpy().tobytes() for edge in edges)


def encode_shuffled(
    encoders: AbstractEncoders,
    batch: Batch,
    anchors: Sequence[int],
    keys: Sequence[int],
    strategy: Strategy,
    seed: int,
) -> Encoded:
    """Encodes anchors on their rank and keys on the rank that a permutation of all instances assigns (He et
    al. 2020, sec. 3.3), so that batch statistics do not reveal the positive. For encoders whose keys have
    their own network and no gradient."""
    local = encoders.encode(batch, anchors, ())
    rows = strategy.rows(len(batch.index), batch.total)
    order = torch.from_numpy(np.random.default_rng([seed % 2**64, rows.total]).permutation(rows.total))
    inverse = torch.argsort(order)[rows.part].to(batch.index.device)
    assigned = order[rows.part].to(batch.index.device)
    with torch.no_grad():
        views = tree_map(lambda tensor: rows.all_gather(tensor)[assigned], batch.views)
        encoded = encoders.encode(replace(batch, views=views), (), keys)
        local_keys = {key: rows.all_gather(rank_keys)[inverse] for key, rank_keys in encoded.keys.items()}
    return replace(local, keys=local_keys)


def chunks(batch: Batch, size: int) -> list[Batch]:
    """Parts of at most `size` instances and almost equal size: one instance has no batch statistics."""
    count = -(-len(batch.index) // size)
    bounds = [len(batch.index) * k // count for k in range(count + 1)]
    return [batch.rows(slice(a, b)) for a, b in pairwise(bounds)]


def _concatenate(parts: Sequence[Encoded], sizes: Sequence[int]) -> Encoded:
    """The embeddings of a batch from those of its parts."""
    first = parts[0]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def joined(rows: Sequence[Mapping[int, Tensor]]) -> dict[int, Tensor]:
        return {w: torch.cat([part[w] for part in rows]) for w in rows[0]}

    instance = [
        {w: numbers + start for w, numbers in part.instance.items()}
        for part, start in zip(parts, starts, strict=True)
    ]
    return Encoded(
        joined([part.anchors for part in parts]),
        joined([part.keys for part in parts]),
        joined([part.index for part in parts]),
        joined(instance),
        None if first.embeddings is None else joined([part.embeddings or {} for part in parts]),
        first.vocabulary,
        None
        if first.supervision is None
        else Supervision.joined([part.supervision for part in parts if part.supervision is not None]),
        first.key_vocabulary,
    )


@torch.no_grad()
def mean_updates(passes: Sequence[BufferUpdates]) -> BufferUpdates:
    """The mean of the buffer updates of several passes; counts (integers) are those of the first."""
    means = []
    for updates in zip(*passes, strict=True):
        child, name, value = updates[0]
        if value.is_floating_point() and len({update[2].shape for update in updates}) == 1:
            value = torch.stack([update[2] for update in updates]).mean(dim=0)
        means.append((child, name, value))
    return means


@dataclass(frozen=True)
class GatheredKeys:
    """Keys and identities of all ranks in rank order, and the position of this rank's rows among them."""

    keys: Mapping[int, Tensor]
    index: Int[Tensor, "instance"]  # of all instances
    identities: Mapping[int, Int[Tensor, "row"]]
    instances: Rows
    by_key: Mapping[int, Rows] = field(default_factory=dict)
    groups: Mapping[str, Int[Tensor, "instance"]] = field(default_factory=dict)  # of all instances, by name
    groups_by_key: Mapping[int, Mapping[str, Int[Tensor, "row"]]] = field(default_factory=dict)
    # of all rows, where the negatives give codes (`AbstractNegatives.codes`)
    codes: Mapping[int, Float[Tensor, "row symbol"]] = field(default_factory=dict)

    def groups_of(self, key: int) -> BatchGroups:
        """Groups of the rows of a key; none where rows have identities that belong to no instance."""
        numbers = self.groups_by_key.get(key, {}) if key in self.identities else self.groups
        return BatchGroups(self.index_of(key), numbers)

    def rows(self, key: int) -> Rows:
        return self.by_key.get(key, self.instances)

    def index_of(self, key: int) -> Int[Tensor, "row"]:
        return self.identities.get(key, self.index)


def gather_keys(
    encoded: Encoded,
    index: Int[Tensor, "instance"],
    strategy: Strategy = SINGLE,
    groups: Mapping[str, Int[Tensor, "instance"]] = MappingProxyType({}),
    total: int | None = None,
    gather_embeddings: bool = True,
) -> GatheredKeys:
    """Gathers keys (with gradient), identities and groups, once per step. `total`: see `Batch`. Without
    `gather_embeddings`, keys are those of this rank."""
    instances = strategy.rows(len(index), total)
    by_key = {key: strategy.rows(len(rows)) for key, rows in encoded.index.items()}
    keys: Mapping[int, Tensor] = encoded.keys
    if gather_embeddings:
        keys = {key: by_key.get(key, instances).all_gather(rows) for key, rows in encoded.keys.items()}
    identities = {key: by_key[key].all_gather(rows) for key, rows in encoded.index.items()}
    groups_by_key = {
        key: {name: by_key[key].all_gather(numbers[places]) for name, numbers in groups.items()}
        for key, places in encoded.instance.items()
        if key in encoded.index
    }
    gathered_groups = {name: instances.all_gather(numbers) for name, numbers in groups.items()}
    gathered_index = instances.all_gather(index)
    return GatheredKeys(keys, gathered_index, identities, instances, by_key, gathered_groups, groups_by_key)


@dataclass(frozen=True)
class GatheredNegatives(Negatives):
    """Negatives of the anchors of all ranks; `local` are those of this rank's anchors.

    A bound reads a few numbers per anchor, through reductions. Each reduction is computed for this rank's
    anchors and gathered with gradient, so that every rank computes the bound of the whole batch, also a bound
    that sums over all anchors (ML-CPC).
    """

    local: Negatives
    rows: Rows

    def logsumexp(self) -> PerAnchor:
        return self.rows.all_gather(self.local.logsumexp())

    def count(self) -> PerAnchor:
        return self.rows.all_gather(self.local.count())

    def offered(self) -> int:
        return self.local.offered()

    def sum_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        return self.rows.all_gather(self.local.sum_of(function, *self._local_part(per_anchor)))

    def mean_of(self, function: Elementwise, *per_anchor: PerAnchor) -> PerAnchor:
        return self.rows.all_gather(self.local.mean_of(function, *self._local_part(per_anchor)))

    def hardest(self) -> PerAnchor:
        return self.rows.all_gather(self.local.hardest())

    def refusal(self) -> Exception:
        return RuntimeError("select before gathering: a rank has only the candidates of its own anchors")

    def _local_part(self, columns: tuple[Tensor, ...]) -> list[Tensor]:
        return [column[self.rows.part] for column in columns]


def gather_scores(scores: Scores, rows: Rows) -> Scores:
    """The scores of the anchors of all ranks. Every field with a row for each anchor is gathered."""
    if len(rows.sizes) == 1:
        return scores
    gathered = {part.name: _gather_field(getattr(scores, part.name), rows) for part in fields(scores)}
    return replace(scores, **gathered)


def _gather_field(value: Any, rows: Rows) -> Any:
    if isinstance(value, Tensor):
        return rows.all_gather(value) if value.ndim else value
    if isinstance(value, Scores):
        return gather_scores(value, rows)
    return GatheredNegatives(value, rows) if isinstance(value, Negatives) else value
