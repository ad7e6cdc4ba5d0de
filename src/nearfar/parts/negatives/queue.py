"""The keys of recent steps (MoCo, Liu 2022, Eq. 35), and nearest neighbours among them (NNCLR)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.schedules import Progress
from nearfar.core.scores import EMPTY, Candidates
from nearfar.core.types import NegativeSampling, Sizes
from nearfar.errors import UserError
from nearfar.parts.negatives.batch import InBatch, WidthOfFirstKeys, filled, rows_of

UNKNOWN_WIDTH = 0
LARGEST = 2**26  # keys; of 128 numbers each that is 32 GiB


def _single_group(key: int) -> int:
    return 0


class Queue(WidthOfFirstKeys, AbstractNegatives):
    """The last `size` keys of each group. A step's own keys enter only after the step.

    Groups of keys (`Encoders.group_of`) lie one below the other in `embedding`, `size` places each, and never
    mix. Without `dim`, keys are as wide as the first that come.
    """

    memory = "embedding"
    display_name = "the queue"
    equation = "the last {size} keys"
    embedding: Tensor
    index: Tensor
    pointer: Tensor

    def __init__(self, size: int = 4096, *, dim: int | None = None) -> None:
        super().__init__(dim)
        if not isinstance(size, (int, np.integer)) or not 1 <= size <= LARGEST:
            raise UserError(f"negatives.size was {size}; a queue has from 1 to {LARGEST} places")
        if dim is not None and dim < 1:
            raise UserError(f"Queue(dim={dim}) holds no vectors; it must be at least 1")
        self.size = int(size)
        self.group_of: Callable[[int], int] = _single_group
        self.register_buffer("embedding", torch.zeros(size, UNKNOWN_WIDTH))
        self.register_buffer("index", filled(EMPTY, size))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        if dim is not None:
            self._widen(dim)

    def meet(self, sizes: Sizes) -> None:
        if sizes.dim is not None:
            self._width_given = True
            self._widen(sizes.dim)

    @property
    def dim(self) -> int:
        """The width of keys; 0 until the first keys arrive."""
        return self.embedding.shape[1]

    @property
    def key_groups(self) -> int:
        return len(self.pointer)

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        self.group_of = group_of
        if key_groups != self.key_groups:
            if not self.index.is_meta and bool((self.index != EMPTY).any()):
                raise UserError(
                    f"the queue holds keys in {self.key_groups} groups of another method, and this one has "
                    f"{key_groups}; give it a queue of its own"
                )
            self.embedding = self.embedding.new_zeros(key_groups * self.size, self.dim)
            index = filled(EMPTY, key_groups * self.size).to(self.index.device)
            self.index = index if self.dim == UNKNOWN_WIDTH else index.contiguous()
            self.pointer = self.pointer.new_zeros(key_groups)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state.get(f"{prefix}embedding")
        if stored is not None and self.dim == UNKNOWN_WIDTH:
            self._widen(stored.shape[1])
        super()._load_from_state_dict(state, prefix, *rest)

    def prefill_size(self) -> int:
        return self.size

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        embedding, ids = self._of(self.group_of(key))
        return Candidates(self._scored(embedding, keys.get(key)), ids)

    def _of(self, group: int) -> tuple[Tensor, Tensor]:
        places = slice(group * self.size, (group + 1) * self.size)
        return self.embedding[places], self.index[places]

    @torch.no_grad()
    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        for view in sorted(keys):
            self._push(self.group_of(view), *rows_of(keys[view], index))

    def _push(self, group: int, keys: Tensor, index: Tensor) -> None:
        count = len(keys)
        self._check_room(count)
        if not self._fits(keys):
            self._widen(keys.shape[1])
        places = (self.pointer[group] + torch.arange(count, device=self.pointer.device)) % self.size
        embedding, ids = self._of(group)
        embedding[places] = keys.to(embedding.dtype)
        ids[places] = index
        self.pointer[group] = (self.pointer[group] + count) % self.size

    def _check_room(self, count: int, views: int = 1) -> None:
        if count * views > self.size:
            views_clause = f" in {views} views" if views > 1 else ""
            raise UserError(
                f"Queue(size={self.size}) is smaller than the batch of {count}{views_clause}: a step would "
                "overwrite its own negatives; raise negatives.size or lower batch_size"
            )

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        self._check_room(batch_size * keys_per_instance, key_views)
        reason = "queued keys were embedded by earlier networks than the positive"
        return NegativeSampling(batch_size, self.size, exchangeable=False, reason=reason)


TILE = 2**22  # similarities held at once


class Support(nn.Module, AbstractNegatives):
    """Every key stands for the row of a support queue that is nearest to it: an anchor's positive is the
    nearest row to its own key, its negatives are the nearest rows to the other keys of the batch (Dwibedi et
    al. 2021, sec. 3.2; of its two terms the one that sums over neighbours).

    The queue holds the last `size` keys of one view. While it is empty a key stands for itself.
    """

    display_name = "the neighbours of the batch"
    equation = (
        "nearest(v) of the other instances of the batch, nearest(v) that of the last {size} keys which is "
        "nearest to v; v+ is "
        "nearest(v) of the own key"
    )

    def __init__(self, size: int = 4096, *, dim: int | None = None) -> None:
        super().__init__()
        self.queue, self.batch = Queue(size, dim=dim), InBatch("one")

    def meet(self, sizes: Sizes) -> None:
        self.queue.meet(sizes)

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        self.queue.setup(key_groups, group_of, prepare)

    def prefill_size(self) -> int:
        return self.queue.prefill_size()

    def positive(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Tensor:
        return self.nearest(keys[key], key)

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        return Candidates(*rows_of(self.nearest(keys[key], key), index))

    @torch.no_grad()
    def nearest(self, keys: Float[Tensor, "*row dim"], key: int) -> Float[Tensor, "*row dim"]:
        """The row at the least distance from each key; of rows equally near the first."""
        stored = self.queue.candidates({key: keys}, torch.empty(0), key)
        rows = stored.embedding[stored.index != EMPTY]
        if not len(rows):
            return keys.detach()
        flat = keys.detach().reshape(-1, keys.shape[-1]).to(rows.dtype)
        # |z - q|^2 = |z|^2 - 2 (z.q - |q|^2 / 2): the first term is the same for all rows
        half = rows.square().sum(dim=1) / 2
        places = [(part @ rows.T - half).argmax(dim=1) for part in flat.split(max(1, TILE // len(rows)))]
        return rows[torch.cat(places)].to(keys.dtype).reshape(keys.shape)

    @torch.no_grad()
    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        first: dict[int, int] = {}
        for key in sorted(keys):
            first.setdefault(self.queue.group_of(key), key)
        self.queue.advance({key: keys[key] for key in first.values()}, index, progress)

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        self.queue.sampling(batch_size, 1, keys_per_instance)  # raises if the queue is too small
        # what all keys alike stand for is a function of each, so the others stay draws of one distribution,
        # and I(u; nearest(v)) <= I(u; v): docs/certificates.md
        in_batch = self.batch.sampling(batch_size, 1, keys_per_instance, same_instance_negatives)
        return replace(in_batch, positive_is_key=False)
