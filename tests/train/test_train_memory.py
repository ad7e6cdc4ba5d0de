"""`memory=` and `encode_chunk=`: chunks are chosen for the memory limit, and invalid values are refused."""

import weakref
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.core import scores
from nearfar.core.types import Batch
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.system.machine import memory_held
from nearfar.train.memory import (
    PROBED_INSTANCES,
    WORKSPACE,
    _budget,
    bytes_per_instance,
    choose_chunk,
    estimate_needs,
    score_bytes,
    size_of,
)
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)


def session_and_sample(**settings: Any) -> tuple[Session, Batch]:
    data = open_data(IMAGES)
    resolved = resolve(
        "simclr",
        "noise",
        {"backbone": "resnet8-w16", "batch_size": 20, "epochs": 1, "workers": 0, **settings},
    )
    description = describe_data(data, resolved, None, False)
    session = Session(resolved, data, description, torch.device("cpu"), torch.float32)
    return session, session.stream.sample(PROBED_INSTANCES)


def chunk_for(**settings: Any) -> tuple[int | None, str | None]:
    return choose_chunk(*session_and_sample(**settings))


def test_chunks_are_as_large_as_the_remaining_memory() -> None:
    """Beyond what the process has and still needs, room for 3.5 instances is room for 3."""
    session, sample = session_and_sample()
    instance_bytes = ceil(WORKSPACE * bytes_per_instance(session, sample))
    pixels = size_of(list(sample.views)) * 20 // len(sample.index)
    for fits in (12, 5):
        session.settings = replace(session.settings, memory=memory_held())
        to_come = -(_budget(session, pixels) or 0)
        room = to_come + fits * instance_bytes + instance_bytes // 2
        session.settings = replace(session.settings, memory=memory_held() + room)
        size, message = choose_chunk(session, sample)
        assert size == fits
        assert f"encode_chunk={fits}: {fits} of the 20 instances of a batch are encoded at a time" in str(
            message
        )
    assert chunk_for(memory=2**40) == (None, None)
    with pytest.raises(UserError, match="without encoding anything the run needs"):
        chunk_for(memory=1000)


def test_only_one_of_memory_and_encode_chunk_is_used() -> None:
    assert chunk_for(encode_chunk=5) == (5, None)
    with pytest.raises(UserError, match="with encode_chunk=5; set one of them"):
        chunk_for(encode_chunk=5, memory=2**33)
    assert "memory has no effect on 2 instances" in str(chunk_for(memory=2**33, batch_size=2)[1])


def test_a_single_row_has_no_batch_statistics(tmp_path: Path) -> None:
    for chunk, batch in ((1, 20), (2, 3)):
        with pytest.raises(UserError, match=f"encode_chunk was {chunk} for {batch} instances"):
            chunk_for(encode_chunk=chunk, batch_size=batch)
    with pytest.raises(UserError, match="batch norm needs several"):
        nf.pretrain("moco", IMAGES, out=tmp_path / "run", epochs=1, batch_size=20, encode_chunk=1, quiet=True)


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made inside hold at one moment. Their numbers are never computed."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(results):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in self._storages:
                self._track(leaf.untyped_storage())
        return results

    def _track(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), id(storage)
        self._storages.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def free() -> None:
            self._storages.discard(key)
            self.live -= size

        weakref.finalize(storage, free)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("count", [512, 2048])
def test_the_scores_of_a_step_are_counted(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two matrices of n x 2n scores of SimCLR, held as on a GPU. What is counted is the peak of fake tensors, to a fifth of
    it."""
    monkeypatch.setattr(scores, "MAX_SCORES_CPU", scores.MAX_SCORES_GPU)
    monkeypatch.setattr("nearfar.core.encoding._edge_bytes", lambda leaf: b"")
    cosine, everyone = nf.Cosine(0.1), nf.Everyone()
    method = nf.Method(nf.Shared(torch.nn.Identity()), cosine, nf.InBatch(), everyone, nf.InfoNCE())
    with FakeTensorMode():
        views = tuple(torch.randn(count, 8, requires_grad=True) for _ in range(2))
        batch = Batch(views, torch.arange(count))
        with PeakBytes() as peak:
            method(batch).loss.backward()
    expected = score_bytes(method, count, 1, 2, torch.device("cpu"))
    assert peak.peak < expected < 1.2 * peak.peak


def test_a_gpu_holds_no_large_matrix_of_scores() -> None:
    """8,192 anchors of a rank against 131,072 keys: 4.3 GB as a matrix, on a device that stands for a GPU."""
    with FakeTensorMode():
        anchors, keys = (torch.randn(count, 8, device="cuda") for count in (8_192, 131_072))
        index, ids = (torch.arange(count, device="cuda") for count in (8_192, 131_072))
        with PeakBytes() as peak:
            large = scores.inner_product_negatives(anchors, index, scores.Candidates(keys, ids))
            large.mean_of(torch.exp)
        small = scores.inner_product_negatives(
            anchors[:64], index[:64], scores.Candidates(keys[:64], ids[:64])
        )
    assert peak.peak < 2**30
    assert isinstance(large, scores.Streamed)
    assert isinstance(small, scores.Dense)


def test_large_batches_are_counted_by_tile() -> None:
    """A global batch of 65,536 on 8 GPUs: a matrix would have 10^9 scores for each pair; a tile has 2^25."""
    cosine, everyone = nf.Cosine(0.1), nf.Everyone()
    method = nf.Method(nf.Shared(torch.nn.Identity()), cosine, nf.InBatch(), everyone, nf.InfoNCE())
    gpu = torch.device("cuda")
    assert score_bytes(method, 65_536, 8, 2, gpu) < 2**30
    ring = method.replace(selection=nf.Ring(0.5, 0.9))
    assert score_bytes(ring, 65_536, 8, 2, gpu) < 2**30
    assert score_bytes(ring, 8_192, 8, 2, gpu) > 2 * 4 * 1_024 * 16_382
    distances = method.replace(critic=nf.Distance())
    assert score_bytes(distances, 65_536, 8, 2, gpu) > 2 * 4 * 8_192 * 131_070


def test_the_estimate_grows_with_the_scores(tmp_path: Path) -> None:
    session, sample = session_and_sample()
    before = estimate_needs(session, sample, tmp_path).memory
    session.method.negatives = nf.Queue(2**22, dim=1)  # 50 MB, which are less than its scores
    assert estimate_needs(session, sample, tmp_path).memory - before > 4 * 32 * 2**21


def test_chunks_leave_room_for_the_scores() -> None:
    session, sample = session_and_sample(memory=2**40)
    pixels = size_of(list(sample.views))
    room = _budget(session, pixels)
    session.method.negatives = nf.Queue(2**22, dim=1)
    less = _budget(session, pixels)
    assert room is not None
    assert less is not None
    # memory in use may have grown by the queue itself: 2^22 keys and their identities
    scores_of_step = score_bytes(session.method, 20, 1, 2, torch.device("cpu"))
    assert scores_of_step > 10 * 12 * 2**22
    assert room - less > 0.8 * scores_of_step
