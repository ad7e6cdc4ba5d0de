"""Methods written for images learn from recordings: several stretches of one are its views."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.evaluate import evaluate_run
from nearfar.modalities import Recordings
from nearfar.modalities.dataset import RowStore, padded
from nearfar.modalities.sound import SOUND
from nearfar.modalities.sound.views import SoundWindows
from nearfar.train.pretrain import pretrain

SMALL: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "workers": 0, "probe_every": 0, "views": {"samples": 400},
    "encoders": {"dim": 16, "hidden": 16},
}  # fmt: skip


def tones(count: int = 32) -> Recordings:
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    waves = [
        np.sin(np.arange(int(generator.integers(500, 900))) * (0.6 if label else 0.2)).astype(np.float32)
        for label in labels
    ]
    return Recordings(
        name="tones", fingerprint="tones", labels=labels, classes=("low", "high"),
        paths=tuple(f"{n}.wav" for n in range(count)), store=RowStore(waves.__getitem__, padded),
        rows=np.arange(count),
        rate=8000, lengths=np.array([len(wave) for wave in waves]),
    )  # fmt: skip


def test_stretches_of_one_recording_are_drawn_apart() -> None:
    series = padded([np.arange(900, dtype=np.float32)] * 3)
    rows = np.array([4, 9, 1])
    one = SoundWindows(100, 1)(series, 7, 2, rows)
    three = SoundWindows(100, 3)(series, 7, 2, rows)
    assert torch.equal(one[0], three[0])  # more views change none of the first
    assert len({float(view[0, 0, 0]) for view in three}) == 3


@pytest.mark.parametrize("recipe", ["simclr", "moco-ring", "byol", "instdisc", "end-to-end"])
def test_recipes_written_for_images_learn_from_recordings(recipe: str, tmp_path: Path) -> None:
    run = pretrain(recipe, tones(), tmp_path, quiet=True, config=SMALL)
    assert run.modality is SOUND
    assert run.settings.backbone == "conv-gru"
    assert run.settings.views["name"] == "window"
    assert all(np.isfinite(row["loss"]) for row in run.metrics if row["kind"] == "train")
    result = evaluate_run(run, protocols=("knn",), baselines=True)
    assert set(result["baselines"]) == {"mfcc", "mfcc-moments", "untrained"}
