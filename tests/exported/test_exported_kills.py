"""An export over an earlier one, killed at any file operation, leaves one of the two; the next one cleans
up."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nearfar as nf
from nearfar.system.files import machine_mark
from tests.forked import run_command

# Exports `sys.argv[1]` over a copy of an earlier export in a child, again and again; child N is killed at its
# Nth operation. Operations are calls of the system from Python, from the first new folder on, and the lines
# of the exchange of folders,
# which is called through ctypes.
KILLED_AT_EACH_OPERATION = """
import ctypes, errno, os, platform, shutil, signal, struct, sys
from pathlib import Path
import nearfar as nf

run, first, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
place = first.parent
to = place / "out"
opened = nf.Run.open(run)
nf.export(opened, place / "second")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def forbid_exchange():
    # renameat2 with RENAME_EXCHANGE fails as on a file system that has none: a seccomp filter of this process
    number = {"x86_64": 316, "aarch64": 276}[platform.machine()]
    filter = b"".join(struct.pack("HBBI", *step) for step in [
        (0x20, 0, 0, 0), (0x15, 0, 3, number),  # not renameat2: allow
        (0x20, 0, 0, 16 + 8 * 4), (0x15, 0, 1, 2),  # not RENAME_EXCHANGE: allow
        (0x06, 0, 0, 0x00050000 | errno.EINVAL), (0x06, 0, 0, 0x7FFF0000),
    ])
    memory = ctypes.create_string_buffer(filter)
    program = struct.pack("HxxxxxxP", 6, ctypes.addressof(memory))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        print("no seccomp")
        sys.exit()
    (place / "a").mkdir(), (place / "b").mkdir()
    assert libc.renameat2(-100, bytes(place / "a"), -100, bytes(place / "b"), 2) != 0
    (place / "a").rmdir(), (place / "b").rmdir()


def killed_at(limit):
    count = 0

    def operation(begins=False):
        nonlocal count
        count += bool(begins or count)
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    def calls(frame, event, function):
        if event == "c_call" and getattr(function, "__module__", "") in ("posix", "_io"):
            operation(begins=function.__name__ == "mkdir")

    def lines(frame, event, _):
        if event == "line":
            operation()
        return lines

    sys.settrace(lambda frame, event, _: lines if frame.f_code.co_name == "_exchange" else None)
    sys.setprofile(calls)


if mode == "fallback":
    forbid_exchange()
one, other = contents(first), contents(place / "second")
assert one != other
missing = 0
for limit in range(1, 100_000):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(first, to)
    child = os.fork()
    if child == 0:
        killed_at(limit)
        nf.export(opened, to)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if not to.is_dir():
        missing += 1
        # any command that opens the export recovers it
        nf.Encoder.from_pretrained(to)
    assert contents(to) in (one, other), (limit, sorted(contents(to)))
    if status == 0:
        break
    if limit % 5 == 0 or missing:
        nf.export(opened, to)
        assert contents(to) == other, limit
        beside = sorted(path.name for path in place.iterdir())
        assert beside == ["first", "out", "second"], (limit, beside)
print(limit, missing)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[nf.Run]:
    """Two runs of a small network with different weights."""
    folder = tmp_path_factory.mktemp("runs")
    table = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    np.savez(folder / "table.npz", x=table)
    return [
        nf.pretrain(
            "simclr",
            data=str(folder / "table.npz"),
            out=folder / f"run-{seed}",
            quiet=True,
            epochs=1,
            batch_size=16,
            device="cpu",
            workers=0,
            seed=seed,
        )
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("mode", ["exchange", "fallback"])
def test_kill_at_any_file_operation_keeps_an_export(mode: str, runs: list[nf.Run], tmp_path: Path) -> None:
    place = tmp_path / "place"
    nf.export(runs[0], place / "first")
    process = run_command(runs[1].path, place / "first", mode, code=KILLED_AT_EACH_OPERATION)
    assert process.returncode == 0, process.stderr[-3000:]
    if process.stdout.strip() == "no seccomp":
        pytest.skip("this system allows no seccomp filter")
    operations, missing = map(int, process.stdout.split())
    assert operations > 50
    # without an exchange of folders there is a moment in which neither is there
    assert (missing > 0) == (mode == "fallback")


def test_leftovers_of_dead_processes_are_removed_and_others_stay(runs: list[nf.Run], tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, alive = (f"{number}-{machine_mark()}0123abcd" for number in (child.pid, os.getppid()))
    removed = [f".out.{dead}.writing", f".out.{dead}.old"]
    unrelated = [
        f".out.{alive}.writing",
        f".other.{dead}.writing",
        f".out.{dead}.txt",
        "out.old",
        ".out.writing",
    ]
    nf.export(runs[0], tmp_path / "out")
    for name in (*removed, *unrelated):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
    nf.export(runs[0], tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *unrelated}
    assert all((tmp_path / name / "model.safetensors").read_text() == "weights" for name in unrelated)


def test_files_are_synced_before_the_rename(
    runs: list[nf.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `os.fsync` was called for, by the names that the system has for its descriptors."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    synced: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    nf.export(runs[0], tmp_path / "out")
    monkeypatch.setattr(os, "fsync", record)
    nf.export(runs[1], tmp_path / "out", projector=np.zeros((4, 6), dtype=np.float32))
    names = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*")}
    temporary = next(path for path in synced if path.parent == tmp_path)
    assert {temporary, *(temporary / name for name in names)} <= set(synced)
    assert synced[-1] == tmp_path


def test_export_through_a_symlink_replaces_its_target(runs: list[nf.Run], tmp_path: Path) -> None:
    nf.export(runs[0], tmp_path / "models/one")
    (tmp_path / "latest").symlink_to(tmp_path / "models/one")
    previous = (tmp_path / "models/one/model.safetensors").read_bytes()
    nf.export(runs[1], tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "models/one/model.safetensors").read_bytes() != previous
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["one"]
