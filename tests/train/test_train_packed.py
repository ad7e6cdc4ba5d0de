"""Runs on data that are never loaded whole: killed and resumed, evaluated, embedded, reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_digits

import nearfar as nf
from nearfar.data import open_data, pack
from nearfar.data import packing as packing_module
from nearfar.data.source import Limits
from nearfar.run import checkpoints
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.data.test_data_packed import as_parquet
from tests.forked import Forked
from tests.helpers import newest_tensors

SMALL: dict[str, Any] = {"backbone": "resnet8-w16", "batch_size": 64, "epochs": 2, "seed": 3, "workers": 2}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,100 digits in 18 row groups of 5 shards."""
    digits = load_digits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module, "MAX_ROWS", 64)
        patch.setattr(packing_module, "SHARD_BYTES", 2**15)
        images = (digits.images[:1100] * 15).astype(np.uint8)
        out = pack(images, tmp_path_factory.mktemp("data") / "p", labels=digits.target[:1100])
    return str(out)


def same(first: Path, second: Path) -> bool:
    ours, theirs = newest_tensors(first), newest_tensors(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_kill_9_in_mid_epoch_then_resumed_is_bit_equal(packed: str, tmp_path: Path) -> None:
    uninterrupted, cut = tmp_path / "whole", tmp_path / "cut"
    pretrain("moco", packed, uninterrupted, quiet=True, config=SMALL)
    words = [f"{key}={value}" for key, value in SMALL.items()]
    child = Forked("pretrain", "moco", packed, "--out", cut, *words, "checkpoint_every=3", "--quiet")
    child.wait_until(lambda: checkpoints.last_named(cut / "ckpt") >= 6)
    child.kill()
    step = checkpoints.newest_step(cut / "ckpt")
    assert step is not None
    assert 0 < step < 32
    assert step % 16  # 1,045 to train on, batches of 64: 16 steps are an epoch
    pretrain("moco", packed, cut, quiet=True, config={**SMALL, "checkpoint_every": 3})
    assert same(uninterrupted, cut)


def test_a_packed_run_is_evaluated_embedded_and_reported(packed: str, tmp_path: Path) -> None:
    run = pretrain("simclr", packed, tmp_path / "run", quiet=True, config={**SMALL, "epochs": 1})
    reopened = Run.open(tmp_path / "run")
    result = nf.evaluate_run(reopened, protocols=["knn", "linear"], baselines=True)
    assert result["knn"]["top1"] > 0.2
    assert result["baselines"]["pixels"]["knn"]["top1"] > 0.5
    from nearfar.cli import main

    out = tmp_path / "features.parquet"
    assert main(["embed", str(tmp_path / "run"), packed, "--out", str(out)]) == 0
    table = pq.read_table(out)
    data = open_data(packed)
    assert table.column("path").to_pylist() == list(data.paths)
    assert table.column("label").to_pylist() == data.labels.tolist()
    features = torch.tensor(table.column("feature").to_pylist())
    assert torch.equal(features, reopened.embed(packed))
    assert torch.equal(features, run.embed(data))
    page = nf.write_report([reopened], tmp_path / "page.html")
    assert "could not be" not in Path(page or tmp_path / "page.html").read_text()


def test_a_bad_row_found_during_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet above `scan_bytes`: weights do not depend on when bad rows are found, and evaluation skips
    them."""
    *defaults, _, meet = Limits.__init__.__defaults__ or ()
    monkeypatch.setattr(Limits.__init__, "__defaults__", (*defaults, 0, meet))
    assert Limits().scan_bytes == 0
    images = np.random.default_rng(0).integers(0, 256, (90, 16, 16, 3), dtype=np.uint8)
    spec = as_parquet(tmp_path / "data", images, bad=(7, 50))
    config = {**SMALL, "batch_size": 16, "epochs": 2, "probe_every": 0}
    one = pretrain("simclr", spec, tmp_path / "one", quiet=True, config=config)
    assert one.facts["data"]["instances"] == 90  # not yet known at the start
    listed = (tmp_path / "one" / "quarantine.csv").read_text().splitlines()
    assert len(listed) == 3
    notes = one.folder.notes()
    assert notes is not None
    assert sum(notes.set_aside.values()) == 2
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "quarantine.csv").write_text("\n".join(reversed(listed)) + "\n")
    pretrain("simclr", spec, tmp_path / "two", quiet=True, config=config)
    assert same(tmp_path / "one", tmp_path / "two")
    assert len(Run.open(tmp_path / "one").embed(spec)) == 88
    assert (tmp_path / "one" / "cache").exists()
