"""Monitors: laws of the readings, patience of the warnings, and the same behaviour after a restart."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from nearfar.errors import UserError
from nearfar.train.display import Display
from nearfar.train.monitors import (
    CollapseMonitor,
    Diverged,
    FiniteMonitor,
    Spread,
    collapse_warning,
    embedding_spread,
)

GOOD = Spread(deviation=0.9, rank=50.0, mean_cosine=0.1, full_rank=128)
POINT = Spread(deviation=0.05, rank=30.0, mean_cosine=0.99, full_rank=128)
LINE = Spread(deviation=0.6, rank=1.5, mean_cosine=0.4, full_rank=128)


def sample(seed: int, n: int, dim: int) -> Tensor:
    """Embeddings of any shape: a random offset, random scales of the directions, random lengths."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (draw(n, dim) * draw(dim).exp() + 2 * draw(dim)) * draw(n, 1).exp()


def rotation(seed: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]


shapes = st.tuples(st.integers(0, 2**31), st.integers(2, 40), st.integers(1, 24))

# ----------------------------------------------------------------------------------------- the readings


@given(shapes)
@settings(deadline=None, max_examples=60)
def test_readings_are_their_definitions(shape: tuple[int, int, int]) -> None:
    z = sample(*shape)
    n, dim = z.shape
    spread = embedding_spread(z)
    cosines = [float(cosine_similarity(z[i], z[j], dim=0)) for i in range(n) for j in range(n) if i != j]
    assert spread.mean_cosine == pytest.approx(sum(cosines) / len(cosines), abs=1e-9)
    unit = normalize(z, dim=1)
    assert spread.deviation == pytest.approx(float(unit.std(0).mean()) * dim**0.5, abs=1e-9)
    singular = torch.linalg.svdvals(unit - unit.mean(0))
    share = singular / singular.sum()
    entropy = torch.special.entr(share).sum()
    if singular.max() > 1e-4:
        assert spread.rank == pytest.approx(float(entropy.exp()), rel=2e-2)
    assert spread.full_rank == min(n - 1, dim)


@given(shapes, st.floats(0.1, 10))
@settings(deadline=None, max_examples=60)
def test_neither_scale_nor_order_nor_rotation_matters(shape: tuple[int, int, int], scale: float) -> None:
    z = sample(*shape)
    spread, turned = embedding_spread(z), embedding_spread(scale * z.flip(0) @ rotation(shape[0], z.shape[1]))
    assert turned.rank == pytest.approx(spread.rank, rel=1e-3)
    assert turned.mean_cosine == pytest.approx(spread.mean_cosine, abs=1e-9)
    # A mean of standard deviations depends on the axes; what no rotation can change is what bounds it.
    bound = math.sqrt(max(0.0, 1 - spread.mean_cosine))
    assert max(spread.deviation, turned.deviation) <= bound + 1e-9
    mirrored = embedding_spread(-z.flip(1))
    assert mirrored.deviation == pytest.approx(spread.deviation, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 16, 64])
def test_spread_evenly_over_the_sphere(dim: int) -> None:
    torch.manual_seed(0)
    spread = embedding_spread(torch.randn(20_000, dim))
    assert spread.deviation == pytest.approx(1, abs=0.02)
    assert spread.rank == pytest.approx(dim, rel=0.01)
    assert spread.mean_cosine == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-20, 1e20])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_one_point(value: float, noise: float) -> None:
    torch.manual_seed(0)
    point = torch.full((100, 32), value) * (1 + noise * torch.randn(100, 32))
    spread = embedding_spread(point)
    assert spread.deviation == pytest.approx(0, abs=1e-5)
    assert spread.rank == 1
    assert spread.mean_cosine == pytest.approx(1, abs=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 6), st.sampled_from([torch.float32, torch.float64]))
@settings(deadline=None, max_examples=40)
def test_a_subspace_bounds_the_rank(seed: int, r: int, dtype: torch.dtype) -> None:
    inside = torch.randn(60, r, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = embedding_spread((inside @ rotation(seed, 30)[:r]).to(dtype))
    assert 1 <= spread.rank + 1e-9 <= r + 2e-9
    few = embedding_spread(sample(seed, r + 1, 30))
    assert few.rank <= few.full_rank + 1e-9 == r + 1e-9


def test_half_precision_and_gradients_are_accepted_and_one_image_is_not() -> None:
    torch.manual_seed(0)
    z = torch.randn(200, 16, requires_grad=True)
    assert embedding_spread(z.to(torch.bfloat16)).rank == pytest.approx(embedding_spread(z).rank, rel=1e-2)
    with pytest.raises(ValueError, match="at least two"):
        embedding_spread(z[:1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_embeddings_read_nan_and_are_not_a_collapse(bad: float) -> None:
    z = torch.randn(8, 4)
    z[3, 2] = bad
    spread = embedding_spread(z)
    assert all(map(math.isnan, (spread.deviation, spread.rank, spread.mean_cosine)))
    monitor = CollapseMonitor(patience=1)
    assert monitor.observe(spread) is None
    assert monitor.observe(POINT)


# ---------------------------------------------------------------------------------------- the complaint


def test_kinds_of_collapse_are_distinguished() -> None:
    torch.manual_seed(0)
    spread = torch.randn(256, 128)
    direction = torch.randn(128)
    cases = {
        "same place": [direction + 0.01 * spread, torch.zeros(256, 128)],
        "few directions": [spread[:, :1] * direction, spread[:, :1] * torch.eye(128)[0]],
    }
    for words, embeddings in cases.items():
        for embedding in embeddings:
            assert words in str(collapse_warning(embedding_spread(embedding)))
    assert collapse_warning(embedding_spread(spread)) is None
    assert (
        collapse_warning(embedding_spread(torch.randn(500, 2))) is None
    )  # two dimensions are few, and all are used
    assert "hardly varies" in str(collapse_warning(Spread(0.05, 40.0, 0.5, 2048)))


def test_a_warning_has_the_numbers_and_a_setting_to_change() -> None:
    for spread, advice in ((POINT, "encoders.momentum"), (LINE, "batch_size")):
        message = str(collapse_warning(spread))
        assert f"{spread.mean_cosine:.3f}" in message
        assert f"{spread.rank:.1f} of 128" in message
        assert advice in message


# ------------------------------------------------------------------------------------------ the patience


def warnings_of(monitor: CollapseMonitor, readings: list[Spread], fraction: float = 0.5) -> list[bool]:
    return [monitor.observe(one, fraction) is not None for one in readings]


def test_the_monitor_warns_once_per_episode_after_its_patience() -> None:
    monitor = CollapseMonitor(patience=3)
    assert warnings_of(monitor, [POINT, POINT, GOOD, LINE, POINT]) == [False] * 5
    assert warnings_of(monitor, [LINE, POINT, POINT, POINT]) == [True, False, False, False]
    assert warnings_of(monitor, [GOOD, POINT, POINT, POINT, POINT]) == [False, False, False, True, False]


def test_the_start_of_a_run_does_not_count() -> None:
    monitor = CollapseMonitor(patience=2, warm_up=0.1)
    assert not any(warnings_of(monitor, [POINT] * 50, fraction=0.099))
    assert warnings_of(monitor, [POINT, POINT], fraction=0.1) == [False, True]


def test_an_untrained_deep_encoder_does_not_trigger_the_monitor() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())]
    z = nn.Sequential(*layers)(torch.randn(256, 64))
    assert collapse_warning(embedding_spread(z))
    monitor = CollapseMonitor()
    assert monitor.observe(embedding_spread(z), 0.0) is None
    assert not any(warnings_of(monitor, [GOOD] * 20))


@given(st.lists(st.sampled_from([GOOD, POINT, LINE]), max_size=30), st.integers(0, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_a_restored_monitor_warns_where_an_uninterrupted_one_would(
    readings: list[Spread], cut: int, patience: int
) -> None:
    unbroken, first, second = (CollapseMonitor(patience) for _ in range(3))
    first_warnings = warnings_of(first, readings[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    assert first_warnings + warnings_of(second, readings[cut:]) == warnings_of(unbroken, readings)


# -------------------------------------------------------------------------------------------- divergence

BAD = [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf), (-math.inf, math.nan)]


def test_non_finite_steps_are_skipped_up_to_a_limit_in_a_row() -> None:
    finite = FiniteMonitor(allowed=5)
    for _ in range(3):
        assert finite.accept(2.0, 1.0, 1)
        assert [finite.accept(*bad, 2) for bad in BAD] == [False] * 5
    with pytest.raises(Diverged) as caught:
        finite.accept(math.nan, 3.0, 77)
    assert isinstance(caught.value, UserError)
    for words in ("step 77", "loss was nan", "6 steps in a row", "lr", "precision=fp32", "clip"):
        assert words in str(caught.value)


def test_none_allowed_stops_at_once() -> None:
    with pytest.raises(Diverged):
        FiniteMonitor(allowed=0).accept(1.0, math.inf, 1)


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 20), st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_a_restored_count_continues(good: list[bool], cut: int, allowed: int) -> None:
    def answers(monitor: FiniteMonitor, steps: list[bool]) -> list[object]:
        results: list[object] = []
        for ok in steps:
            try:
                results.append(monitor.accept(1.0 if ok else math.nan, 1.0, 0))
            except Diverged:
                results.append("stop")
        return results

    unbroken, first, second = (FiniteMonitor(allowed) for _ in range(3))
    first_results = answers(first, good[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    assert first_results + answers(second, good[cut:]) == answers(unbroken, good)


def test_remaining_time_is_estimated_from_steps_not_from_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step compiles for 20 s, the others take 0.1 s; later the machine is half as fast."""
    clock = 0.0
    monkeypatch.setattr("nearfar.train.display.time.monotonic", lambda: clock)
    display = Display(steps=3001, start=0, epochs=10, expectation="on this CPU")
    estimates = []
    for step in range(1, 3002):
        clock += 20.0 if step == 1 else 0.1 if step <= 1001 else 0.2
        if step % 10 == 1:
            row = {
                "step": step,
                "epoch": step / 300,
                "loss": 1.0,
                "nats": None,
                "ceiling": None,
                "images_per_s": 1.0,
            }
            display.show(row)
            estimates += [(step, line) for line in capsys.readouterr().err.splitlines()]
    # said once, after 5 seconds of steps, which are a tenth of a second then
    assert estimates.pop(1) == (51, "about 5 minutes on this CPU")
    assert estimates[0][1].endswith("time left unknown")
    assert estimates[-1][1].endswith("0 s left")
    # a minute after the change of speed nothing of the old one is left
    for step, line in estimates[1:-1]:
        expected = (3001 - step) * 0.2 if step > 1301 else (1001 - step) * 0.1 + 2000 * 0.1
        if step <= 1001 or step > 1301:
            assert line.endswith(
                f"{expected / 60:.1f} min left" if expected >= 60 else f"{expected:.0f} s left"
            )
    assert len(estimates) > 20
