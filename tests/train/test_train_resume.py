"""A run that is killed, stopped or changed loses nothing saved and continues exactly."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.errors import Stopped, UserError
from nearfar.run import checkpoints
from nearfar.run.metrics import read_metrics
from nearfar.train.pretrain import pretrain
from tests.forked import PRELOADED, Forked, run_command
from tests.helpers import newest_tensors

SMALL = {
    "backbone": "resnet8-w16",
    "batch_size": 128,
    "epochs": 2,
    "checkpoint_every": 1,
    "probe_every": 0,
    "held_out": 0,
    "workers": 1,
    "views": {"crop_scale": [0.5, 1.0]},
}
# between them: queue, bank, momentum encoder, dropout
RUNS: dict[str, dict[str, Any]] = {
    "moco": {"encoders": {"dropout": 0.2}, "negatives": {"size": 512}},
    "instdisc": {
        "encoders": {"name": "momentum", "head": "mlp", "dropout": 0.2},
        "negatives": {"sample": 256},
    },
}


def train_small(recipe: str, out: str) -> None:
    torch.set_num_threads(1)
    pretrain(recipe, "digits", out, quiet=True, config={**SMALL, **RUNS[recipe]})


def logged_losses(out: Path) -> list[tuple[int, float]]:
    return [
        (row["step"], row["loss"]) for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RUNS)
def test_kills_at_random_moments_change_nothing(recipe: str, tmp_path: Path) -> None:
    """Real processes, real SIGKILL. Each child resumes from the last save; the end is bit-equal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def start(out: Path) -> Any:
        child = context.Process(target=train_small, args=(recipe, str(out)))
        child.start()
        return child

    start_time = time.monotonic()
    uninterrupted = start(tmp_path / "whole")
    uninterrupted.join()
    assert uninterrupted.exitcode == 0
    duration = time.monotonic() - start_time

    cut, choose, kills, reached = tmp_path / "cut", random.Random(recipe), 0, -1
    while kills < 6:
        child = start(cut)
        child.join(choose.uniform(0, 0.6 * duration))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        folders = sorted((cut / "ckpt").glob("step-*")) if (cut / "ckpt").exists() else []
        assert all(checkpoints.valid(folder) for folder in folders)
        newest = checkpoints.newest(cut / "ckpt")
        step = checkpoints.load(newest)[1]["step"] if newest else -1
        assert step >= reached
        reached = step
        if child.exitcode == 0:  # it got to the end: start over, so that every kill meets a run in progress
            assert logged_losses(cut) == logged_losses(tmp_path / "whole")
            cut, reached = tmp_path / f"cut-{kills}", -1
    last = start(cut)
    last.join()
    assert last.exitcode == 0
    assert logged_losses(cut) == logged_losses(tmp_path / "whole")
    expected, resumed = newest_tensors(tmp_path / "whole"), newest_tensors(cut)
    assert expected.keys() == resumed.keys()
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


def command(out: Path, *words: str) -> list[str]:
    start = ["pretrain", "simclr", "digits", "--out", str(out)]
    return [*start, "backbone=resnet8-w16", "batch_size=128", "probe_every=0", "held_out=0", *words]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_75_and_the_same_command_resumes(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = command(out, "epochs=15", "checkpoint_every=1000")  # long enough to be met at work on any machine
    child = Forked(*words)
    child.wait_until(lambda: read_metrics(out / "metrics.jsonl"))
    child.send_signal(number)
    assert child.wait() == 75, child.stderr
    assert f"stopped by {number.name} at step" in child.stderr
    stopped_at = checkpoints.load(checkpoints.newest(out / "ckpt"))[1]["step"]  # type: ignore[arg-type]
    assert 0 < stopped_at < 210
    process = run_command(*words)
    assert process.returncode == 0, process.stderr
    assert f"resuming from step {stopped_at}" in process.stderr
    assert "trained for 210 steps" in process.stdout


def test_max_time_stops_resumably(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"max_time of 0.001 s at step 1 of 14"):
        pretrain(
            "simclr", "digits", tmp_path / "run", quiet=True, config={**SMALL, "epochs": 1, "max_time": 0.001}
        )
    run = pretrain("simclr", "digits", tmp_path / "run", quiet=True, config={**SMALL, "epochs": 1})
    assert run.facts["step"] == 14


def test_changed_settings_stop_with_a_diff_unless_allowed(tmp_path: Path) -> None:
    settings = {**SMALL, "epochs": 1}
    pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    previous = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=r"epochs: 1, now 2; critic\.temperature: 0\.2, now 0\.5"):
        pretrain(
            "simclr", "digits", tmp_path, quiet=True, config={**settings, "epochs": 2, "temperature": 0.5}
        )
    assert (tmp_path / "config.yaml").read_bytes() == previous
    run = pretrain(
        "simclr", "digits", tmp_path, quiet=True, allow_change=True, config={**settings, "epochs": 2}
    )
    assert run.facts["step"] == 28
    changed = {**settings, "epochs": 2, "backbone": "resnet8-w32"}
    with pytest.raises(UserError, match="does not fit these settings"):
        pretrain("simclr", "digits", tmp_path, quiet=True, allow_change=True, config=changed)
    assert checkpoints.newest(tmp_path / "ckpt") is not None


def test_changed_data_are_refused(tmp_path: Path) -> None:
    from nearfar.data import open_data

    digits = open_data("digits")
    settings = {**SMALL, "epochs": 1}
    pretrain("simclr", digits.subset(range(400)), tmp_path, quiet=True, config=settings)
    with pytest.raises(UserError, match="changed since the run started"):
        pretrain("simclr", digits.subset(range(1, 401)), tmp_path, quiet=True, config=settings)


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    from nearfar.run.folder import RunFolder

    for _ in range(2):  # given back at the end of a run, it can be claimed again, and is then as firmly held
        with (
            RunFolder(tmp_path).claimed(),
            pytest.raises(UserError, match="another process"),
            RunFolder(tmp_path).claimed(),
        ):
            pytest.fail("claimed twice")


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path: Path) -> None:
    settings = {**SMALL, "epochs": 1}
    uninterrupted = pretrain("moco", "digits", tmp_path, quiet=True, config={**settings, **RUNS["moco"]})
    expected = newest_tensors(tmp_path)
    state = uninterrupted.checkpoint / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 4
    state.write_bytes(data)
    pretrain("moco", "digits", tmp_path, quiet=True, config={**settings, **RUNS["moco"]})
    resumed = newest_tensors(tmp_path)
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(tmp_path: Path) -> None:
    settings = {**SMALL, "epochs": 1, "keep": 1}
    run = pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    (run.checkpoint / "facts.json").write_text("{}")
    with pytest.raises(UserError, match=r"step-00000014 cannot be used .* move .* away to start over"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    assert run.checkpoint.is_dir()


def test_a_schedule_with_warm_up_can_be_resumed_and_opened(tmp_path: Path) -> None:
    settings = {**SMALL, "epochs": 1, "lr": {"cosine": {"start": 0.002, "warmup": 1}}}
    pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    resumed = pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    assert resumed.facts["step"] == 14


def test_another_optimiser_starts_with_fresh_moments(tmp_path: Path) -> None:
    pretrain("simclr", "digits", tmp_path, quiet=True, config={**SMALL, "epochs": 1, "optimizer": "sgd"})
    config = {**SMALL, "epochs": 2, "optimizer": "adamw"}
    run = pretrain("simclr", "digits", tmp_path, quiet=True, allow_change=True, config=config)
    assert run.facts["step"] == 28


def test_divergence_stops_with_a_dump_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    settings = {**SMALL, "lr": 1e30, "warmup": 0, "optimizer": "sgd", "skip_steps": 3, "checkpoint_every": 1}
    with pytest.raises(UserError, match=r"diverged at step \d+: the loss was .* try a lower lr"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=settings)
    dumped = checkpoints.newest(tmp_path / "diverged")
    newest = checkpoints.newest(tmp_path / "ckpt")
    assert dumped is not None
    assert newest is not None
    assert checkpoints.load(newest)[1]["step"] < checkpoints.load(dumped)[1]["step"]


def test_a_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"kind": "train", "step": 1}) + '\n{"kind": "tra')
    assert read_metrics(path) == [{"kind": "train", "step": 1}]
