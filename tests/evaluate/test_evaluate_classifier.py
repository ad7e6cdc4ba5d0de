"""The classifier that a run learned is used without a fit, in the run's classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.errors import UserError

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "quiet": True}


def sample(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    noise = np.random.default_rng(seed).normal(size=(count, 6))
    return (noise + 1.5 * np.eye(6)[labels]).astype(np.float32), labels


def test_classifier_answers_are_the_largest_scores(tmp_path: Path) -> None:
    x, y = sample(48, 1)
    run = nf.train(sample(96, 0), tmp_path, **QUICK)
    result = nf.evaluate(run, data=(x, y), protocols=["classifier"], same_labels=True)["classifier"]
    encoders: Any = run.method().encoders
    description: Any = run.description
    inputs = (torch.from_numpy(x) - torch.tensor(description.mean)) / torch.tensor(description.std)
    with torch.no_grad():
        predictions = encoders.table(encoders.network(inputs)).argmax(1).numpy()
    assert result["top1"] == (predictions == y).mean()
    assert result["interval"][0] <= result["top1"] <= result["interval"][1]


def test_classifier_protocol_needs_a_classifier_and_the_same_classes(tmp_path: Path) -> None:
    bare = nf.pretrain("simclr", sample(96, 0), tmp_path / "bare", **QUICK)
    with pytest.raises(UserError, match="this run has none, use linear"):
        nf.evaluate(bare, data=sample(48, 1), protocols=["classifier"], same_labels=True)
    run = nf.train(sample(96, 0), tmp_path / "own", **QUICK)
    with pytest.raises(UserError, match="the classes that the run learned; omit train"):
        nf.evaluate(run, train=sample(60, 2), data=sample(48, 1), protocols=["classifier"], same_labels=True)
