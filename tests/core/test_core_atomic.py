"""A file is written whole or not at all, by one function; a split is drawn by one."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearfar
from nearfar.core.randomness import order
from nearfar.core.splits import apportioned, at_least_one, held_out
from nearfar.system.files import replace_file, write_atomic

SOURCE = Path(nearfar.__file__).parent


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, "old")

    def interrupted() -> None:
        with replace_file(file) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        interrupted()
    assert file.read_text() == "old"
    write_atomic(file, b"new")
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_kill_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, "old")
    code = f"""
import os, pathlib
from nearfar.system.files import replace_file
with replace_file(pathlib.Path({str(file)!r})) as fresh:
    fresh.write_text("ne")
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert file.read_text() == "old"


def test_only_system_files_replaces_files() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix() == "system/files.py":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert not [c for c in calls if c.attr == "replace" and getattr(c.value, "id", "") == "os"], path


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_a_split_takes_the_first_of_every_class(labels: list[int], share: float, seed: int) -> None:
    """Written out: walk through the seeded order and take a row while its class has quota left."""
    values = np.array(labels)
    for quotas in (apportioned, at_least_one):
        kinds, counts = np.unique(values, return_counts=True)
        quota = dict(zip(kinds.tolist(), quotas(counts, share).tolist(), strict=True))
        expected = np.zeros(len(values), dtype=bool)
        for row in order(seed, 0, len(values)):
            if quota[labels[row]] > 0:
                quota[labels[row]] -= 1
                expected[row] = True
        assert held_out(values, share, seed, quotas).tolist() == expected.tolist()
        assert all(
            0 <= q < c or (q == 0 and c == 1) for q, c in zip(quotas(counts, share), counts, strict=True)
        )
