"""Checkpoints by time, written while training continues: they do not change the trajectory."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.run import checkpoints
from nearfar.train.pretrain import pretrain
from nearfar.train.saving import CheckpointWriter, copy_tensors

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 32,
    "epochs": 2,
    "probe_every": 0,
    "workers": 0,
    "held_out": 0.0,
    "keep": 50,
}


def digits() -> Any:
    return open_data("digits").subset(np.arange(160))


def test_checkpoints_by_time_change_only_their_number(tmp_path: Path) -> None:
    by_steps = pretrain("moco", digits(), tmp_path / "a", quiet=True, config=SMALL)
    often = pretrain(
        "moco", digits(), tmp_path / "b", quiet=True, config={**SMALL, "checkpoint_minutes": 1e-9}
    )
    assert [path.name for path in sorted((tmp_path / "a/ckpt").iterdir())] == [
        "step-00000000",
        "step-00000010",
    ]
    assert len(list((tmp_path / "b/ckpt").iterdir())) == 11  # each step's, and each is valid
    assert all(checkpoints.valid(path) for path in (tmp_path / "b/ckpt").iterdir())
    first, second = (checkpoints.load(run.checkpoint)[0] for run in (by_steps, often))
    assert all(torch.equal(first[name], second[name]) for name in first)
    # resuming from any of them ends in the same bits: what was written is the state of its step
    for path in sorted((tmp_path / "b/ckpt").iterdir())[5:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    resumed = pretrain("moco", digits(), tmp_path / "b", quiet=True, config=SMALL)
    assert resumed.facts["step"] == 10
    assert all(
        torch.equal(first[name], tensor) for name, tensor in checkpoints.load(resumed.checkpoint)[0].items()
    )


def test_a_failed_background_write_ends_the_run_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise UserError("no space left")

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(UserError, match="no space left"):
        pretrain("moco", digits(), tmp_path, quiet=True, config=SMALL)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nearfar-save")]


def test_a_copied_state_does_not_change() -> None:
    tensor = torch.arange(4.0)
    copied = copy_tensors({"a": tensor})
    tensor += 1
    assert copied["a"].tolist() == [0, 1, 2, 3]


def test_one_write_at_a_time_in_order() -> None:
    written: list[int] = []
    with CheckpointWriter() as saving:
        for number in range(20):
            saving.submit(partial(written.append, number))
        saving.wait()
        assert written == list(range(20))
        assert saving.minutes() < 1


def test_bad_checkpoint_minutes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "simclr", "digits", "--out", str(tmp_path), "checkpoint_minutes=0"]) == 2
    assert "checkpoint_minutes" in capsys.readouterr().err
