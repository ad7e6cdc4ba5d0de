"""Time series: windows and their neighbours, stretches held out, contrast in time."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.series import TIME_SERIES, TimeSeries, time_series
from nearfar.modalities.series.views import Neighbouring

CPU = torch.device("cpu")


def counting(n: int, **more: int) -> TimeSeries:
    """Row t holds t, so that a window shows its time."""
    return time_series(np.arange(n, dtype=np.float64), **more)


def times(views: tuple[torch.Tensor, ...], data: TimeSeries) -> list[np.ndarray]:
    description: Any = TIME_SERIES.reader.describe(data, None)
    return [
        np.rint(view.numpy()[..., 0] * description.std[0] + description.mean[0]).astype(int) for view in views
    ]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_a_neighbour_is_at_most_offset_rows_away_and_never_the_time_itself(
    window: int, offset: int, epoch: int
) -> None:
    data = counting(60, window=window, offset=offset)
    assert len(data) == 60 - window - 2 * offset + 1
    choice = TIME_SERIES.views.of({"name": "neighbouring", "window": window, "offset": offset})
    views = choice.training(TIME_SERIES.reader.describe(data, None), CPU)
    rows = np.arange(len(data))
    anchor, neighbour = times(views(data.load(rows), 3, epoch, rows), data)
    np.testing.assert_array_equal(anchor, rows[:, None] + offset + np.arange(window))
    np.testing.assert_array_equal(np.diff(neighbour, axis=1), 1)  # rows one after another
    distances = neighbour[:, 0] - anchor[:, 0]
    assert (np.abs(distances) <= offset).all()
    assert (distances != 0).all()


def test_every_neighbour_is_as_likely() -> None:
    """Pearson's statistic of 2 x offset - 1 degrees over 4,000 draws stays below its 1 - 1e-6 quantile."""
    data = counting(4005, window=1, offset=3)
    choice = TIME_SERIES.views.of({"name": "neighbouring", "window": 1, "offset": 3})
    rows = np.arange(len(data))
    views = choice.training(TIME_SERIES.reader.describe(data, None), CPU)
    anchor, neighbour = times(views(data.load(rows), 0, 0, rows), data)
    counts = np.bincount((neighbour - anchor)[:, 0] + 3, minlength=7)
    assert counts[3] == 0
    expected = len(data) / 6
    assert ((counts[[0, 1, 2, 4, 5, 6]] - expected) ** 2 / expected).sum() < 36.0


def test_windows_stay_within_their_series_and_carry_the_label_of_their_middle() -> None:
    owner = np.repeat([5, 2, 5], 40)  # one that comes back is another stretch of time
    data = time_series(np.arange(120), labels=np.arange(120), series=owner, window=4, offset=3)
    stretches = data.load(np.arange(len(data)))[..., 0]
    assert (stretches[:, 0] // 40 == stretches[:, -1] // 40).all()
    assert len(data) == 3 * (40 - 10 + 1)
    np.testing.assert_array_equal(data.labels, stretches[:, 3 + 1])
    assert len(np.unique(np.asarray(data.cut_from))) == 3


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_held_out_windows_share_no_row_with_training(seed: int) -> None:
    owner = np.repeat([0, 1], [200, 2000])
    data = time_series(np.arange(2200), labels=np.arange(2200) % 2, series=owner, window=5, offset=4)
    rest, holdout = data.parts(0.2, seed)
    assert not {*data.load(rest).ravel()} & {*data.load(holdout).ravel()}
    all_rows = np.asarray(data.cut_from)
    for series, stretches in (
        (0, 1),
        (1, 7),
    ):  # of a long series several stretches, in which all of its times are
        mine = holdout[all_rows[holdout] == series]
        assert abs(len(mine) / (all_rows == series).sum() - 0.2) < 0.05
        assert (np.diff(mine) > 1).sum() + 1 == stretches
    assert len(rest) > 0.5 * len(data)


def test_classes_missing_in_training_are_not_tested() -> None:
    data = time_series(np.arange(600), labels=np.repeat([0, 1, 2], [260, 30, 310]), window=2, offset=2)
    for seed in range(5):
        rest, holdout = data.parts(0.2, seed)
        labels = np.asarray(data.labels)
        assert {*labels[holdout]} <= {*labels[rest]}


def test_invalid_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b,label\n" + "\n".join(f"{t},{t * t},{'xy'[t % 2]}" for t in range(50)))
    opened = open_data(f"series:{table}")
    assert (len(opened), opened.width, opened.classes) == (50 - 30 + 1, 2, ("x", "y"))
    np.savez(tmp_path / "t.npz", x=np.ones((50, 2)), labels=np.arange(50) % 3)
    assert len(open_data(f"series:{tmp_path / 't.npz'}")) == 21
    with pytest.raises(UserError, match="no series is longer than 30 rows"):
        time_series(np.zeros((20, 2)))
    with pytest.raises(UserError, match=r"is not a file that exists; expected \.csv"):
        open_data(f"series:{tmp_path / 'none.csv'}")
    with pytest.raises(UserError, match="row 3 holds a number that is not finite"):
        time_series(np.where(np.arange(60) == 3, np.nan, 0.0))
    (tmp_path / "w.csv").write_text("a,b\n" + "\n".join(f"{t},word" for t in range(50)))
    with pytest.raises(UserError, match="the column `b` does not hold numbers"):
        open_data(f"series:{tmp_path / 'w.csv'}")
    with pytest.raises(UserError, match=r"views\.offset was 0; expected a whole number from 1"):
        Neighbouring(offset=0)
    with pytest.raises(UserError, match="too few to hold out a stretch of time"):
        time_series(np.arange(33), labels=np.arange(33) % 2).parts(0.2, 0)


def test_one_command_learns_a_slow_motion_and_claims_nothing(tmp_path: Path) -> None:
    """Of a slow and a fast hidden angle, each seen by half of the channels, contrast in time keeps the slow
    one; overlapping windows of one series are no independent draws, so no estimate on them is proven."""
    rng = np.random.default_rng(0)
    slow, fast = np.cumsum(rng.normal(0, 0.05, 1500)), np.cumsum(rng.normal(0, 2.0, 1500))
    channels = [np.cos(slow), np.sin(slow), np.cos(fast), np.sin(fast)]
    rows = np.stack(channels, axis=1) + rng.normal(0, 0.5, (1500, 4))
    labels = np.floor(slow % (2 * math.pi) / (math.pi / 2)).astype(int)
    data = time_series(rows, labels)
    settings: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 128,
        "backbone": "conv1d-small",
        "quiet": True,
        "probe_every": 1,
    }
    run = nf.pretrain("cebra", data, tmp_path / "run", **settings)
    claims = {row["status"] for row in run.metrics if row["kind"] == "held-out"}
    assert claims == {"not covered"}
    result = nf.evaluate(run, protocols=["linear"])
    assert result["split"]["stratified"] is False
    assert result["linear"]["top1"] > 0.6  # chance is about a quarter
    embedded = run.embed(data)
    assert embedded.shape == (len(data), 32)
