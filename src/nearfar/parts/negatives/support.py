"""Nearest neighbours as positives (NNCLR, Dwibedi et al. 2021)."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.schedules import Progress
from nearfar.core.scores import EMPTY, Candidates
from nearfar.core.types import NegativeSampling
from nearfar.parts.negatives.batch import InBatch
from nearfar.parts.negatives.fresh import rows_of
from nearfar.parts.negatives.queue import Queue

TILE = 2**22  # similarities held at once


class Support(nn.Module, AbstractNegatives):
    """Every key stands for the row of a support queue that is nearest to it: an anchor's positive is the nearest row to its own
    key, its negatives are the nearest rows to the other keys of the batch (Dwibedi et al. 2021, sec. 3.2; of its two terms the one
    that sums over neighbours).

    The queue holds the last `size` keys of one view. While it is empty a key stands for itself.
    """

    display_name = "the neighbours of the batch"
    equation = (
        "nearest(v) of the other instances of the batch, nearest(v) that of the last {size} keys which is nearest to v; v+ is "
        "nearest(v) of the own key"
    )

    def __init__(self, size: int = 4096, *, dim: int | None = None) -> None:
        super().__init__()
        self.queue, self.others = Queue(size, dim=dim), InBatch("one")

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        self.queue.setup(key_groups, group_of, prepare)

    def prefill_size(self) -> int:
        return self.queue.prefill_size()

    def positive(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Tensor:
        return self.nearest(keys[which], which)

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Candidates:
        return Candidates(*rows_of(self.nearest(keys[which], which), index))

    @torch.no_grad()
    def nearest(self, keys: Float[Tensor, "*row dim"], which: int) -> Float[Tensor, "*row dim"]:
        """The row at the least distance from each key; of rows equally near the first."""
        held = self.queue.candidates({which: keys}, torch.empty(0), which)
        rows = held.embedding[held.index != EMPTY]
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
        self.queue.sampling(batch_size, 1, keys_per_instance)  # says so if the queue is too small
        # what all keys alike stand for is a function of each, so the others stay draws of one distribution, and
        # I(u; nearest(v)) <= I(u; v): docs/certificates.md
        return self.others.sampling(batch_size, 1, keys_per_instance, same_instance_negatives)
