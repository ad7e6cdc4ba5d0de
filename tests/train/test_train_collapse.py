"""BYOL stays alive; without its predictor or its stopped gradient it collapses, and the monitor warns."""

from pathlib import Path
from typing import Any

import pytest

from nearfar.data import open_data
from nearfar.train.pretrain import pretrain

CONFIG: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 64,
    "epochs": 9,  # of 14 steps; the monitor reads ten times in 100 steps
    "probe_every": 0,
    "checkpoint_every": 1000,
    "views": {"crop_scale": [0.5, 1.0], "flip": 0.0},
}


@pytest.mark.parametrize(
    ("encoders", "collapses"),
    [
        ({}, False),
        ({"predictor": "none"}, True),
        ({"name": "shared", "stop_gradient": False, "predictor": "mlp"}, True),
        ({"name": "shared", "stop_gradient": True, "predictor": "mlp"}, False),
    ],
    ids=["byol", "no predictor", "no stop-gradient", "simsiam"],
)
def test_the_monitor_separates_living_methods_from_collapsed_ones(
    encoders: dict[str, Any], collapses: bool, tmp_path: Path
) -> None:
    images = open_data("digits").subset(range(900))
    run = pretrain("byol", images, tmp_path, quiet=True, config={**CONFIG, "encoders": encoders})
    events = [row["message"] for row in run.metrics if row["kind"] == "event"]
    assert any("collapsed" in message for message in events) is collapses
