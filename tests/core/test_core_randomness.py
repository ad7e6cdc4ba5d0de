"""Randomness is a pure function, and looks random."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nearfar.core.randomness import order, uniforms


@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 1000), view=st.integers(0, 5), cut=st.integers(1, 19))
@settings(max_examples=30, deadline=None)
def test_draws_of_an_image_do_not_depend_on_its_batch(seed: int, epoch: int, view: int, cut: int) -> None:
    index = np.arange(20) * 7
    joint = uniforms(seed, epoch, index, view, 6)
    separate = np.concatenate([uniforms(seed, epoch, part, view, 6) for part in np.split(index, [cut])])
    np.testing.assert_array_equal(joint, separate)
    np.testing.assert_array_equal(joint[:, :3], uniforms(seed, epoch, index, view, 3))


def test_each_argument_matters_and_draws_are_uniform_and_uncorrelated() -> None:
    index = np.arange(20_000)
    base = uniforms(0, 0, index, 0, 4)
    rest = [uniforms(1, 0, index, 0, 4), uniforms(0, 1, index, 0, 4), uniforms(0, 0, index, 1, 4)]
    shifted = [base[1:], base[:, 1:]]
    for column in base.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    for second in rest:
        assert abs(np.corrcoef(base.ravel(), second.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(base[:-1].ravel(), shifted[0].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(base[:, :-1].ravel(), shifted[1].ravel())[0, 1]) < 0.02


def test_order_visits_everything_once_and_differs_by_epoch_and_seed() -> None:
    orders = [order(seed, epoch, 500) for seed in (0, 1) for epoch in (0, 1)]
    for result in orders:
        np.testing.assert_array_equal(np.sort(result), np.arange(500))
    assert len({tuple(result) for result in orders}) == 4
    np.testing.assert_array_equal(orders[0], order(0, 0, 500))
