"""Run folders with flipped, cut, swapped, missing and mistyped files: found, passed over, or one sentence."""

import functools
import json
import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.data.records import read_quarantine, read_records
from nearfar.evaluate import evaluate_run
from nearfar.report.gather import _environment, _events, _held_out, _scores, _summary, curves_of
from nearfar.run import checkpoints
from nearfar.run.features import _read_cached
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.storm.files import mutated
from tests.storm.odd import alarm
from tests.storm.places import lasting

JUNK: list[Any] = [None, True, -1, 10**400, 1e308, "x", [], [None], {}, {"a": {"b": []}}, 0.5]


@functools.cache
def template() -> Path:
    """One small real run for all cases of a process."""
    torch.set_num_threads(1)
    out = lasting("run")
    digits = open_data("digits").subset(np.arange(200))
    config = {"backbone": "resnet8-w16", "batch_size": 64, "workers": 0, "epochs": 1, "checkpoint_every": 2}
    run = pretrain("moco", digits, out, quiet=True, config={**config, "negatives": {"size": 128}})
    evaluate_run(_named(run), protocols=["knn"])
    return out


def _named(run: Run) -> Any:
    """The run as if its data could be opened by name again."""
    (run.path / "config.yaml").write_text((run.path / "config.yaml").read_text())
    run.open_data = lambda spec=None, size=None: open_data("digits").subset(np.arange(200))  # type: ignore[method-assign]
    return run


def read_everything(path: Path) -> int:
    """What every command reads of a run; the step it found."""
    for file in (path / "cache").glob("*"):
        _read_cached(file) if file.suffix == ".safetensors" else read_records(file)
    read_quarantine(path / "quarantine.csv")
    run = Run.open(path)
    run.folder.notes()
    rows, settings = run.metrics, run.settings.as_plain()
    curves_of(rows)
    _held_out(rows)
    list(_events(rows))
    list(_scores(run.results))
    list(_summary(run, settings, _environment(run), rows))
    run.method()
    run.plain_view()
    run.certificate()
    return int(run.facts["step"])


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """This process may reserve so many bytes more than it has."""
    reserved = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (reserved + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def junk(tree: Any, rng: random.Random) -> Any:
    """The tree with one value in it exchanged."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice([*tree])
        return {**tree, key: junk(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        place = rng.randrange(len(tree))
        return [*tree[:place], junk(tree[place], rng), *tree[place + 1 :]]
    return rng.choice(JUNK)


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    return corrupted(rng, place), {"corruptions": 1}


def corrupted(rng: random.Random, place: Path) -> str:
    run = place / "run"
    shutil.copytree(template(), run, ignore=shutil.ignore_patterns("tb"))
    newest = checkpoints.newest(run / "ckpt")
    assert newest is not None
    if rng.random() < 0.25:  # somebody else's checkpoint, complete and hashed
        tensors, facts = checkpoints.load(newest)
        shutil.rmtree(newest)
        key = rng.choice([*facts])
        changed_facts = {**facts, key: junk(facts[key], rng)}
        checkpoints.save(run / "ckpt", checkpoints.step_of(newest), tensors, changed_facts, keep=5)
        read_everything(run)
        return "forged facts, used"
    file = rng.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock"))
    before = file.read_bytes()
    kind = rng.choice(["bytes", "gone", "swap", "json", "pipe", "hole", "long", "link out", "device"])
    if kind == "gone":
        file.unlink()
    elif kind == "pipe":
        file.unlink()
        os.mkfifo(file)
    elif kind == "hole":  # no disk is used
        with file.open("r+b") as opened:
            opened.truncate(int(10 ** rng.uniform(7, 13)))
    elif kind == "long":
        file.write_bytes(before * (rng.randint(10**6, 10**8) // max(1, len(before))))
    elif kind in ("link out", "device"):
        file.unlink()
        file.symlink_to(
            rng.choice(["/etc/passwd", "/proc/self/maps", str(template() / "config.yaml")])
            if kind == "link out"
            else rng.choice(["/dev/zero", "/dev/full", "/dev/stdin"])
        )
    elif kind == "swap":
        other = rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))
        file.write_bytes(other.read_bytes())
    elif kind == "json" and file.suffix == ".json":
        file.write_text(json.dumps(junk(json.loads(before), rng)))
    else:
        file.write_bytes(mutated(before, b"x" * 64, rng))
    same = file.is_file() and file.stat().st_size == len(before) and file.read_bytes() == before
    if "ckpt" in file.parts and not same:
        assert checkpoints.check(file.parent) is not None, f"{file} was changed unseen"
    with alarm(120), memory_limit(3 * 10**9):
        step = read_everything(run)
    if "ckpt" in file.parts and not same:
        assert step != checkpoints.step_of(file.parent)
        return "damage found, another checkpoint used"
    return "no harm"
