"""`memory=` and `encode_chunk=`: chunks are chosen for the memory limit, and invalid values are refused."""

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.config.resolving import resolve
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
        session.settings = session.settings.model_copy(update={"memory": memory_held()})
        to_come = -(_budget(session, pixels) or 0)
        room = to_come + fits * instance_bytes + instance_bytes // 2
        session.settings = session.settings.model_copy(update={"memory": memory_held() + room})
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
