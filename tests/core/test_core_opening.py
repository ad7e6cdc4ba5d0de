"""Files that a user or a stored file names are opened by `nearfar.system` alone, which refuses pipes and devices."""

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import nearfar
from nearfar.system.untrusted import arrow_path, open_regular_file, read_bytes

SOURCE = Path(nearfar.__file__).parent
PATH_METHODS = {"read_text", "read_bytes"}
LOADERS = {
    "np.load",
    "torch.load",
    "gzip.open",
    "os.open",
    "tarfile.open",
    "wave.open",
    "zipfile.ZipFile",
    "np.memmap",
    "np.fromfile",
}
ARROW_READERS = {"ParquetFile", "read_schema", "read_csv", "OSFile", "memory_map"}
CHECKED_SOURCES = ("arrow_path(", "arrow_source(", "BufferReader(", "source")  # what Arrow may be given
FILE_OBJECTS = ("opened", "file")  # what other loaders may be given
# objects with an `open` of ours
OWN_OPEN = ("Run", "locate", "located", "_located", "packed", "self", "file", "at", "system")
ALLOWED = {
    ("cli/__init__.py", "_nowhere"): "/dev/null",
    ("cli/__init__.py", "_discard"): "/dev/null",
    ("report/page.py", "*"): "files of this package",
    ("estimate/interval.py", "*"): "a file of this package",
    ("exported/load.py", "*"): "a script that is copied into an export and runs without nearfar",
    ("train/loggers.py", "__init__"): "appends to a file that was just replaced",
    ("run/metrics.py", "rewind_metrics"): "creates a new file",
    ("data/parquet.py", "__init__"): "a descriptor of mkstemp",
    ("train/equality.py", "*"): "files in a folder of tempfile's",
    ("testing.py", "*"): "files in a folder of tempfile's",
    ("data/tables.py", "npy"): "after check_data_file; numpy maps a path alone",
    ("bench/turns.py", "*"): "/proc",
    ("run/weights.py", ""): "after check_regular; safetensors takes a path alone",
    ("sweeps/table.py", "*"): "text in memory",
}  # fmt: skip


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def opens_path(node: ast.AST) -> bool:
    """Whether a call, or an import, opens a path by itself and would wait for a pipe."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("safetensors") and any(
            alias.name in ("load_file", "safe_open") for alias in node.names
        )
    if not isinstance(node, ast.Call):
        return False
    owner, _, name = dotted(node.func).rpartition(".")
    first = ast.unparse(node.args[0]) if node.args else ""
    if name in ARROW_READERS:
        return not any(checked in first for checked in CHECKED_SOURCES)
    if f"{owner}.{name}" in LOADERS:
        return first not in FILE_OBJECTS
    if name == "open":
        return owner.split(".")[-1] not in OWN_OPEN
    return name in PATH_METHODS and bool(owner)  # without an owner it is our function


def opening_calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """(function, line) of everything that opens a path."""
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        function = tree.name
    if opens_path(tree):
        yield function, tree.lineno  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(tree):
        yield from opening_calls(child, function)


def test_only_system_opens_paths() -> None:
    unknown = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("system/"):
            calls = opening_calls(ast.parse(path.read_text(encoding="utf-8")))
            unknown += [
                f"{name}:{line}"
                for function, line in calls
                if not {(name, function), (name, "*")} & ALLOWED.keys()
            ]
    assert not unknown, " ".join(unknown)


def test_the_law_sees_every_kind_of_call() -> None:
    for code in ("open(p)", "p.open('rb')", "p.read_text()", "np.load(p)", "torch.load(p)", "gzip.open(p)", "from safetensors.torch import load_file",
                 "zipfile.ZipFile(p)", "pq.read_schema(p)", "csv.read_csv(str(p))", "os.open(p, 0)"):  # fmt: skip
        assert [*opening_calls(ast.parse(code))], code
    for code in (
        "open_regular_file(p)",
        "read_text(p)",
        "np.load(opened)",
        "pq.read_schema(arrow_path(p))",
        "Run.open(p)",
    ):
        assert not [*opening_calls(ast.parse(code))], code


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "link to a pipe"])
def test_nothing_but_a_regular_file_is_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    for read in (open_regular_file, arrow_path, lambda path: read_bytes(path, 10)):
        with pytest.raises(OSError, match=r"directory|not a regular file"):
            read(path)


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes; at most 4 are allowed"):
        read_bytes(tmp_path / "x", 4)
