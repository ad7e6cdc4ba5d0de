"""Estimates before a run equal what it uses: memory, disk for checkpoints, time of probes."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.cli import main
from nearfar.config.reading import memory_bytes, seconds
from nearfar.config.resolving import read_words, resolve
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.run import checkpoints
from nearfar.train.hooks import ProbePace
from nearfar.train.memory import checkpoint_size, estimate_needs
from nearfar.train.pretrain import pretrain
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from tests.helpers import run_python

SMALL = ["backbone=resnet8-w16", "epochs=1", "workers=0", "held_out=0", "probe_every=0", "precision=fp32"]


def digits() -> Any:
    return open_data("digits").subset(np.arange(320))


def new_session(recipe: str, *words: str) -> Session:
    settings = resolve(recipe, "digits", read_words([*SMALL, *words]))
    description = describe_data(digits(), settings, None, False)
    return Session(settings, digits(), description, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("recipe", "optimizer"), [("moco", "adamw"), ("instdisc", "lars"), ("simclr", "sgd"), ("simclr", "muon")]
)
def test_a_checkpoint_is_not_larger_than_estimated(recipe: str, optimizer: str, tmp_path: Path) -> None:
    words = ["batch_size=64", f"optimizer={optimizer}", *(["negatives.size=512"] if recipe == "moco" else [])]
    estimate = checkpoint_size(new_session(recipe, *words))
    run = pretrain(recipe, digits(), tmp_path, quiet=True, config=read_words([*SMALL, *words]))
    tensors = checkpoints.load(run.checkpoint)[0].values()
    actual = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert actual <= estimate <= 3 * actual
    if optimizer == "adamw":  # whose two moments the estimate counts: the rest are its counts of steps
        assert estimate == pytest.approx(actual, rel=0.01)


def test_memory_grows_with_the_instances_encoded_at_once() -> None:
    """Activations are proportional to the instances of a pass: half the batch at a time takes half of
    them."""
    session = new_session("simclr", "batch_size=128")
    sample = session.stream.sample(4)
    full = estimate_needs(session, sample, Path())
    session.method.encoding = type(session.method.encoding)(chunk=64)
    half = estimate_needs(session, sample, Path())
    session.method.encoding = type(session.method.encoding)(chunk=1)
    one = estimate_needs(session, sample, Path())
    # the process itself holds a few pages more or less from one question to the next
    assert (half.memory - one.memory) / (full.memory - one.memory) == pytest.approx(63 / 127, abs=0.05)
    assert full.disk_free == pytest.approx(shutil.disk_usage(".").free, rel=0.2)


PEAK = """
import resource, sys
import nearfar as nf
from nearfar.data import open_data
import numpy as np
words = dict(backbone="resnet8-w16", epochs=1, workers=0, held_out=0, probe_every=0, precision="fp32")
words |= dict(batch_size=1024, image_size=32)
nf.pretrain("simclr", open_data("digits").subset(np.arange(1024)), sys.argv[1], **words)
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in KiB on Linux")
def test_estimated_memory_is_close_to_the_peak(tmp_path: Path) -> None:
    process = run_python("-c", PEAK, tmp_path)
    assert process.returncode == 0, process.stderr
    (line,) = [line for line in process.stderr.splitlines() if "estimated memory" in line]
    estimated = memory_bytes(" ".join(line.removeprefix("estimated memory ").split()[:2]))
    measured = int(process.stdout.splitlines()[-1])
    assert 0.5 < estimated / measured < 2, (line, measured)


def test_a_disk_without_room_for_one_checkpoint_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    words = ["pretrain", "simclr", "digits", "--out", str(tmp_path / "run"), "batch_size=256", *SMALL]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "the run writes 3 checkpoints of " in message
    assert "only 1 KB are free on its disk" in message
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_slow_probes_are_reported_once() -> None:
    pace = ProbePace()
    assert [pace.observe(30.0, 40.0 * (n + 1)) is not None for n in range(5)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    quick, rare = ProbePace(), ProbePace()
    assert not any(quick.observe(1.0, 2.0 * (n + 1)) for n in range(20))
    assert not any(rare.observe(100.0, 1000.0 * (n + 1)) for n in range(9))
    restored = ProbePace()
    for n in range(2):
        restored.observe(40.0, 50.0 * (n + 1))
    assert restored.observe(40.0, 150.0) == (
        "probes take 40 s each, 80 % of the time; probe_every is in epochs: raise it, or set "
        "probe_every=0 for none"
    )


@pytest.mark.parametrize("reader", [seconds, memory_bytes])
def test_numbers_beyond_any_machine_get_a_sentence(reader: Any) -> None:
    with pytest.raises(UserError, match="expected a number of"):
        reader("9" * 400)
