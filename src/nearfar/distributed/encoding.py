"""How a batch becomes embeddings: in one pass or in chunks, by one process or by several.

Cached gradients (Gao et al. 2021): with `chunk`, instances are encoded so many at a time and nothing but their embeddings is kept; the
loss is that of all of them, and where its gradient reaches a chunk's embeddings the chunk is encoded again, with the same random
numbers, this time to be differentiated. So memory is that of one chunk, and the gradient is the same, unless a network looks
at its batch: batch norm sees chunks.

Every pass, also the second, begins with the buffers as they were before the step. What passes would write to them is averaged over
chunks, and over ranks when the step is taken (`Method.advance`): running statistics move once a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from nearfar.core.buffers import BufferUpdates, deferred_buffers
from nearfar.core.types import Batch, BatchGroups, Encoded, Encoders, Supervision
from nearfar.distributed.batch_norm import synchronised
from nearfar.distributed.ranks import ALONE, Ranks, Rows
from nearfar.errors import UserError

Statistics = Literal["synchronised", "per-rank", "shuffled"]


@dataclass(frozen=True)
class Encoding:
    """How a method encodes. `chunk`: instances at a time; `batch_norm`: over whose rows its statistics are taken: those of all ranks, of
    each, or of each after keys have changed places among them."""

    ranks: Ranks = ALONE
    batch_norm: Statistics = "synchronised"
    chunk: int | None = None

    def encode(
        self, encoders: Encoders, batch: Batch, anchors: Sequence[int], keys: Sequence[int]
    ) -> tuple[Encoded, BufferUpdates]:
        """Embeddings of the views asked for, and what is to become of the networks' buffers."""
        shared = self.ranks.several and self.batch_norm == "synchronised"
        shuffles = (
            self.ranks.several and self.batch_norm == "shuffled" and getattr(encoders, "training", True)
        )
        seed = torch.initial_seed()  # of this step, and the same on all ranks

        def encoded(part: Batch, views: Any) -> tuple[Encoded, BufferUpdates]:
            part = replace(part, views=views)
            with unwritten(views), deferred_buffers(encoders) as moved, synchronised(shared):
                if shuffles:
                    return shuffled(encoders, part, anchors, keys, self.ranks, seed), moved
                return encoders.encode(part, anchors, keys), moved

        with self.ranks.own_randomness():
            parts = [batch] if self.chunk is None else chunks(batch, self.chunk)
            if len(parts) == 1:
                return encoded(batch, batch.views)
            passes = [checkpoint(encoded, part, part.views, use_reentrant=False) for part in parts]
        sizes = [len(part.index) for part in parts]
        return _joined([each for each, _ in passes], sizes), mean_of([moved for _, moved in passes])


PLAIN = Encoding()


@contextmanager
def unwritten(views: Any) -> Iterator[None]:
    """Refuses networks that change their input in place: the slow copy, the second pass of a chunk and whoever looks at the batch after
    them would see something else."""
    leaves = [leaf for leaf in tree_leaves(views) if isinstance(leaf, Tensor) and not leaf.is_inference()]
    before = [(leaf._version, _ends(leaf)) for leaf in leaves]
    yield
    if [(leaf._version, _ends(leaf)) for leaf in leaves] != before:
        raise UserError(
            "The network changes its input in place; others read the same batch after it. Let it work on a copy (x = x - mean, not x -= mean)."
        )


def _ends(leaf: Tensor) -> bytes:
    """The bytes of the first and last instance, where looking costs next to nothing: torch does not count writes through numpy or `.data`."""
    if leaf.device.type != "cpu" or leaf.layout is not torch.strided or not leaf.ndim or not len(leaf):
        return b""
    ends = (leaf[row].detach().reshape(-1) for row in (0, -1))
    return b"".join(end.view(torch.uint8).numpy().tobytes() for end in ends)


def shuffled(
    encoders: Encoders, batch: Batch, anchors: Sequence[int], keys: Sequence[int], ranks: Ranks, seed: int
) -> Encoded:
    """Anchors where they are, keys by whichever rank a permutation of all instances sends them to, and back (He et al. 2020, sec. 3.3): no
    rank's statistics tell whose key is whose. For encoders whose keys have a network of their own and no gradient."""
    asked = encoders.encode(batch, anchors, ())
    rows = ranks.rows(len(batch.index), batch.index.device)
    places = torch.from_numpy(np.random.default_rng([seed % 2**64, rows.total]).permutation(rows.total))
    back = torch.argsort(places)[rows.part].to(batch.index.device)
    mine = places[rows.part].to(batch.index.device)
    with torch.no_grad():
        views = tree_map(lambda tensor: rows.everyones(tensor)[mine], batch.views)
        known = encoders.encode(replace(batch, views=views), (), keys)
        own = {key: rows.everyones(made)[back] for key, made in known.keys.items()}
    return replace(asked, keys=own)


def chunks(batch: Batch, size: int) -> list[Batch]:
    """Parts of a batch of at most so many instances, of almost equal size: a last part of one would have no batch statistics."""
    count = -(-len(batch.index) // size)
    bounds = [len(batch.index) * k // count for k in range(count + 1)]
    return [batch.rows(slice(a, b)) for a, b in pairwise(bounds)]


def _joined(parts: Sequence[Encoded], sizes: Sequence[int]) -> Encoded:
    """The parts of a batch, one below the other."""
    first = parts[0]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def below(rows: Sequence[Mapping[int, Tensor]]) -> dict[int, Tensor]:
        return {w: torch.cat([each[w] for each in rows]) for w in rows[0]}

    instance = [
        {w: who + start for w, who in part.instance.items()}
        for part, start in zip(parts, starts, strict=True)
    ]
    return Encoded(
        below([part.anchors for part in parts]),
        below([part.keys for part in parts]),
        below([part.index for part in parts]),
        below(instance),
        None if first.clouds is None else below([part.clouds or {} for part in parts]),
        first.vocabulary,
        None
        if first.supervision is None
        else Supervision.joined([part.supervision for part in parts if part.supervision is not None]),
    )


@torch.no_grad()
def mean_of(passes: Sequence[BufferUpdates]) -> BufferUpdates:
    """What passes over parts of a batch would write to buffers, averaged; what is no measurement (a count) is that of one pass."""
    together = []
    for alike in zip(*passes, strict=True):
        child, name, became = alike[0]
        if became.is_floating_point() and len({each[2].shape for each in alike}) == 1:
            became = torch.stack([each[2] for each in alike]).mean(dim=0)
        together.append((child, name, became))
    return together


@dataclass(frozen=True)
class Everybody:
    """Keys and identities of all ranks, one rank after the other, and where this rank's rows are among them."""

    keys: Mapping[int, Tensor]
    index: Int[Tensor, "instance"]  # of all instances
    identities: Mapping[int, Int[Tensor, "row"]]
    instances: Rows
    by_key: Mapping[int, Rows] = field(default_factory=dict)
    groups: Mapping[str, Int[Tensor, "instance"]] = field(default_factory=dict)  # of all instances, by name
    groups_by_key: Mapping[int, Mapping[str, Int[Tensor, "row"]]] = field(default_factory=dict)

    def groups_of(self, key: int) -> BatchGroups:
        """Groups of the rows of a key; none where rows have identities that belong to no instance."""
        numbers = self.groups_by_key.get(key, {}) if key in self.identities else self.groups
        return BatchGroups(self.index_of(key), numbers)

    def rows(self, key: int) -> Rows:
        return self.by_key.get(key, self.instances)

    def index_of(self, key: int) -> Int[Tensor, "row"]:
        return self.identities.get(key, self.index)


def everybody(
    encoded: Encoded,
    index: Int[Tensor, "instance"],
    ranks: Ranks = ALONE,
    groups: Mapping[str, Int[Tensor, "instance"]] = MappingProxyType({}),
) -> Everybody:
    """Gathers keys (with gradient), identities and groups, once; what one process has is everybody's already."""
    instances = ranks.rows(len(index), index.device)
    by_row = {
        key: {by: numbers[places] for by, numbers in groups.items()}
        for key, places in encoded.instance.items()
        if key in encoded.index
    }
    if not ranks.several:
        by_key = {key: Rows((len(rows),)) for key, rows in encoded.index.items()}
        return Everybody(encoded.keys, index, encoded.index, instances, by_key, groups, by_row)
    by_key = {key: ranks.rows(len(rows), rows.device) for key, rows in encoded.index.items()}
    keys = {key: by_key.get(key, instances).everyones(rows) for key, rows in encoded.keys.items()}
    identities = {key: by_key[key].everyones(rows) for key, rows in encoded.index.items()}
    gathered = {by: instances.everyones(numbers) for by, numbers in groups.items()}
    gathered_rows = {
        key: {by: by_key[key].everyones(numbers) for by, numbers in columns.items()}
        for key, columns in by_row.items()
    }
    everyones_index = instances.everyones(index)
    return Everybody(keys, everyones_index, identities, instances, by_key, gathered, gathered_rows)
