"""The online linear head: the thesis' curves, and a method that is trained as without it."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import Stopped, UserError
from nearfar.run import checkpoints
from nearfar.train.session import Session
from nearfar.train.step import StepOutcome

SMALL = {
    "backbone": "resnet8-w8", "batch_size": 64, "epochs": 6, "image_size": 8, "workers": 1, "probe_every": 0,
    "log_every": 4, "encoders.hidden": 16, "encoders.dim": 8, "held_out": 0,
}  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = checkpoints.load(checkpoints.newest(folder / "ckpt") or Path())[0]
    return {name: tensor for name, tensor in state.items() if name.startswith("method/")}


class Losses(nf.Hook):
    """The run's own loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_step(self, session: Session, outcome: StepOutcome) -> None:
        self.values.append(outcome.loss)


@pytest.mark.parametrize("recipe", ["simclr", "byol"])
def test_the_online_head_reports_the_thesis_curves(recipe: str, tmp_path: Path) -> None:
    """Sáez Maldonado 2021, Fig. 26-34: contrastive loss (the run's own, its mean since the last row), supervised and total
    loss, top-1 and top-5, of simclr and byol. The method's weights are those without the head, bit for bit; stopped and resumed, the head is the same too."""
    images = open_data("digits").subset(np.arange(256))
    losses = Losses()
    nf.pretrain(recipe, images, tmp_path / "plain", config=SMALL, quiet=True)
    nf.pretrain(
        recipe, images, tmp_path / "online", config=SMALL, quiet=True, hooks=[nf.OnlineHead(), losses]
    )
    plain, online = weights(tmp_path / "plain"), weights(tmp_path / "online")
    assert plain.keys() == online.keys()
    assert all(torch.equal(plain[name], online[name]) for name in plain)
    lines = (tmp_path / "online" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "online"]
    assert len(rows) > 5
    steps = [0, *(row["step"] for row in rows)]
    assert steps[-1] == len(losses.values)
    for (since, until), row in zip(pairwise(steps), rows, strict=True):
        assert row["contrastive"] == pytest.approx(np.mean(losses.values[since:until]))
        assert row["total"] == pytest.approx(row["contrastive"] + row["supervised"])
        assert 0 <= row["top1"] <= row["top5"] <= 1
    assert rows[0]["supervised"] == pytest.approx(math.log(10), abs=1e-5)  # weights begin at zero
    assert rows[-1]["supervised"] < rows[0]["supervised"] - 0.05
    assert rows[-1]["top1"] > 0.15
    with pytest.raises(Stopped):
        nf.pretrain(
            recipe,
            images,
            tmp_path / "parts",
            config=SMALL,
            quiet=True,
            hooks=[nf.OnlineHead()],
            max_time=1e-6,
        )
    nf.pretrain(recipe, images, tmp_path / "parts", config=SMALL, quiet=True, hooks=[nf.OnlineHead()])
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    resumed = [row for row in map(json.loads, lines) if row["kind"] == "online"]
    assert resumed[-1] == rows[-1]


def test_what_an_online_head_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (80, 8, 8, 3), dtype=np.uint8)
    with pytest.raises(UserError, match="OnlineHead needs labels"):
        nf.pretrain("simclr", pixels, tmp_path / "run", config=SMALL, quiet=True, hooks=[nf.OnlineHead()])
