"""Processes share one folder: no cell is computed twice, and cells of a killed process are taken over."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from tests.forked import Forked

AXES: dict[str, list[float]] = {"temperature": [0.1, 0.25, 0.5, 1.0], "batch_size": [16, 32]}
FIXED: dict[str, Any] = {"epochs": 3, "checkpoint_every": 1}
WORDS = [
    *(f"{key}={','.join(map(str, values))}" for key, values in AXES.items()),
    *(f"{key}={value}" for key, value in FIXED.items()),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of numbers in three classes: the same code as images, in a fraction of the time."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 3
    x = rng.normal(size=(160, 6)) + 1.2 * np.eye(6)[labels]
    path = tmp_path_factory.mktemp("data") / "table.npz"
    np.savez(path, x=x.astype(np.float32), labels=labels)
    return path


def started(table: Path, out: Path) -> Forked:
    setup = partial(torch.set_num_threads, 1)
    return Forked("sweep", "simclr", table, *WORDS, "--out", out, "--jobs", 1, setup=setup)


def events(out: Path) -> list[dict[str, Any]]:
    log = out / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
def test_a_killed_and_shared_sweep_ends_with_the_same_table(table: Path, tmp_path: Path) -> None:
    """A sweep in this process equals one killed (SIGKILL) in its third cell and resumed by two processes at
    once.

    Files are compared bit by bit. In log.jsonl every cell is finished once; the killed one began twice, the
    others once; both processes computed cells."""
    alone_out, killed_out = tmp_path / "whole", tmp_path / "cut"
    nf.sweep("simclr", table, out=alone_out, quiet=True, config={**AXES, **FIXED})
    killed = started(table, killed_out)
    killed.wait_until(lambda: sum(event["event"] == "begun" for event in events(killed_out)) >= 3)
    assert killed.returncode is None, killed.stderr
    killed.kill()
    assert Counter(event["event"] for event in events(killed_out))["done"] < 8
    assert not (killed_out / "sweep.json").exists()

    children = [started(table, killed_out) for _ in range(2)]
    for child in children:
        assert child.wait() == 0, child.stderr
    for name in ("sweep.csv", "figure.svg"):
        assert (killed_out / name).read_bytes() == (alone_out / name).read_bytes()
    one, second = (json.loads((out / "sweep.json").read_text()) for out in (alone_out, killed_out))
    assert one == second
    finished = Counter(event["cell"] for event in events(killed_out) if event["event"] == "done")
    starts = Counter(event["cell"] for event in events(killed_out) if event["event"] == "begun")
    assert set(finished.values()) == {1}
    assert len(finished) == 8
    assert sorted(starts.values()) == [1] * 7 + [2]
    assert {event["process"] for event in events(killed_out)} == {
        killed.pid,
        *(child.pid for child in children),
    }
