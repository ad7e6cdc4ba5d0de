"""Outputs never overwrite an input, an unrelated file, a device or a pipe."""

import ast
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import nearfar
from nearfar.cli import main
from nearfar.errors import UserError
from nearfar.run.folder import RunFolder
from nearfar.sweeps.engine import CellStore
from nearfar.system.files import check_output, write_atomic, write_figure
from nearfar.system.lock import open_lock


def test_a_lock_that_is_a_link_is_not_followed_and_nothing_is_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(UserError, match="cannot be written"), RunFolder(tmp_path / "run").claimed():
        pass
    assert precious.read_text() == "kept"


def test_a_lock_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(UserError, match=r"\.lock in it is not a regular file"), RunFolder(tmp_path).claimed():
        pass


def test_a_lock_has_one_owner_and_keeps_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("held")
    with RunFolder(tmp_path).claimed():
        with pytest.raises(UserError, match="trained by another process"), RunFolder(tmp_path).claimed():
            pass
        assert (tmp_path / ".lock").read_text() == "held"
    with open_lock(tmp_path / ".lock"), RunFolder(tmp_path).claimed():
        pass


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_atomic_write_refuses_non_files(tmp_path: Path, make: object) -> None:
    target = tmp_path / "there"
    make(target)  # type: ignore[operator]
    kind = stat.S_IFMT(target.lstat().st_mode)
    with pytest.raises(OSError, match="is not a regular file"):
        write_atomic(target, "page")
    assert stat.S_IFMT(target.lstat().st_mode) == kind
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_figures_are_replaced_atomically(tmp_path: Path) -> None:
    """By `write_figure` alone: other modules draw into memory."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "precious.svg").write_text("kept")
    (tmp_path / "link.svg").symlink_to(tmp_path / "precious.svg")
    with pytest.raises(OSError, match="is not a regular file"):
        write_figure(Figure((1, 1)), tmp_path / "pipe.png")
    write_figure(Figure((1, 1)), tmp_path / "link.svg")
    assert (tmp_path / "precious.svg").read_text() == "kept"
    assert "<svg" in (tmp_path / "link.svg").read_text()
    source = Path(nearfar.__file__).parent
    calls = [
        (path.relative_to(source).as_posix(), ast.unparse(node.args[0]))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "savefig"
    ]
    assert ("system/files.py", "buffer") in calls
    assert {target for _, target in calls} <= {"buffer", "file"}
    assert [name for name, target in calls if target == "file"] == ["report/charts.py"]  # a StringIO


def test_outputs_do_not_overwrite_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "xy.csv"
    rows = np.random.default_rng(0).normal(size=(40, 2))
    table.write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in rows) + "\n")
    content = table.read_bytes()
    assert main(["mi", f"{table}:a", f"{table}:b", "--rows", str(table)]) == 2
    assert f"--rows was {table}, which is also an input; choose another name" in capsys.readouterr().err
    assert table.read_bytes() == content


def test_outputs_do_not_overwrite_unrelated_files(tmp_path: Path) -> None:
    settings = tmp_path / "config.yaml"
    settings.write_text("recipe: simclr\n")
    with pytest.raises(UserError, match="a file of another kind; choose another name"):
        check_output("--out", settings, (), b"<!doctype html")
    page = tmp_path / "report.html"
    page.write_text("<!DOCTYPE html><p>old")
    check_output("--out", page, (), b"<!doctype html")
    check_output("--out", tmp_path / "new.html", [page], b"<!doctype html")


def test_claiming_a_cell_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    store = CellStore(tmp_path)
    (tmp_path / "claims").mkdir(exist_ok=True)
    (tmp_path / "claims" / "one.lock").symlink_to(precious)
    with pytest.raises(OSError), store.claim("one"):
        pass
    assert precious.read_text() == "kept"


@pytest.mark.parametrize(
    "content", ["sweep.json", "sweep.csv", "figure.svg", "figure.png", "log.jsonl", "result.json"]
)
def test_sweeps_refuse_unrelated_folders(content: str, tmp_path: Path) -> None:
    (tmp_path / content).write_text('{"precious": 1}')
    with pytest.raises(
        UserError, match=f"contains {content}, which does not belong to the sweep mi x y; choose a new folder"
    ):
        CellStore(tmp_path).create("sweep mi x y")
    assert (tmp_path / content).read_text() == '{"precious": 1}'


def test_a_sweep_resumes_in_its_folder(tmp_path: Path) -> None:
    """Killed before its table, between the table's files, and whole."""
    store = CellStore(tmp_path)
    store.create("sweep mi x y")
    store.log("begun", "cell")
    store.create("sweep mi x y")
    (tmp_path / "sweep.json").write_text('{"sweep": "mi x y"}')
    (tmp_path / "figure.svg").write_text("<svg/>")
    store.create("sweep mi x y")
    assert (tmp_path / "figure.svg").read_text() == "<svg/>"
    with pytest.raises(
        UserError, match="belongs to the sweep mi x y; choose another folder for the study ring"
    ):
        store.create("study ring")
