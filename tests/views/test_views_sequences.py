"""Windows of sound and hidden symbols: pure functions of (seed, epoch, index), with the documented shares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.errors import UserError
from nearfar.modalities.dataset import padded
from nearfar.modalities.sound.views import LOUDNESS, SoundWindows, WholeSound, Window, levelled
from nearfar.modalities.text.views import NOTHING, Mask, Masked, WholeText

WINDOW = 64


def waves(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [(0.3 + 0.1 * generator.normal(size=n)).astype(np.float32) for n in lengths]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
)
def test_a_window_is_a_stretch_of_its_recording_as_loud_as_promised(
    lengths: list[int], seed: int, epoch: int
) -> None:
    series = padded(waves(lengths))
    numbers = np.arange(100, 100 + len(lengths))
    (window,) = SoundWindows(WINDOW, 1)(series, seed, epoch, numbers)
    assert window.shape == (len(lengths), 2, WINDOW)
    level = levelled(series).astype(np.float32)
    for row, length in enumerate(lengths):
        real = min(length, WINDOW)
        assert window[row, 1].tolist() == [1.0] * real + [0.0] * (WINDOW - real)
        assert not window[row, 0, real:].any()
        stretch = window[row, 0, :real].numpy()
        starts = range(length - real + 1)
        assert any(np.array_equal(level[row, s : s + real], stretch) for s in starts)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**62), epoch=st.integers(0, 10**6))
def test_sound_views_do_not_depend_on_batch_or_padding(seed: int, epoch: int) -> None:
    items = waves([30, 150, 90])
    (joint,) = SoundWindows(WINDOW, 1)(padded(items), seed, epoch, np.array([7, 2, 5]))
    for row, number in enumerate((7, 2, 5)):
        (single,) = SoundWindows(WINDOW, 1)(padded(items[row : row + 1]), seed, epoch, np.array([number]))
        assert torch.equal(joint[row], single[0])


def test_windows_visit_every_start_and_change_with_epoch_and_seed() -> None:
    series = padded([np.arange(70, dtype=np.float32)])
    first = levelled(series)[0]
    starts = set()
    for epoch in range(100):
        (window,) = SoundWindows(WINDOW, 1)(series, 0, epoch, np.array([3]))
        starts.add(int(np.abs(first - float(window[0, 0, 0])).argmin()))
    assert starts == set(range(7))
    draws = [SoundWindows(WINDOW, 1)(series, s, 0, np.array([3]))[0] for s in range(20)]
    assert len({float(d[0, 0, 0]) for d in draws}) > 1


def test_level_is_mean_zero_and_equal_loudness_and_silence_stays() -> None:
    series = padded([*waves([50, 120]), np.zeros(80, dtype=np.float32), np.full(10, 0.7, dtype=np.float32)])
    level = levelled(series)
    for row, length in enumerate((50, 120)):
        assert level[row, :length].mean() == pytest.approx(0, abs=1e-9)
        assert np.sqrt((level[row, :length] ** 2).mean()) == pytest.approx(LOUDNESS)
        assert not level[row, length:].any()
    assert np.abs(level[2:]).max() < 1e-3  # a hum of rounding errors must not become a roar


def test_plain_view_of_sound_is_complete() -> None:
    series = padded(waves([50, 120]))
    (view,) = WholeSound()(series, index=np.array([4, 9]))
    assert view.shape == (2, 2, 120)
    assert view[:, 1].sum(dim=1).tolist() == [50, 120]
    assert np.array_equal(view[:, 0].numpy(), levelled(series).astype(np.float32))


def text(lengths: list[int], symbols: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(symbols, size=n) for n in lengths]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    share=st.floats(0.01, 0.99),
    symbols=st.integers(1, 30),
    seed=st.integers(0, 2**40),
)
def test_masks_hide_the_promised_number_and_touch_nothing_else(
    lengths: list[int], share: float, symbols: int, seed: int
) -> None:
    items = text(lengths, symbols)
    series = padded(items)
    inputs, hidden = (view.numpy() for view in Masked(share, symbols)(series, seed, 0, np.arange(len(items))))
    for row, item in enumerate(items):
        masked = hidden[row] != NOTHING
        assert masked.sum() == max(round(share * len(item)), 1)
        assert not masked[len(item) :].any()
        assert (hidden[row, masked] == series.data[row, masked]).all()
        assert (inputs[row, ~masked] == series.data[row, ~masked]).all()
        assert ((inputs[row, : len(item)] >= 0) & (inputs[row, : len(item)] <= symbols)).all()


def test_hidden_symbols_are_masked_replaced_or_unchanged_in_proportion() -> None:
    """Wu et al. 2020, sec. 5.1, after BERT. 40,000 blocks of 20 with 3 hidden: shares within 5 standard
    errors."""
    symbols, blocks = 50, 40_000
    series = padded(text([20] * blocks, symbols))
    inputs, hidden = (view.numpy() for view in Masked(0.15, symbols)(series, 0, 0, np.arange(blocks)))
    masked = hidden != NOTHING
    replacements, true = inputs[masked], hidden[masked]
    count = len(replacements)
    assert count == 3 * blocks
    for share, expected in (
        ((replacements == symbols).mean(), 0.8),
        ((replacements == true).mean(), 0.1 + 0.1 / symbols),
        (((replacements != true) & (replacements < symbols)).mean(), 0.1 - 0.1 / symbols),
    ):
        assert share == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / count))
    # every position and every replacement equally often
    assert masked.mean(axis=0) == pytest.approx(np.full(20, 0.15), abs=5 * np.sqrt(0.15 * 0.85 / blocks))
    random_symbols = replacements[(replacements != true) & (replacements < symbols)]
    assert np.bincount(random_symbols, minlength=symbols) == pytest.approx(
        np.full(symbols, len(random_symbols) / symbols), abs=5 * np.sqrt(len(random_symbols) / symbols)
    )


def test_hidden_symbols_are_a_function_of_seed_epoch_and_index() -> None:
    items = text([40, 25, 40], 9)
    hide = Masked(0.3, 9)
    joint = hide(padded(items), 5, 2, np.array([8, 1, 6]))
    repeated = hide(padded(items[2:]), 5, 2, np.array([6]))
    assert torch.equal(joint[0][2], repeated[0][0])
    assert torch.equal(joint[1][2], repeated[1][0])
    changed_draws = [hide(padded(items), s, e, np.array([8, 1, 6]))[1] for s, e in ((6, 2), (5, 3))]
    assert not any(torch.equal(joint[1], draw) for draw in changed_draws)


def test_plain_view_of_text_is_unchanged() -> None:
    series = padded(text([4, 2], 9))
    (view,) = WholeText()(series)
    assert view.tolist() == series.data.tolist()
    assert view[1, 2:].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(3), "views.samples was 3"),
        (lambda: Mask(share=0.0), "views.share was 0"),
        (lambda: Mask(length=1), "views.length was 1"),
        (lambda: Mask(most=1), "views.most was 1"),
    ],
)
def test_invalid_settings_are_refused(make: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()  # type: ignore[operator]
