"""Schedules: pure functions of progress, the same written as read."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.core.schedules import Progress, Schedule, at, parse_value
from nearfar.errors import UserError

ends = st.floats(0.001, 100)
progresses = st.builds(
    lambda step, rest, per: Progress(step, step + rest, per),
    st.integers(0, 1000),
    st.integers(1, 1000),
    st.integers(1, 50),
)


@given(a=ends, b=ends, progress=progresses)
@settings(max_examples=100, deadline=None)
def test_shapes_equal_their_formulas(a: float, b: float, progress: Progress) -> None:
    t = progress.step / progress.steps
    assert nf.linear(a, b)(progress) == pytest.approx((1 - t) * a + t * b)
    assert nf.geometric(a, b)(progress) == pytest.approx(math.exp((1 - t) * math.log(a) + t * math.log(b)))
    assert nf.cosine(a, b)(progress) == pytest.approx(b + (a - b) * math.cos(math.pi * t / 2) ** 2)


def test_alpha_curricula_cross_one_half_way() -> None:
    """Song & Ermon 2020, sec. 5.3, with the erratum: 5 to 0.2, geometric."""
    for start, end in ((2, 0.5), (5, 0.2), (10, 0.1)):
        assert nf.geometric(start, end)(Progress(50, 100)) == pytest.approx(1.0)


def test_stairs_rise_by_equal_jumps_after_equal_times() -> None:
    """Step policy of Wu et al. 2021, App. E: 0, .3, .6, .9 for a quarter of the run each."""
    observed = [nf.stairs(0.0, 0.9, 3)(Progress(step, 100)) for step in range(101)]
    expected = [0.0] * 25 + [0.3] * 25 + [0.6] * 25 + [0.9] * 26
    assert observed == pytest.approx(expected)
    assert nf.stairs(1.0, 0.0, 1, epochs=4)(Progress(10, 100, 10)) == 1.0
    assert nf.stairs(1.0, 0.0, 1, epochs=4)(Progress(20, 100, 10)) == 0.0
    with pytest.raises(UserError, match="jumps was"):
        nf.stairs(0, 1, 0.5)


def test_a_schedule_stays_at_its_end() -> None:
    ring = nf.linear(0.0, 0.9, epochs=2)
    values = [ring(Progress(step, 100, 10)) for step in (0, 10, 20, 90)]
    assert values == pytest.approx([0.0, 0.45, 0.9, 0.9])


def test_warm_up_rises_to_the_start_and_then_falls() -> None:
    rate = nf.cosine(1.0, 0.0, warmup=2)
    values = [rate(Progress(step, 100, 10)) for step in range(100)]
    assert values[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert all(a >= b for a, b in itertools.pairwise(values[19:]))
    assert values[20] == pytest.approx(1.0)
    assert 0 < values[99] < 0.01


def test_steps_drop_at_their_epochs() -> None:
    rate = nf.steps(0.03, 0.1, 200, 250)
    at_epoch = [rate(Progress(epoch * 7, 10_000, 7)) for epoch in (0, 199, 200, 249, 250)]
    assert at_epoch == pytest.approx([0.03, 0.03, 0.003, 0.003, 0.0003])


@given(
    schedule=st.one_of(
        st.builds(nf.linear, ends, ends, st.none() | ends),
        st.builds(nf.geometric, ends, ends, st.none() | ends),
        st.builds(nf.cosine, ends, ends, st.none() | ends, st.none() | ends),
        st.builds(nf.steps, ends, ends, ends, ends),
    )
)
@settings(max_examples=100, deadline=None)
def test_written_schedules_are_read_back(schedule: Schedule) -> None:
    assert parse_value(schedule.written()) == schedule


@given(
    schedule=st.builds(nf.linear, ends, ends)
    | st.builds(nf.cosine, ends, ends, st.none(), st.none() | ends)
    | st.builds(nf.steps, ends, st.floats(0, 3), st.floats(0, 9), st.floats(0, 9)),
    progress=progresses,
)
@settings(max_examples=50, deadline=None)
def test_a_schedule_stays_between_its_ends(schedule: Schedule, progress: Progress) -> None:
    low, high = sorted(schedule.ends())
    assert low - 1e-9 <= schedule(progress) <= high + 1e-9


def test_whole_numbers_are_stored_as_they_are_read() -> None:
    line: Any = parse_value("linear(1,0,10)")
    wave: Any = parse_value({"cosine": {"start": 1, "warmup": 5}})
    assert nf.linear(1, 0, epochs=10).written() == line.written()
    assert wave.written() == "cosine(1.0,0.0,none,5.0)"


def test_mappings_and_numbers_are_read() -> None:
    assert parse_value({"linear": {"start": 0, "end": 0.9}}) == nf.linear(0, 0.9)
    assert parse_value({"cosine": {"start": 1, "warmup": 3}}) == nf.cosine(1, warmup=3)
    assert parse_value("0.25") == parse_value(0.25) == 0.25
    assert at(0.25) == 0.25
    assert at(nf.linear(3, 4)) == 3


@pytest.mark.parametrize(
    "raw",
    [
        *(
            "ramp(0,1)",
            "linear(0)",
            "linear(a,b)",
            "linear(0,1",
            "linear(0,1,-2)",
            "geometric(0,1)",
            "nan",
            "",
        ),
        *({"linear": 3}, {"linear": {"x": 1}}, {}, {"a": 1, "b": 2}, None, [1], True, float("inf")),
        "__import__('os')",
        *("linear(nan,1)", "linear(0,inf)", "steps(1,1e90,0,0,0,0)", 10**400, "1" + "0" * 400),
    ],
)
def test_bad_values_get_a_sentence_with_the_key(raw: object) -> None:
    with pytest.raises(UserError, match=r"^bound\.alpha"):
        parse_value(raw, "bound.alpha")
