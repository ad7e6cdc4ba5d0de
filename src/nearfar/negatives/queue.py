"""The keys of recent steps, first in, first out (MoCo, 000 Eq. 35)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.negatives.fresh import Fresh, rows_of
from nearfar.schedules import Progress
from nearfar.scores import EMPTY, Candidates
from nearfar.types import Circumstances

LARGEST = 2**26  # keys; of 128 numbers each that is 32 GiB


class Queue(Fresh, nn.Module):
    """The last `size` keys. Overflow wraps; a step's own keys enter only after the step that made them."""

    embedding: Tensor
    index: Tensor
    pointer: Tensor

    def __init__(self, size: int = 4096, *, dim: int = 128) -> None:
        super().__init__()
        if not 1 <= size <= LARGEST:
            raise UserError(f"negatives.size was {size}; a queue has from 1 to {LARGEST} places")
        self.register_buffer("embedding", torch.zeros(size, dim))
        self.register_buffer("index", torch.full((size,), EMPTY))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @property
    def size(self) -> int:
        return len(self.index)

    def wanted(self) -> int:
        return self.size

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Candidates:
        return Candidates(self.embedding, self.index)

    @torch.no_grad()
    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        for view in sorted(keys):
            self._push(*rows_of(keys[view], index))

    def _push(self, keys: Tensor, index: Tensor) -> None:
        count = len(keys)
        self._check_room(count)
        places = (self.pointer + torch.arange(count, device=self.pointer.device)) % self.size
        self.embedding[places] = keys.to(self.embedding.dtype)
        self.index[places] = index
        self.pointer.add_(count).remainder_(self.size)

    def _check_room(self, count: int) -> None:
        if count > self.size:
            raise UserError(
                f"Queue(size={self.size}) is smaller than the batch of {count}: a step would overwrite its own "
                "negatives; raise negatives.size or lower batch_size"
            )

    def circumstances(self, batch_size: int, key_views: int, places: int = 1, own: int = 0) -> Circumstances:
        self._check_room(batch_size * places)
        why = "queued keys were embedded by earlier networks than the positive"
        return Circumstances(batch_size, self.size, exchangeable=False, otherwise=why)
