"""`memory=` and `encode_chunk=`: parts of a batch are chosen for what a process may take, and what makes no sense is refused."""

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


def chosen(**settings: Any) -> tuple[int | None, str | None]:
    return choose_chunk(*session_and_sample(**settings))


def test_parts_are_as_large_as_what_is_left_holds() -> None:
    """Beyond what the process has and what is still to come, room for so many and a half instances is room for so many."""
    session, sample = session_and_sample()
    each = ceil(WORKSPACE * bytes_per_instance(session, sample))
    pixels = size_of(list(sample.views)) * 20 // len(sample.index)
    for fits in (12, 5):
        session.settings = session.settings.model_copy(update={"memory": memory_held()})
        to_come = -(_budget(session, pixels) or 0)
        room = to_come + fits * each + each // 2
        session.settings = session.settings.model_copy(update={"memory": memory_held() + room})
        size, said = choose_chunk(session, sample)
        assert size == fits
        assert f"encode_chunk={fits}: {fits} of the 20 instances of a batch are encoded at a time" in str(
            said
        )
    assert chosen(memory=2**40) == (None, None)
    with pytest.raises(UserError, match="without encoding anything the run needs"):
        chosen(memory=1000)


def test_one_of_the_two_decides() -> None:
    assert chosen(encode_chunk=5) == (5, None)
    with pytest.raises(UserError, match="with encode_chunk=5; set one of them"):
        chosen(encode_chunk=5, memory=2**33)
    assert "memory has no effect on 2 instances" in str(chosen(memory=2**33, batch_size=2)[1])


def test_a_row_alone_has_no_batch_statistics(tmp_path: Path) -> None:
    for chunk, batch in ((1, 20), (2, 3)):
        with pytest.raises(UserError, match=f"encode_chunk was {chunk} for {batch} instances"):
            chosen(encode_chunk=chunk, batch_size=batch)
    with pytest.raises(UserError, match="batch norm needs several"):
        nf.pretrain("moco", IMAGES, out=tmp_path / "run", epochs=1, batch_size=20, encode_chunk=1, quiet=True)
