"""Adaptive schedules (Wu et al. 2021, App. E): walks of whole moves between two ends, in real runs too, and across stops."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.core.schedules import Adaptive, Progress, parse_value
from nearfar.data import open_data
from nearfar.errors import Stopped, UserError
from nearfar.run import checkpoints
from nearfar.run.metrics import read_metrics
from nearfar.train.hooks import LOSS_MEMORY, AdaptiveSchedules
from nearfar.train.pretrain import pretrain

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 64,
    "epochs": 3,
    "workers": 1,
    "image_size": 8,
    "encoders.hidden": 32,
    "encoders.dim": 16,
    "negatives.size": 128,
}


def place(schedule: Adaptive, walks: AdaptiveSchedules) -> float:
    return schedule(Progress(0, 1, 1, dict(walks.moves)))


@given(scores=st.lists(st.floats(0, 1), max_size=40), moves=st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_the_score_walk_is_a_count_of_rises_and_falls_kept_between_the_ends(
    scores: list[float], moves: int
) -> None:
    schedule = nf.on_score(0.1, 0.9, moves)
    walks = AdaptiveSchedules([schedule])
    at = 0
    for number, score in enumerate(scores):
        walks.observe_score(score)
        walks.observe_loss(1.0 / (number + 1))  # another kind of news
        if number:
            at = max(0, at - 1) if score <= scores[number - 1] else min(moves, at + 1)
        assert place(schedule, walks) == pytest.approx(0.1 + 0.8 * at / moves)


@given(losses=st.lists(st.floats(0, 10), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_loss_walk_compares_with_the_moving_average(losses: list[float]) -> None:
    schedule = nf.on_loss(0.0, 1.0, 5)
    walks = AdaptiveSchedules([schedule])
    averages = list(
        itertools.accumulate(losses, lambda mean, loss: LOSS_MEMORY * mean + (1 - LOSS_MEMORY) * loss)
    )
    at = 0
    for before, loss in zip([None, *averages], losses, strict=False):
        walks.observe_loss(loss)
        if before is not None:
            at = min(5, at + 1) if loss < before else max(0, at - 1)
    assert place(schedule, walks) == pytest.approx(at / 5)


def test_a_loss_that_is_not_finite_is_bad_news_and_forgotten() -> None:
    schedule = nf.on_loss(0.0, 1.0, 5)
    walks = AdaptiveSchedules([schedule])
    for loss in (3.0, 2.0, 1.0, float("nan"), float("inf"), 0.5):
        walks.observe_loss(loss)
    assert place(schedule, walks) == pytest.approx(1 / 5)


def test_walks_go_on_from_their_state() -> None:
    schedules = [nf.on_score(0, 1, 4), nf.on_loss(0, 1, 4), nf.linear(0, 1)]
    news = np.random.default_rng(0).random(20)
    whole, first, second = (
        AdaptiveSchedules(schedules),
        AdaptiveSchedules(schedules),
        AdaptiveSchedules(schedules),
    )
    for walks, part in ((whole, news), (first, news[:9])):
        for number in part:
            walks.observe_score(number)
            walks.observe_loss(number)
    second.restore(first.state())
    for number in news[9:]:
        second.observe_score(number)
        second.observe_loss(number)
    assert second.state() == whole.state()


@pytest.mark.parametrize("edge", ["on_score(0,0.9,2)", "on_loss(0,0.9,8)"])
def test_a_run_logs_what_its_edge_does_and_a_stopped_one_does_the_same(edge: str, tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(256))
    chosen = {**SMALL, "selection.lower": edge}
    pretrain("moco-ring", images, tmp_path / "whole", config=chosen, quiet=True)
    # a time limit of almost nothing stops after every step
    for _ in range(12):
        try:
            pretrain("moco-ring", images, tmp_path / "parts", config=chosen, quiet=True, max_time=1e-6)
        except Stopped:
            continue
    states = [
        checkpoints.load(checkpoints.newest(tmp_path / name / "ckpt") or Path())
        for name in ("whole", "parts")
    ]
    assert states[0][1]["hooks"]["AdaptiveSchedules"] == states[1][1]["hooks"]["AdaptiveSchedules"]
    assert all(torch.equal(tensor, states[1][0][name]) for name, tensor in states[0][0].items())
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    edges = [row["selection.lower"] for row in rows if row["kind"] == "train"]
    if edge.startswith("on_loss"):
        walked = next(iter(states[0][1]["hooks"]["AdaptiveSchedules"]["moves"].values()))
        # the last row tells the edge of the last step, whose loss was heard after it: at most a move apart
        assert edges[-1] > 0.0
        assert abs(edges[-1] / 0.9 * 8 - walked) < 1.001
        assert edges[0] == 0.0
    else:
        # the last row is written before the last probe is taken
        scores = [row["knn_top1"] for row in rows if row["kind"] == "probe"][:-1]
        at = 0
        for before, score in itertools.pairwise(scores):
            at = min(2, at + 1) if score > before else max(0, at - 1)
        assert edges[-1] == pytest.approx(0.9 * at / 2)


def test_a_schedule_without_anything_to_hear_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    unlabelled = np.random.default_rng(0).integers(0, 256, (128, 8, 8), dtype=np.uint8)
    chosen = {**SMALL, "selection.lower": "on_score(0,0.9)"}
    with pytest.raises(
        UserError, match=r"selection\.lower=on_score\(0\.0,0\.9,10\.0\) follows the kNN probe .* no labels"
    ):
        pretrain("moco-ring", unlabelled, tmp_path / "a", config=chosen, quiet=True)
    assert not (tmp_path / "a" / "config.yaml").exists()
    with pytest.raises(UserError, match="probe_every is 0"):
        pretrain("moco-ring", "digits", tmp_path / "b", config={**chosen, "probe_every": 0}, quiet=True)


def test_probing_at_other_times_is_another_run_when_a_schedule_listens(tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(256))
    chosen = {**SMALL, "epochs": 1, "selection.lower": "on_score(0,0.9)"}
    pretrain("moco-ring", images, tmp_path, config=chosen, quiet=True)
    with pytest.raises(UserError, match="probe_every"):
        pretrain("moco-ring", images, tmp_path, config={**chosen, "probe_every": 0.5}, quiet=True)


def test_a_run_with_a_plateau_stops_goes_on_and_is_evaluated(tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(128))
    chosen = {**SMALL, "lr": "plateau(0.001,0.1,1,2)"}
    whole = pretrain("moco", images, tmp_path / "whole", config=chosen, quiet=True)
    with pytest.raises(Stopped):
        pretrain("moco", images, tmp_path / "parts", config=chosen, quiet=True, max_time=1e-6)
    parts = pretrain("moco", images, tmp_path / "parts", config=chosen, quiet=True)
    states = [checkpoints.load(checkpoints.newest(run.path / "ckpt") or Path()) for run in (whole, parts)]
    assert states[0][1]["hooks"]["AdaptiveSchedules"] == states[1][1]["hooks"]["AdaptiveSchedules"]
    assert all(torch.equal(tensor, states[1][0][name]) for name, tensor in states[0][0].items())
    assert nf.Run.open(whole.path).encoder() is not None


def test_a_plateau_drops_after_so_many_epochs_without_a_lower_loss() -> None:
    """Two steps an epoch, patience 2, two drops at most; means of epochs: 3, 2, 2, 2, 2.5, 1, 2, 2, 2, 2."""
    schedule = nf.plateau(0.5, 0.1, 2, 2)
    walks, found = AdaptiveSchedules([schedule], 2), []
    for mean in (3, 2, 2, 2, 2.5, 1, 2, 2, 2, 2):
        for loss in (mean - 0.5, mean + 0.5):
            walks.observe_loss(loss)
            restored = AdaptiveSchedules([schedule], 2)
            restored.restore(walks.state())  # in the midst of an epoch too
            walks = restored
        found.append(walks.moves[schedule.written()])
    assert found == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    for loss in (
        float("nan"),
        2.0,
        float("inf"),
        float("nan"),
    ):  # an epoch's mean is of its finite losses, if there are any
        walks.observe_loss(loss)
    assert all(np.isfinite(value) for value in walks.state()["previous"].values())
    rate = schedule(Progress(adaptive_moves=walks.moves))
    assert rate == pytest.approx(0.005)
    assert parse_value(schedule.written()) == schedule
    assert schedule.ends()[1] == pytest.approx(0.005)
