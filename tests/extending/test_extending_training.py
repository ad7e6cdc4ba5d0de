"""Hooks, loggers and strategies of `examples/extending`: one file each, no line elsewhere."""

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.data import open_data
from nearfar.run import checkpoints

FOLDER = Path(__file__).parents[2] / "examples" / "extending"
SMALL: dict[str, Any] = {
    "batch_size": 16,
    "epochs": 4,
    "workers": 0,
    "precision": "fp32",
    "probe_every": 0,
    "held_out": 0.0,
    "log_every": 1,
    "logger": "none",
    "quiet": True,
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digits() -> Any:
    return open_data("digits").subset(np.arange(64))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 16))


def byol() -> nf.Method:
    """BYOL whose momentum network never moves, so that an update depends on nothing but its gradient."""
    encoders = nf.Momentum(network(), 1.0, predictor=nn.Linear(16, 16))
    return nf.Method(encoders, nf.Cosine(1.0), nf.NoNegatives(), nf.Everyone(), nf.Agreement())


def weights(run: nf.Run) -> dict[str, Tensor]:
    tensors = checkpoints.load(run.checkpoint)[0]
    return {name: tensor for name, tensor in tensors.items() if name.startswith("method/")}


def epoch_means(run: nf.Run) -> list[float]:
    losses = [row["loss"] for row in run.metrics if row["kind"] == "train"]
    return [float(np.mean(losses[k : k + 4])) for k in range(0, len(losses), 4)]


def test_early_stopping_ends_where_the_loss_says_also_after_interruptions(tmp_path: Path) -> None:
    """A gain that no epoch reaches: the first epoch is the best, and `patience` later the run ends."""
    hook = example("hook").EarlyStopping
    settings = {**SMALL, "backbone": network(), "epochs": 9}
    run = nf.pretrain(
        "simclr", digits(), tmp_path / "a", hooks=[hook(patience=2, min_gain=100.0)], **settings
    )
    assert run.facts["step"] == 3 * 4
    assert run.facts["ended"] == "the loss has not improved for 2 epochs"
    logged = [row["mean_loss"] for row in run.metrics if row["kind"] == "early-stopping"]
    assert logged == pytest.approx(epoch_means(run))
    for _ in range(30):
        try:
            hooks = [hook(patience=2, min_gain=100.0)]
            parts = nf.pretrain("simclr", digits(), tmp_path / "b", hooks=hooks, max_time=1e-9, **settings)
        except nf.Stopped:
            continue
        break
    assert parts.facts["ended"] == run.facts["ended"]
    assert all(torch.equal(tensor, weights(parts)[name]) for name, tensor in weights(run).items())
    patient = nf.pretrain("simclr", digits(), tmp_path / "c", hooks=[hook(patience=99)], **settings)
    assert patient.facts["ended"] is None


def test_a_logger_writes_every_logged_step(tmp_path: Path) -> None:
    logger = example("logger").CsvLogger(tmp_path / "losses.csv")
    settings = {**SMALL, "backbone": network()}
    run = nf.pretrain("simclr", digits(), tmp_path / "run", loggers=[logger], **settings)
    rows = list(csv.reader((tmp_path / "losses.csv").read_text().splitlines()))
    expected = [row for row in run.metrics if row["kind"] == "train"]
    assert [[int(step), float(loss), float(lr)] for step, loss, lr in rows] == [
        [row["step"], row["loss"], row["lr"]] for row in expected
    ]


def test_a_strategy_that_exchanges_nothing_trains_the_same_bits(tmp_path: Path) -> None:
    strategy = example("strategy").CountingStrategy()
    settings = {**SMALL, "backbone": network(), "checkpoint_every": 100}
    baseline = nf.pretrain("moco", digits(), tmp_path / "plain", negatives={"size": 32}, **settings)
    run = nf.pretrain(
        "moco", digits(), tmp_path / "run", negatives={"size": 32}, strategy=strategy, **settings
    )
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in weights(baseline).items())
    assert strategy.steps == 16 + 1  # the last step is computed again before its state is saved
    assert strategy.bytes > 0


def test_accumulated_gradients_are_those_of_a_larger_batch(tmp_path: Path) -> None:
    """Without negatives and batch norm, two batches of 16 are one of 32: same order, same views, same mean.
    Also if interrupted between the two."""
    accumulation = example("accumulation").GradientAccumulation
    settings = {**SMALL, "optimizer": "sgd", "lr": "linear(0.5,0.5)"}

    def train(name: str, **changes: Any) -> nf.Run:
        return nf.pretrain(byol(), digits(), tmp_path / name, **{**settings, **changes})

    large, baseline = train("large", batch_size=32), train("plain")
    small = train("small", hooks=[accumulation(2)])
    moved = 0.0
    for name, tensor in weights(large).items():
        torch.testing.assert_close(weights(small)[name], tensor, rtol=1e-4, atol=1e-5)
        moved = max(moved, float((weights(baseline)[name] - tensor).abs().max()))
    assert moved > 1e-3
    for _ in range(20):
        try:
            parts = train("parts", hooks=[accumulation(2)], max_time=1e-9)
        except nf.Stopped:
            continue
        break
    assert all(torch.equal(tensor, weights(parts)[name]) for name, tensor in weights(small).items())
    with pytest.raises(nf.UserError, match="for objectives without negatives"):
        nf.pretrain(
            "simclr", digits(), tmp_path / "e", backbone=network(), hooks=[accumulation(2)], **settings
        )
