"""Errors of the disk, injected below Python by a preloaded library: one sentence with the file, and no traceback."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nearfar.run import checkpoints
from nearfar.system.files import machine_mark, write_atomic
from tests.storm import shim

ROOT = Path(__file__).parents[2]
# all commands in one process, each with its own fault; "" is none
ARMED = """
import io, json, sys
from contextlib import redirect_stderr
from tests.storm.shim import arm
from nearfar.cli import main
outcomes = []
for fault, words in json.loads(sys.argv[1]):
    if not arm(*fault):
        sys.exit("not loaded")
    errors = io.StringIO()
    with redirect_stderr(errors):
        code = main(words)
    outcomes.append([code, errors.getvalue()])
print(json.dumps(outcomes))
"""
SMALL = ["epochs=1", "batch_size=16", "workers=0", "held_out=0", "probe_every=0", "--quiet"]
ANY = ("sync", "create", "rename", "write")
Outcomes = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("io")


@pytest.fixture(scope="module")
def outcomes(place: Path) -> Outcomes:
    """Exit code and messages of each command under its fault."""
    labels, table = np.arange(32) % 2, place / "table.npz"
    np.savez(table, x=np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32), labels=labels)

    def pretrain(name: str, *words: str) -> list[str]:
        return ["pretrain", "simclr", str(table), "--out", f"{place}/{name}", *SMALL, *words]

    sweep = [
        "sweep",
        "simclr",
        str(table),
        "temperature=0.1,0.5",
        *SMALL,
        "--out",
        f"{place}/sweep",
        "--jobs",
        "1",
    ]
    cases = {
        # the first sync is of the new, empty file
        "metrics": (("metrics.jsonl", "sync", 2, shim.ALWAYS, errno.EIO), pretrain("metrics", "logger=none")),
        "metrics again": (("", "", 1, 1, 0), pretrain("metrics", "logger=none")),
        "sweep": (("metrics.jsonl", "sync", 2, 1, errno.EIO), sweep),
        "mkdir": ((f"{place}/mkdir/tb", "mkdir", 1, shim.ALWAYS, errno.EROFS), pretrain("mkdir", "logger=tensorboard")),
        "board": ((f"{place}/board/tb", "create write", 1, shim.ALWAYS, errno.EROFS), pretrain("board", "logger=tensorboard")),
        **{
            name: ((f"{place}/{name}/", name, 3, shim.ALWAYS, errno.EIO), pretrain(name, "logger=none"))
            for name in ANY
        },
    }  # fmt: skip
    if shim.library() is None:
        pytest.skip("no C compiler")
    done = subprocess.run(
        [sys.executable, "-c", ARMED, json.dumps([*cases.values()])],
        cwd=ROOT, env={**shim.preloading(), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "not loaded" in done.stderr:
        pytest.skip("libraries cannot be preloaded")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_a_failed_sync_of_metrics_is_one_sentence(outcomes: Outcomes, place: Path) -> None:
    code, message = outcomes["metrics"]
    assert (code, message.count("nearfar: ")) == (2, 1)
    assert f"{place}/metrics/metrics.jsonl cannot be written (Input/output error)" in message
    assert outcomes["metrics again"][0] == 0
    assert checkpoints.newest(place / "metrics" / "ckpt") is not None


def test_a_failed_sync_inside_a_sweep_fails_its_cell(outcomes: Outcomes, place: Path) -> None:
    assert outcomes["sweep"][0] == 0
    table = (place / "sweep" / "sweep.csv").read_text()
    assert table.count("metrics.jsonl cannot be written (Input/output error)") == 1
    assert table.count("done") == 1


@pytest.mark.parametrize("name", ["mkdir", "board"])
def test_a_board_on_a_read_only_disk_does_not_stop_a_run(name: str, outcomes: Outcomes, place: Path) -> None:
    assert outcomes[name][0] == 0, outcomes[name]
    assert (place / name / "metrics.jsonl").stat().st_size > 0


@pytest.mark.parametrize("name", ANY)
def test_any_failure_below_the_run_is_one_sentence(name: str, outcomes: Outcomes) -> None:
    code, message = outcomes[name]
    assert (code, message.count("nearfar: ")) == (2, 1), message
    assert "Input/output error" in message
    assert "a file, or standard output" not in message


def test_leftovers_of_dead_processes_are_removed_by_the_next_write(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    elsewhere = "0000" if machine_mark() != "0000" else "1111"
    dead = f"{child.pid}-{machine_mark()}0123abcd"
    (tmp_path / f".report.html.{dead}.writing").write_text("half a page")
    (tmp_path / f".out.{dead}.writing").mkdir()  # half an export
    (tmp_path / f".out.{dead}.writing" / "model.safetensors").write_text("weights")
    (tmp_path / f".x.{os.getpid()}-{machine_mark()}0123abcd.writing").write_text(
        "an earlier process of our number"
    )
    (tmp_path / f".old.{child.pid}-{elsewhere}0123abcd.writing").write_text("of another machine, long ago")
    os.utime(tmp_path / f".old.{child.pid}-{elsewhere}0123abcd.writing", (1, 1))
    others = {
        f".x.{os.getppid()}-{machine_mark()}0123abcd.writing", f".x.{child.pid}-{elsewhere}0123abcd.writing",
        ".x.writing", "x.writing", f".x.{dead}.txt",
    }  # fmt: skip
    for name in others:
        (tmp_path / name).write_text("somebody's")
    write_atomic(tmp_path / "new", "content")
    assert {path.name for path in tmp_path.iterdir()} == {"new", *others}
