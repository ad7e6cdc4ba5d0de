"""Mishaps around a run: refusals, full disks, signals, concurrent readers. Every message is true, nothing is
lost."""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.cli import main
from nearfar.config.resolving import read_words, resolve
from nearfar.data import open_data
from nearfar.errors import NotSaved, UserError
from nearfar.evaluate import evaluate_run
from nearfar.run import checkpoints
from nearfar.run.folder import RunFolder
from nearfar.run.metrics import read_metrics
from nearfar.run.trained import Run
from nearfar.train.loggers import open_loggers
from nearfar.train.monitors import CollapseMonitor, GradientMonitor, Spread
from nearfar.train.pretrain import pretrain
from tests.forked import Forked, run_command

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 128,
    "epochs": 1,
    "probe_every": 0,
    "workers": 0,
    "held_out": 0.0,
}


def some_digits(count: int) -> Any:
    return open_data("digits").subset(np.arange(count))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain("simclr", "digits", tmp_path_factory.mktemp("run"), quiet=True, config=SMALL)


def test_a_refusal_before_the_first_step_does_not_bind_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ended without finite steps"):
        pretrain("simclr", some_digits(300), tmp_path, quiet=True, config={**SMALL, "temperature": 1e-40})
    assert checkpoints.last_named(tmp_path / "ckpt") == 0
    retried = pretrain("simclr", some_digits(300), tmp_path, quiet=True, config={**SMALL, "temperature": 0.3})
    direct = pretrain(
        "simclr", some_digits(300), tmp_path / "b", quiet=True, config={**SMALL, "temperature": 0.3}
    )
    assert retried.facts["step"] == 2
    first, second = (checkpoints.load(run.checkpoint)[0] for run in (retried, direct))
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_config_without_a_checkpoint_does_not_bind_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(resolve("moco", "digits", read_words(["epochs=7"])).as_yaml())
    retried = pretrain("simclr", some_digits(300), tmp_path, quiet=True, config=SMALL)
    assert retried.settings.recipe == "simclr"


def test_the_reason_for_a_missing_probe_is_true(tmp_path: Path) -> None:
    config = {
        **SMALL,
        "batch_size": 16,
        "probe_every": 1.0,
        "selection": {"name": "ball", "lower": "on_score(0,0.5)"},
    }
    with pytest.raises(UserError, match=r"has 40 labelled images to train on, and a probe needs 50"):
        pretrain("simclr", some_digits(40), tmp_path / "a", quiet=True, config=config)
    digits = open_data("digits")
    one_class = digits.subset(np.flatnonzero(np.asarray(digits.labels) == 1)[:80])
    with pytest.raises(UserError, match="have only one class"):
        pretrain("simclr", one_class, tmp_path / "b", quiet=True, config=config)


def test_the_message_about_batch_sizes_is_true(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training needs at least 2 images; found 1"):
        pretrain("simclr", some_digits(1), tmp_path / "a", quiet=True, config=SMALL)
    with pytest.raises(UserError, match="so expected 2 to 30"):
        pretrain("simclr", some_digits(30), tmp_path / "b", quiet=True, config=SMALL)


def limited(size: int, *words: object) -> "subprocess.CompletedProcess[str]":
    """A command that may write no file of more than `size` bytes, as if the disk filled there."""
    setup = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    return run_command(*words, setup=setup)


def test_embed_on_a_full_disk_is_one_sentence_and_leaves_no_part(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "features.parquet"
    process = limited(50_000, "embed", run.path, "digits", "--out", out)
    assert process.returncode == 2, process.stderr
    assert process.stderr.splitlines()[-1].startswith(f"nearfar: --out {out} could not be written (")
    assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_training_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The checkpoint of step 0 or the metrics do not fit; TensorBoard's thread adds no message."""
    out = tmp_path / "run"
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    process = limited(100_000, "pretrain", "simclr", "digits", "--out", out, "--quiet", *settings)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1, process.stderr
    assert "could not be written (no space left)" in process.stderr


def test_an_unwritable_tensorboard_does_not_stop_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    previous = threading.excepthook
    settings = resolve("simclr", "digits", {"logger": "tensorboard"})
    lines, events = open_loggers(RunFolder(tmp_path), settings, -1)
    board = next((tmp_path / "tb").iterdir())
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    row = {"kind": "train", "epoch": 0.0, "loss": 1.0}
    try:
        # as large as the board is, and far larger than the metrics will be
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(board.stat().st_size + 60, 2000), limit[1]))
        for step in range(20):
            for logger in (lines, events):
                logger.log({**row, "step": step})
                logger.flush()
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        lines.close()
        events.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(20))
    assert "Traceback" not in capfd.readouterr().err
    assert threading.excepthook is previous


def test_figures_that_cannot_be_saved_are_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nearfar.run.results as record

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(record, "write_atomic", full)
    assert main(["evaluate", str(run.path), "--protocol", "knn", "--no-baselines"]) == 2
    output = capsys.readouterr()
    assert "learned" in output.out
    assert (
        "evaluation.json could not be written (No space left on device): the figures are not saved"
        in output.err
    )
    with pytest.raises(NotSaved) as problem:
        evaluate_run(run, protocols=["knn"])
    assert 0 < problem.value.result["knn"]["top1"] <= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_exits_75(number: signal.Signals, tmp_path: Path) -> None:
    """While the data are opened, which is held up here for as long as the test needs."""
    code = (
        "import sys, time\n"
        "from nearfar.cli import main\n"
        "import nearfar.train.pretrain as p\n"
        "def wait(*a, **k):\n    print('opening', flush=True)\n    time.sleep(60)\n"
        "p.split_holdout = wait\nsys.exit(main(sys.argv[1:]))"
    )
    child = Forked("pretrain", "simclr", "digits", "--out", tmp_path / "run", code=code)
    child.wait_until(lambda: child.stdout == "opening\n")
    child.send_signal(number)
    assert child.wait() == 75, child.stderr
    assert (
        child.stderr
        == f"nearfar: stopped by {number.name}; run the same command again to continue from what was saved\n"
    )


LOSING = """
import signal, sys
import nearfar.train.pretrain as pretrain
from nearfar.cli import main
opened = pretrain.split_holdout
def lose(*given, **more):
    try:
        signal.raise_signal(signal.SIGTERM)
    except {kind}:
        print("lost", flush=True)
    return opened(*given, **more)
pretrain.split_holdout = lose
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("kind", "lost"), [("Exception", ""), ("BaseException", "lost\n")])
def test_a_signal_is_not_handled_as_an_import_error(kind: str, lost: str, tmp_path: Path) -> None:
    """A SIGTERM while torch was imported was taken for one more reason why a module is not there, and the run
    went on. Where even what is no `Exception` gets lost, as in a destructor, the first step is the last."""
    settings = [f"{key}={value}" for key, value in {**SMALL, "epochs": 500}.items()]
    words = ["pretrain", "simclr", "digits", "--out", str(tmp_path / "run"), "--quiet", *settings]
    process = run_command(*words, code=LOSING.format(kind=kind))
    assert (process.returncode, process.stdout) == (75, lost), process.stderr
    assert "nearfar: stopped by SIGTERM" in process.stderr


def test_a_hangup_saves_and_an_ignored_one_is_ignored(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [
        f"{key}={value}" for key, value in {**SMALL, "epochs": 500, "checkpoint_every": 100_000}.items()
    ]
    words = ["pretrain", "simclr", "digits", "--out", out, *settings]
    steps = lambda: [row["step"] for row in read_metrics(out / "metrics.jsonl")]
    child = Forked(*words, setup=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    child.wait_until(steps)
    child.send_signal(signal.SIGHUP)
    rows = len(steps())
    child.wait_until(lambda: len(steps()) >= rows + 2)
    assert child.returncode is None
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 75
    child = Forked(*words)
    reached = checkpoints.newest_step(out / "ckpt") or 0
    child.wait_until(lambda: max(steps()) > reached)
    child.send_signal(signal.SIGHUP)
    assert child.wait() == 75
    assert "stopped by SIGHUP at step" in child.stderr
    assert (checkpoints.newest_step(out / "ckpt") or 0) > reached


def test_a_concurrent_reader_always_finds_a_checkpoint(run: Run, tmp_path: Path) -> None:
    """keep=1 drops the checkpoint that a reader has just found: 35 of 282 readers used to fail."""
    tensors, facts = checkpoints.load(run.checkpoint)
    (tmp_path / "config.yaml").write_bytes((run.path / "config.yaml").read_bytes())
    save = lambda step: checkpoints.save(tmp_path / "ckpt", step, tensors, {**facts, "step": step}, keep=1)
    save(1)
    finished = threading.Event()

    def train() -> None:
        for step in range(2, 150):
            save(step)
        finished.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    steps = []
    while not finished.is_set():
        steps.append(Run.open(tmp_path).facts["step"])
    trainer.join()
    assert len(steps) > 10
    assert steps == sorted(steps)


def bad(mean_cosine: float = 0.99) -> Spread:
    return Spread(0.01, 1.0, mean_cosine, 100)


def test_a_short_run_that_ends_collapsed_warns() -> None:
    """Ten readings in a row are a hundred steps: a run of sixty never had them."""
    collapse = CollapseMonitor()
    assert [collapse.observe(bad(), step / 6) for step in range(1, 7)] == [None] * 6
    assert "collapsed" in (collapse.final_warning(bad()) or "")
    assert collapse.final_warning(bad()) is None
    young = CollapseMonitor()
    for step in range(1, 5):
        young.observe(bad(), step / 4)
    assert young.final_warning(bad()) is None
    mended = CollapseMonitor()
    for spread in [*[bad()] * 6, Spread(1.0, 50.0, 0.0, 100)]:
        mended.observe(spread)
    assert mended.final_warning(Spread(1.0, 50.0, 0.0, 100)) is None


def test_a_zero_gradient_from_the_start_is_reported_once() -> None:
    motion = GradientMonitor(patience=3)
    assert [motion.observe(0.0) is not None for _ in range(6)] == [False, False, True, False, False, False]
    resumed, moving = GradientMonitor(patience=3), GradientMonitor(patience=3)
    resumed.observe(0.0)
    restored = GradientMonitor(patience=3)
    restored.restore(resumed.state())
    assert [restored.observe(0.0) is not None for _ in range(2)] == [False, True]
    assert [moving.observe(norm) for norm in (0.1, 0.0, 0.0, 0.0)] == [None] * 4


def test_a_run_without_gradient_warns(tmp_path: Path) -> None:
    """Two equal views and a margin of 0: every triplet is satisfied, and the gradient is zero."""
    config = {**SMALL, "batch_size": 32, "bound": {"name": "triplet", "margin": 1e-30}, "critic": "distance"}
    run = pretrain(
        "simclr", some_digits(320), tmp_path, quiet=True, config={**config, "views": {"name": "none"}}
    )
    events = [row["message"] for row in run.metrics if row["kind"] == "event"]
    assert any("exactly zero" in message for message in events)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encoders.dim=1"], "encoders.dim was 1 with critic=cosine"),
        (["encoders.dim=1", "critic=distance"], "encoders.dim was 1 with critic=distance"),
        (
            ["views.brightness=1e99"],
            r"views.brightness was .*; expected a strength, a number from 0 to 100",
        ),
    ],
)
def test_settings_that_would_train_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("simclr", "x", read_words(words))


def test_a_line_is_enough_where_lengths_count() -> None:
    assert resolve("simclr", "x", read_words(["encoders.dim=1", "critic=dot"])).encoders["dim"] == 1


def test_an_acceptance_of_zero_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for p in ("1e-300", "0", "1", "nan"):
        assert main(["study", "binary", f"p={p}", "--out", str(tmp_path)]) == 2
        assert "p" in capsys.readouterr().err
    assert main(["study", "binary", "p=1e-9", "--out", str(tmp_path)]) == 0


def test_a_removed_folder_is_not_reported_as_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nearfar.cli as cli

    def removed(arguments: object) -> Any:
        raise FileNotFoundError(2, os.strerror(2), "runs/a/ckpt")

    monkeypatch.setattr(cli, "_parsed", removed)
    assert main([]) == 2
    assert capsys.readouterr().err == "nearfar: runs/a/ckpt cannot be used: No such file or directory\n"


def test_a_finished_run_keeps_its_description(tmp_path: Path, run: Run) -> None:
    """--allow-change on a finished run once wrote other settings and data next to the old weights."""
    shutil.copytree(run.path, tmp_path / "run")
    names = ("config.yaml", "data.json")
    previous = [(tmp_path / "run" / name).read_bytes() for name in names]
    for data, changed in (("digits", {"temperature": 0.9}), (some_digits(1700), {})):
        with pytest.raises(UserError, match=r"no step is left to train with what changed .*; raise epochs"):
            pretrain(
                "simclr", data, tmp_path / "run", quiet=True, allow_change=True, config={**SMALL, **changed}
            )
        assert [(tmp_path / "run" / name).read_bytes() for name in names] == previous
    pretrain("simclr", "digits", tmp_path / "run", quiet=True, allow_change=True, config=SMALL)


def test_messages_name_the_modality(tmp_path: Path, run: Run) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
    with pytest.raises(UserError, match=r"rows\.npz holds .*, but .*run was trained on pictures; choose"):
        pretrain("simclr", str(tmp_path / "rows.npz"), tmp_path / "run", quiet=True, allow_change=True)


@pytest.mark.parametrize("out", [None, 3])
def test_an_invalid_out_gets_a_sentence(out: Any) -> None:
    for command in (pretrain, nf.distill, nf.sweep):
        with pytest.raises(UserError, match=f"out was {out}; expected a path"):
            command("simclr", "digits", out)


def test_identical_data_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = np.random.default_rng(0).normal(size=6).astype(np.float32)
    rows = {"alike": np.tile(row, (40, 1)), "varied": row + np.arange(40, dtype=np.float32)[:, None]}
    for name, x in rows.items():
        np.savez(tmp_path / f"{name}.npz", x=x)
        words = ["pretrain", "simclr", str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / name)]
        assert main([*words, "epochs=1", "batch_size=16", "workers=0"]) == 0
        message = "the first 16 vectors are identical; if all are, there is nothing to learn"
        assert (message in capsys.readouterr().err) == (name == "alike")
