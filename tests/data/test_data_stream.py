"""The stream's laws: what a step sees depends on the seed and the step, and on nothing else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.randomness import order, uniforms
from nearfar.core.types import Batch, Pixels
from nearfar.data import Stream, open_data, plain_batches
from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.system.prefetch import prefetch


def numbered(count: int) -> DataSet:
    """Image i has i as its pixels, so that a batch shows which images it was made of."""
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    return open_data(pixels)


def views(pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Two noisy copies: the pixel value plus this image's own randomness."""
    value = pixels.data.transpose(0, 3, 1, 2).astype(np.float64)
    return tuple(
        torch.from_numpy(value + uniforms(seed, epoch, index, view, 4).reshape(-1, 1, 2, 2))
        for view in (0, 1)
    )


def joined(batches: Iterator[Batch]) -> tuple[torch.Tensor, ...]:
    collected = list(batches)
    return (
        torch.cat([b.index for b in collected]),
        *(torch.cat([b.views[v] for b in collected]) for v in (0, 1)),
    )


def same(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_steps_walk_through_each_epochs_order() -> None:
    images = numbered(23)
    stream = Stream(images, views, 5, seed=3)
    assert stream.steps_per_epoch == 4
    indices = [batch.index.numpy() for batch in stream.batches(0, 8)]
    np.testing.assert_array_equal(np.concatenate(indices[:4]), order(3, 0, 23)[:20])
    np.testing.assert_array_equal(np.concatenate(indices[4:]), order(3, 1, 23)[:20])


@given(st.integers(1, 255), st.integers(1, 300))
@settings(deadline=None, max_examples=30)
def test_a_sample_is_distinct_rising_and_repeatable(size: int, count: int) -> None:
    rows = numbered(size).sample(0, 0, count)
    assert len(rows) == min(size, count)
    assert (np.diff(rows) > 0).all()
    assert ((rows >= 0) & (rows < size)).all()
    np.testing.assert_array_equal(rows, numbered(size).sample(0, 0, count))


def test_views_are_of_the_images_the_index_names() -> None:
    for batch in Stream(numbered(30), views, 7, seed=0).batches(0, 9):
        assert torch.equal(batch.views[0].floor()[:, 0, 0, 0].long(), batch.index)
        assert batch.index.dtype == torch.int64


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 4), st.integers(0, 2**63))
@settings(deadline=None, max_examples=40)
def test_resuming_anywhere_equals_never_stopping(first: int, more: int, workers: int, seed: int) -> None:
    stream = Stream(numbered(23), views, 5, seed, workers=workers)
    full = list(Stream(numbered(23), views, 5, seed, workers=0).batches(0, first + more))
    resumed = list(stream.batches(first, first + more))
    assert len(resumed) == more
    for ours, theirs in zip(full[first:], resumed, strict=True):
        assert same((ours.index, *ours.views), (theirs.index, *theirs.views))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_ranks_together_see_what_one_process_sees(world: int) -> None:
    images = numbered(40)
    single = list(Stream(images, views, 12, seed=1).batches(2, 9))
    ranks = [Stream(images, views, 12, seed=1, rank=rank, world=world).batches(2, 9) for rank in range(world)]
    for batch in single:
        assert same((batch.index, *batch.views), joined(next(rank) for rank in ranks))
    for rank in ranks:
        assert next(rank, None) is None


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_workers_change_nothing(workers: int) -> None:
    reference = joined(Stream(numbered(50), views, 8, seed=9, workers=0).batches(0, 30))
    assert same(joined(Stream(numbered(50), views, 8, seed=9, workers=workers).batches(0, 30)), reference)


@pytest.mark.parametrize("batch_size", [1, 5, 8, 24])
def test_batch_size_does_not_change_an_images_views(batch_size: int) -> None:
    images = numbered(24)

    def epoch_views(size: int) -> tuple[torch.Tensor, ...]:
        stream = Stream(images, views, size, seed=4)
        per_epoch = stream.steps_per_epoch
        return joined(stream.batches(2 * per_epoch, 3 * per_epoch))

    index, one, two = epoch_views(batch_size)
    _, *full = epoch_views(24)
    assert torch.equal(index, epoch_views(24)[0][: len(index)])
    assert torch.equal(one, full[0][: len(index)])
    assert torch.equal(two, full[1][: len(index)])


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 23, 100])
def test_plain_batches_visit_everything_in_order(batch_size: int, workers: int) -> None:
    index, one, _ = joined(plain_batches(numbered(23), views, batch_size, workers=workers))
    assert index.tolist() == list(range(23))
    expected = views(numbered(23).load(np.arange(23)), 0, 0, np.arange(23))[0]
    assert torch.equal(one, expected)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nearfar-data")]


def test_closing_early_leaves_no_thread() -> None:
    batches = Stream(numbered(20), views, 4, seed=0, workers=3).batches(0, 10_000)
    next(batches)
    assert threads()
    batches.close()
    assert not threads()


def test_prefetch_starts_at_most_the_promised_number() -> None:
    started: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            started.append(item)
            yield item

    results = prefetch(lambda item: -item, items(), workers=3)
    for consumed in range(1, 96):
        assert next(results) == 1 - consumed
        assert len(started) <= consumed + 3 + 2
    assert list(results) == [-item for item in range(95, 100)]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_workers_exception_reaches_the_consumer_in_its_place(workers: int) -> None:
    def failing(pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[torch.Tensor, ...]:
        if epoch == 2:
            raise ZeroDivisionError("in a worker")
        return views(pixels, seed, epoch, index)

    stream = Stream(numbered(20), failing, 4, seed=0, workers=workers)
    batches = stream.batches(0, 100)
    for _ in range(2 * stream.steps_per_epoch):
        next(batches)
    with pytest.raises(ZeroDivisionError, match="in a worker"):
        next(batches)
    assert not threads()


def test_invalid_sizes_are_refused() -> None:
    images = numbered(10)
    for size in (0, -1, 11):
        with pytest.raises(UserError, match=f"batch_size is {size}.*10 images"):
            Stream(images, views, size, seed=0)
    with pytest.raises(UserError, match=r"batch_size is 9.*multiple of 2"):
        Stream(images, views, 9, seed=0, world=2)
    with pytest.raises(UserError, match="rank is 2"):
        Stream(images, views, 8, seed=0, rank=2, world=2)
    with pytest.raises(UserError, match="workers was -1"):
        Stream(images, views, 8, seed=0, workers=-1)
    with pytest.raises(UserError, match="batch_size was 0"):
        plain_batches(images, views, 0)


class StandInStream:
    """A CUDA stream that notes the order of events: there is no GPU here, so only the calls are checked."""

    device = torch.device("cpu")

    def __init__(self, *_: object) -> None:
        self.waits: list[int] = []
        self.recorded = 0

    def record_event(self) -> int:
        self.recorded += 1
        return self.recorded

    def wait_event(self, event: int) -> None:
        self.waits.append(event)


def test_batches_for_a_gpu_are_made_on_a_stream_that_training_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every tensor comes from pinned memory, training waits for the event of each batch before it gets it, and no tensor's
    memory is reused before training is done with it. The numbers are those without a GPU."""
    training = StandInStream()
    pinned: list[torch.Tensor] = []
    used: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.cuda, "Stream", StandInStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: training)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: used.append(tensor))
    stream = Stream(numbered(20), views, 4, seed=0, workers=0, device=torch.device("cuda"))
    plain = Stream(numbered(20), views, 4, seed=0, workers=0)
    batches = stream.batches(0, 3)
    for k, expected in enumerate(plain.batches(0, 3)):
        batch = next(batches)
        assert training.waits == list(range(1, k + 2))
        assert torch.equal(batch.index, expected.index)
        assert all(torch.equal(*pair) for pair in zip(batch.views, expected.views, strict=True))
    batches.close()
    assert len(pinned) == len(used) > 0


class RecordedStream:
    """Stands for a CUDA stream, of which a machine without a GPU has none: it records what is ordered on it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.copies, self.held = device, 0, 0
        self.awaited: list[Any] = []

    def record_event(self) -> int:
        return self.copies

    def wait_event(self, copies: int) -> None:
        self.awaited.append(copies)


def test_batches_for_a_gpu_are_copied_from_pinned_memory_on_a_stream_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every copy is asynchronous, from pinned memory, and on the side stream. The training stream waits for the event after
    a batch's copies before the batch is handed out, and holds its memory. Numbers are those of a CPU."""
    device, streams, pinned = torch.device("cuda", 0), [], {}
    active = threading.local()

    def stream(device: torch.device) -> RecordedStream:
        streams.append(RecordedStream(device))
        return streams[-1]

    @contextmanager
    def within(stream: RecordedStream) -> Iterator[None]:
        active.stream = stream
        yield
        del active.stream

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        pinned[id(copy)] = copy
        return copy

    to = torch.Tensor.to

    def copy(tensor: torch.Tensor, target: Any, *rest: Any, non_blocking: bool = False) -> torch.Tensor:
        if target != device:
            return to(tensor, target, *rest)
        assert non_blocking, "the host waits for the copy"
        active.stream.copies += 1  # outside the side stream there is none
        return tensor.clone()

    training = RecordedStream(device)

    def hold(tensor: torch.Tensor, stream: RecordedStream) -> None:
        stream.held += 1

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: training)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pinned.get(id(tensor)) is tensor)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", hold)
    per_batch = 3  # two views and the index
    batches = []
    for place, batch in enumerate(
        Stream(numbered(20), views, 5, 0, workers=1, device=device).batches(0, 8), 1
    ):
        assert training.awaited == [per_batch * number for number in range(1, place + 1)]
        assert training.held == per_batch * place
        batches.append(batch)
    assert [side.copies for side in streams] == [8 * per_batch]
    assert [batch.total for batch in batches] == [5] * 8, (
        "ranks would exchange their numbers of rows at every step"
    )
    assert same(joined(iter(batches)), joined(Stream(numbered(20), views, 5, 0).batches(0, 8)))
