"""BYOL stays alive; without its predictor or its stopped gradient it collapses, and the monitor warns."""

from pathlib import Path
from typing import Any

import pytest

from nearfar.train.pretrain import pretrain

CONFIG: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 128,
    "epochs": 14,
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
    run = pretrain("byol", "digits", tmp_path, quiet=True, config={**CONFIG, "encoders": encoders})
    events = [row["message"] for row in run.metrics if row["kind"] == "event"]
    assert any("collapsed" in message for message in events) is collapses
