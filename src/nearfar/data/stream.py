"""A data set as an endless, resumable stream of batches.

What step s sees is a pure function of (seed, s): its epoch's order is `data.order(seed, epoch)`, and the
views of image i in an epoch are a function of (seed, epoch, i) alone. So a run resumes with one integer, and
neither the number of workers nor the number of ranks changes what is seen: a rank takes its part of each
global batch, so that together they see every row of the epoch's order once.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nearfar.core.abstract import AbstractViews
from nearfar.core.types import Batch
from nearfar.errors import UserError, check_whole, counted
from nearfar.modalities import DataSet
from nearfar.modalities.base import MakeViews
from nearfar.system.prefetch import prefetch


class Stream:
    """Batches of views for training. `batch_size` is global; each of `world` ranks gets its contiguous
    part.

    For a CUDA `device`, batches are made and copied there by the background threads on their own stream,
    from pinned memory, while the device trains on its default stream.
    """

    def __init__(
        self,
        data: DataSet,
        views: MakeViews,
        batch_size: int,
        seed: int,
        *,
        workers: int = 2,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
    ) -> None:
        if len(data) < data.min_instances:
            raise UserError(
                f"data {data.name!r}: training needs at least {data.min_instances} {data.unit}; found {len(data)}."
            )
        if not 1 <= batch_size <= len(data):
            raise UserError(
                f"batch_size is {batch_size}; data {data.name!r} have {counted(len(data), data.unit)} to train on, "
                f"so expected {data.min_instances} to {len(data)}."
            )
        if batch_size % world:
            raise UserError(
                f"batch_size is {batch_size}; with {world} ranks it must be a multiple of {world}."
            )
        if not 0 <= rank < world:
            raise UserError(f"rank is {rank}; with {world} ranks expected 0 to {world - 1}.")
        check_whole("workers", workers, 0)
        self._data, self._views, self._seed = data, views, seed
        serial = isinstance(views, AbstractViews) and not views.thread_safe
        self._batch_size, self._workers = batch_size, 0 if serial else workers
        is_cuda = device is not None and device.type == "cuda"
        self._side_stream = torch.cuda.Stream(device) if is_cuda else None
        self._part = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self._order = lru_cache(maxsize=2)(lambda epoch: data.order(seed, epoch))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch; the rest of its order is not visited."""
        return len(self._data) // self._batch_size

    def index(self, step: int) -> tuple[int, Int64[np.ndarray, "instance"]]:
        """(epoch, this rank's row numbers) of a global step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self._order(epoch)[place * self._batch_size : (place + 1) * self._batch_size]
        return epoch, rows[self._part].astype(np.int64)

    def batches(self, first: int, last: int) -> Generator[Batch]:
        """The batches of global steps first, …, last - 1, in order, made ahead by background threads."""
        if self._side_stream is None:
            return prefetch(self._batch, range(first, last), self._workers)
        return self._received(prefetch(self._device_batch, range(first, last), self._workers))

    def _device_batch(self, step: int) -> tuple[Batch, torch.cuda.Event]:
        """A batch on the device, and the event after which it is complete."""
        assert self._side_stream is not None
        with torch.cuda.stream(self._side_stream):
            batch = self._batch(step).map(_pinned).to(self._side_stream.device)
            return batch, self._side_stream.record_event()

    @staticmethod
    def _received(batches: Generator[tuple[Batch, torch.cuda.Event]]) -> Generator[Batch]:
        """Batches for the current stream, which waits for each and holds their memory."""
        try:
            for batch, complete in batches:
                current = torch.cuda.current_stream(batch.index.device)
                current.wait_event(complete)
                for tensor in tree_leaves((batch.views, batch.index, batch.labels, dict(batch.groups))):
                    if tensor is not None:
                        tensor.record_stream(current)
                yield batch
        finally:
            batches.close()

    def sample(self, count: int) -> Batch:
        """Some instances as training shows them."""
        return _make_batch(self._data, self._views, self._seed, 0, self.index(0)[1][:count])

    def _batch(self, step: int) -> Batch:
        epoch, rows = self.index(step)
        batch = _make_batch(self._data, self._views, self._seed, epoch, rows)
        return replace(batch, total=self._batch_size)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def plain_batches(data: DataSet, views: MakeViews, batch_size: int, *, workers: int = 2) -> Iterator[Batch]:
    """One pass over the whole set in its own order, nothing dropped: for embedding."""
    check_whole("batch_size", batch_size, 1)
    check_whole("workers", workers, 0)
    starts = range(0, len(data), batch_size)
    return prefetch(
        lambda start: _make_batch(data, views, 0, 0, np.arange(start, min(start + batch_size, len(data)))),
        starts,
        workers,
    )


def _make_batch(data: DataSet, views: MakeViews, seed: int, epoch: int, rows: np.ndarray) -> Batch:
    loaded, rows = data.load_usable(rows)
    return batch_of(data, views(loaded, seed, epoch, rows), rows)


def batch_of(data: DataSet, views: tuple[Tensor, ...], rows: Int64[np.ndarray, "instance"]) -> Batch:
    """Views of these rows, with their labels and groups."""
    labels = None if data.labels is None else torch.from_numpy(data.labels[rows])
    groups = {name: torch.from_numpy(numbers[rows]) for name, numbers in data.groups.items()}
    return Batch(views, torch.from_numpy(rows), labels, groups)
