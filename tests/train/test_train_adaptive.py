"""Adaptive schedules (Wu et al. 2021, App. E): steps between two ends, in real runs and after
interruptions."""

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


def place(schedule: Adaptive, schedules: AdaptiveSchedules) -> float:
    return schedule(Progress(0, 1, 1, dict(schedules.moves)))


@given(scores=st.lists(st.floats(0, 1), max_size=40), moves=st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_the_score_schedule_counts_rises_and_falls_between_its_ends(scores: list[float], moves: int) -> None:
    schedule = nf.on_score(0.1, 0.9, moves)
    schedules = AdaptiveSchedules([schedule])
    at = 0
    for number, score in enumerate(scores):
        schedules.observe_score(score)
        schedules.observe_loss(1.0 / (number + 1))  # another kind of news
        if number:
            at = max(0, at - 1) if score <= scores[number - 1] else min(moves, at + 1)
        assert place(schedule, schedules) == pytest.approx(0.1 + 0.8 * at / moves)


@given(losses=st.lists(st.floats(0, 10), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_loss_schedule_compares_with_the_moving_average(losses: list[float]) -> None:
    schedule = nf.on_loss(0.0, 1.0, 5)
    schedules = AdaptiveSchedules([schedule])
    averages = list(
        itertools.accumulate(losses, lambda mean, loss: LOSS_MEMORY * mean + (1 - LOSS_MEMORY) * loss)
    )
    at = 0
    for previous, loss in zip([None, *averages], losses, strict=False):
        schedules.observe_loss(loss)
        if previous is not None:
            at = min(5, at + 1) if loss < previous else max(0, at - 1)
    assert place(schedule, schedules) == pytest.approx(at / 5)


@given(
    values=st.lists(st.sampled_from([1.0, 2.0, 3.0, float("nan")]), max_size=30),
    moves=st.integers(1, 4),
    patience=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_a_curriculum_moves_on_when_the_held_out_bound_stalls(
    values: list[float], moves: int, patience: int
) -> None:
    """By loops: a move after `patience` probes that are not above the highest since the last move; never back."""
    schedule = nf.on_bound(8.0, 0.5, moves, patience)
    schedules = AdaptiveSchedules([schedule])
    since_move, expected = list[float](), 0
    for nats in values:
        schedules.observe_bound(nats)
        since_move.append(nats)
        finite = [value for value in since_move if value == value]
        highest = since_move.index(max(finite)) if finite else -1
        if len(since_move) - 1 - highest >= patience and expected < moves:
            since_move, expected = [], expected + 1
        assert schedules.moves[schedule.written()] == expected
        assert place(schedule, schedules) == pytest.approx(8.0 * 0.0625 ** (expected / moves))


def test_a_curriculum_moves_on_when_the_variance_of_the_loss_stalls() -> None:
    """Three steps an epoch. The variance is that around a slow fall: of a, a - b, a it is b^2 / 2, whatever a is."""
    schedule = nf.on_variance(0.0, 0.9, 3)
    schedules, edges = AdaptiveSchedules([schedule], 3), []
    for level, jump in ((9, 2.0), (7, 1.0), (5, 1.5), (3, 1.6), (2, 1.4), (1, 1.4), (1, float("nan"))):
        for loss in (level, level - jump, level):
            schedules.observe_loss(loss)
            restored = AdaptiveSchedules([schedule], 3)
            restored.restore(schedules.state())  # in the midst of an epoch too
            schedules = restored
        edges.append(place(schedule, schedules))
    # lower, higher: a move; a new level, lower, equal: a move; the last epoch has no two finite neighbours
    assert edges == pytest.approx([0.0, 0.0, 0.3, 0.3, 0.3, 0.6, 0.6])


@pytest.mark.parametrize("alpha", ["on_bound(2,0.5,2)", "on_variance(2,0.5,2)"])
def test_a_curriculum_without_a_clock_resumes_exactly(alpha: str, tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(320))
    settings = {
        **SMALL,
        "bound": "ml-cpc",
        "bound.alpha": alpha,
        "held_out": 0.2,
        "epochs": 4,
        "log_every": 1,
    }
    pretrain("moco", images, tmp_path / "whole", config=settings, quiet=True)
    with pytest.raises(Stopped):
        pretrain("moco", images, tmp_path / "parts", config=settings, quiet=True, max_time=1e-6)
    pretrain("moco", images, tmp_path / "parts", config=settings, quiet=True)
    states = [
        checkpoints.load(checkpoints.newest(tmp_path / name / "ckpt") or Path())
        for name in ("whole", "parts")
    ]
    assert states[0][1]["hooks"]["AdaptiveSchedules"] == states[1][1]["hooks"]["AdaptiveSchedules"]
    assert all(torch.equal(tensor, states[1][0][name]) for name, tensor in states[0][0].items())
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    schedule = parse_value(alpha)
    assert isinstance(schedule, Adaptive)
    reference = AdaptiveSchedules([schedule], 4)
    for row in rows:
        if row["kind"] == "train":
            assert row["bound.alpha"] == pytest.approx(place(schedule, reference))
            reference.observe_loss(row["loss"])
        elif row["kind"] == "held-out":
            reference.observe_bound(row["nats"])
    assert reference.moves == states[0][1]["hooks"]["AdaptiveSchedules"]["moves"]
    # what the schedule follows has changed the weights, so it proves nothing about them
    statuses = {row["status"] for row in rows if row["kind"] == "held-out"}
    assert statuses == ({"not covered"} if alpha.startswith("on_bound") else {"proven"})


def test_a_non_finite_loss_counts_as_worse_and_is_forgotten() -> None:
    schedule = nf.on_loss(0.0, 1.0, 5)
    schedules = AdaptiveSchedules([schedule])
    for loss in (3.0, 2.0, 1.0, float("nan"), float("inf"), 0.5):
        schedules.observe_loss(loss)
    assert place(schedule, schedules) == pytest.approx(1 / 5)


def test_adaptive_schedules_continue_from_their_state() -> None:
    schedules = [nf.on_score(0, 1, 4), nf.on_loss(0, 1, 4), nf.linear(0, 1)]
    news = np.random.default_rng(0).random(20)
    uninterrupted, first, second = (
        AdaptiveSchedules(schedules),
        AdaptiveSchedules(schedules),
        AdaptiveSchedules(schedules),
    )
    for tracker, part in ((uninterrupted, news), (first, news[:9])):
        for number in part:
            tracker.observe_score(number)
            tracker.observe_loss(number)
    second.restore(first.state())
    for number in news[9:]:
        second.observe_score(number)
        second.observe_loss(number)
    assert second.state() == uninterrupted.state()


@pytest.mark.parametrize("edge", ["on_score(0,0.9,2)", "on_loss(0,0.9,8)"])
def test_a_run_logs_its_adaptive_edge_and_an_interrupted_one_does_the_same(edge: str, tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(256))
    settings = {**SMALL, "selection.lower": edge}
    pretrain("moco-ring", images, tmp_path / "whole", config=settings, quiet=True)
    # a time limit of almost nothing stops after every step
    for _ in range(12):
        try:
            pretrain("moco-ring", images, tmp_path / "parts", config=settings, quiet=True, max_time=1e-6)
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
        moves = next(iter(states[0][1]["hooks"]["AdaptiveSchedules"]["moves"].values()))
        # the last row tells the edge of the last step, whose loss was heard after it: at most a move apart
        assert edges[-1] > 0.0
        assert abs(edges[-1] / 0.9 * 8 - moves) < 1.001
        assert edges[0] == 0.0
    else:
        # the last row is written before the last probe is taken
        scores = [row["knn_top1"] for row in rows if row["kind"] == "probe"][:-1]
        at = 0
        for previous, score in itertools.pairwise(scores):
            at = min(2, at + 1) if score > previous else max(0, at - 1)
        assert edges[-1] == pytest.approx(0.9 * at / 2)


def test_a_schedule_without_a_signal_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    unlabelled = np.random.default_rng(0).integers(0, 256, (128, 8, 8), dtype=np.uint8)
    settings = {**SMALL, "selection.lower": "on_score(0,0.9)"}
    with pytest.raises(
        UserError, match=r"selection\.lower=on_score\(0\.0,0\.9,10\.0\) follows the kNN probe .* no labels"
    ):
        pretrain("moco-ring", unlabelled, tmp_path / "a", config=settings, quiet=True)
    assert not (tmp_path / "a" / "config.yaml").exists()
    with pytest.raises(UserError, match="probe_every is 0"):
        pretrain("moco-ring", "digits", tmp_path / "b", config={**settings, "probe_every": 0}, quiet=True)
    settings["selection.lower"] = "on_bound(0,0.9)"
    with pytest.raises(
        UserError, match=r"follows the held-out bound but no images are set aside \(held_out\)"
    ):
        pretrain("moco-ring", unlabelled, tmp_path / "c", config=settings, quiet=True)


def test_other_probe_times_are_another_run_for_an_adaptive_schedule(tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(256))
    settings = {**SMALL, "epochs": 1, "selection.lower": "on_score(0,0.9)"}
    pretrain("moco-ring", images, tmp_path, config=settings, quiet=True)
    with pytest.raises(UserError, match="probe_every"):
        pretrain("moco-ring", images, tmp_path, config={**settings, "probe_every": 0.5}, quiet=True)


def test_a_run_with_a_plateau_resumes_and_is_evaluated(tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(128))
    settings = {**SMALL, "lr": "plateau(0.001,0.1,1,2)"}
    uninterrupted = pretrain("moco", images, tmp_path / "whole", config=settings, quiet=True)
    with pytest.raises(Stopped):
        pretrain("moco", images, tmp_path / "parts", config=settings, quiet=True, max_time=1e-6)
    parts = pretrain("moco", images, tmp_path / "parts", config=settings, quiet=True)
    states = [
        checkpoints.load(checkpoints.newest(run.path / "ckpt") or Path()) for run in (uninterrupted, parts)
    ]
    assert states[0][1]["hooks"]["AdaptiveSchedules"] == states[1][1]["hooks"]["AdaptiveSchedules"]
    assert all(torch.equal(tensor, states[1][0][name]) for name, tensor in states[0][0].items())
    assert nf.Run.open(uninterrupted.path).encoder() is not None


def test_a_plateau_drops_after_its_epochs_without_a_lower_loss() -> None:
    """Two steps an epoch, patience 2, two drops at most; means of epochs: 3, 2, 2, 2, 2.5, 1, 2, 2, 2, 2."""
    schedule = nf.plateau(0.5, 0.1, 2, 2)
    schedules, rates = AdaptiveSchedules([schedule], 2), []
    for mean in (3, 2, 2, 2, 2.5, 1, 2, 2, 2, 2):
        for loss in (mean - 0.5, mean + 0.5):
            schedules.observe_loss(loss)
            restored = AdaptiveSchedules([schedule], 2)
            restored.restore(schedules.state())  # in the midst of an epoch too
            schedules = restored
        rates.append(schedules.moves[schedule.written()])
    assert rates == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    for loss in (
        float("nan"),
        2.0,
        float("inf"),
        float("nan"),
    ):  # an epoch's mean is of its finite losses, if there are any
        schedules.observe_loss(loss)
    assert all(np.isfinite(value) for value in schedules.state()["previous"].values())
    rate = schedule(Progress(adaptive_moves=schedules.moves))
    assert rate == pytest.approx(0.005)
    assert parse_value(schedule.written()) == schedule
    assert schedule.ends()[1] == pytest.approx(0.005)
