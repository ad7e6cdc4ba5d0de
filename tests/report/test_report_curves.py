"""Laws of thinning: nothing invented, extremes kept, gaps shown."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.report.gather import POINTS, curve_of, curves_of


def logged_values(size: int, seed: int, outlier: float) -> list[float | None]:
    """`size` numbers, a share `odd` of them null, NaN or infinite."""
    rng = np.random.default_rng(seed)
    oddities = [None, math.nan, math.inf, -math.inf]
    return [
        oddities[rng.integers(4)] if rng.random() < outlier else float(rng.standard_normal() * 10)
        for _ in range(size)
    ]


# lists drawn element by element stay short: the size is drawn itself, so that most curves are thinned
@given(st.integers(0, 4 * POINTS), st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.6, 0.99, 1.0]))
@settings(deadline=None, max_examples=60)
def test_a_curve_is_light_and_spans_exactly_what_was_logged(size: int, seed: int, outlier: float) -> None:
    logged = logged_values(size, seed, outlier)
    curve = curve_of(enumerate(logged))
    measured = [v for v in logged if v is not None]
    finite = [v for v in measured if math.isfinite(v)]
    if not finite:
        assert curve is None
        return
    assert curve is not None
    assert (
        len(curve.epoch)
        == len(curve.value)
        == len(curve.low)
        == len(curve.high)
        == min(POINTS, len(measured))
    )
    assert np.nanmin(curve.low) == min(finite)
    assert np.nanmax(curve.high) == max(finite)
    assert (curve.first, curve.last) == (finite[0], finite[-1])
    assert curve.broken == len(measured) - len(finite)
    assert all(a < b for a, b in zip(curve.epoch, curve.epoch[1:], strict=False))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=POINTS))
@settings(deadline=None, max_examples=40)
def test_a_short_curve_is_itself(logged: list[float]) -> None:
    curve = curve_of(enumerate(logged))
    assert curve is not None
    assert curve.value == tuple(logged) == curve.low == curve.high


def test_thinning_keeps_the_mean() -> None:
    logged = np.random.default_rng(0).standard_normal(POINTS * 7)
    curve = curve_of(enumerate(logged.tolist()))
    assert curve is not None
    np.testing.assert_allclose(curve.value, logged.reshape(POINTS, 7).mean(axis=1))


def test_a_hundred_thousand_rows_with_gaps_and_nulls(make_rows: Callable[..., list[dict[str, Any]]]) -> None:
    rows = make_rows(100_000, per_epoch=1000)
    for row in rows[:50]:
        row["loss"] = math.nan
    for row in rows:
        if row["kind"] == "train":
            row["nats"] = row["ceiling"] = None
    curves = curves_of(rows)
    assert "nats" not in curves
    assert "ceiling" not in curves
    assert curves["loss"].broken == 50
    assert len(curves["loss"].value) == POINTS
    assert len(curves["knn_top1"].value) == 99


def test_no_rows_no_curves() -> None:
    assert curves_of([]) == {}
    assert curves_of([{"kind": "event", "step": 1, "message": "x"}]) == {}
