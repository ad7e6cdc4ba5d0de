"""Two samples as numbers: maps that keep the information, fitted on one part and applied to another."""

import datetime
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

import nearfar as nf
from nearfar.estimate.columns import as_columns
from nearfar.estimate.rows import check_rows
from nearfar.estimate.samples import (
    CanonicalMap,
    ColumnEncoding,
    check_pair,
    discrete_columns,
)
from nearfar.sklearn import mutual_info_regression

CONTINUOUS = np.zeros(1, dtype=bool)


@given(seed=st.integers(0, 10**6), n=st.integers(50, 200))
@settings(max_examples=20, deadline=None)
def test_ranks_become_normal_and_do_not_see_a_monotone_map(seed: int, n: int) -> None:
    sample = np.random.default_rng(seed).normal(size=(n, 1))
    ours = ColumnEncoding.fit(sample, "rank", CONTINUOUS)(sample)
    expected = norm.ppf((rankdata(sample[:, 0]) - 0.5) / n)
    np.testing.assert_allclose(ours[:, 0], expected, atol=1e-9)
    bent = np.exp(sample) ** 3
    np.testing.assert_allclose(ColumnEncoding.fit(bent, "rank", CONTINUOUS)(bent), ours, atol=1e-9)


def test_ties_share_a_rank() -> None:
    sample = np.repeat([3.0, 1.0, 2.0], 20)[:, None]
    ours = ColumnEncoding.fit(sample, "rank", CONTINUOUS)(sample)[:, 0]
    expected = norm.ppf((rankdata(sample[:, 0]) - 0.5) / 60)
    np.testing.assert_allclose(ours, expected, atol=1e-9)


def test_levels_become_indicators_and_an_unseen_level_zeros() -> None:
    fitted_side = np.repeat([1.0, 4.0, 7.0], 30)[:, None]
    encode = ColumnEncoding.fit(fitted_side, "rank", np.array([True]))
    np.testing.assert_array_equal(encode(np.array([[4.0], [7.0], [5.0]])), [[0, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_which_columns_are_categories() -> None:
    rng = np.random.default_rng(0)
    sample = np.stack([rng.normal(size=500), rng.integers(0, 5, 500), rng.integers(0, 400, 500)], axis=1)
    assert list(discrete_columns(sample, "auto")) == [False, True, False]
    assert discrete_columns(sample, "all").all()
    assert not discrete_columns(sample, "none").any()


@given(seed=st.integers(0, 10**6), dx=st.integers(1, 4), dy=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_canonical_pairs_are_white_and_correlated_in_pairs_alone(seed: int, dx: int, dy: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, dx)) @ rng.normal(size=(dx, dx)) + 3
    y = x[:, :1] @ rng.normal(size=(1, dy)) + rng.normal(size=(400, dy))
    u, v = (side.double().numpy() for side in CanonicalMap.fit(x, y)(x, y))
    np.testing.assert_allclose(u.T @ u / 400, np.eye(u.shape[1]), atol=1e-3)
    np.testing.assert_allclose(v.T @ v / 400, np.eye(v.shape[1]), atol=1e-3)
    cross = u.T @ v / 400
    pairs = min(cross.shape)
    np.testing.assert_allclose(
        cross - np.diag(np.diag(cross)) if dx == dy else cross[pairs:, pairs:], 0, atol=1e-3
    )
    selected = CanonicalMap.fit(x, y).correlation
    np.testing.assert_allclose(
        selected[selected > 0], np.diag(cross)[: len(selected)][selected > 0], atol=1e-3
    )


def test_correlations_no_larger_than_chance_are_dropped() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 20))
    assert (CanonicalMap.fit(x, y).correlation == 0).all()


def test_directions_without_variance_are_dropped() -> None:
    x = np.random.default_rng(0).normal(size=(100, 1))
    doubled = np.hstack([x, 2 * x])
    u, _ = CanonicalMap.fit(doubled, x)(doubled, x)
    assert u.shape == (100, 1)


GOOD = np.random.default_rng(1).normal(size=(60, 2))


def with_value(value: float) -> np.ndarray:
    changed = GOOD.copy()
    changed[7, 1] = value
    return changed


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (with_value(np.inf), "x holds inf at row 7, column 1"),
        (
            np.array(["1", "2"] * 29 + ["a", "3"]),
            "x column 0 holds 'a' at row 58, which is not a number although",
        ),
        (np.array([None] * 60), "x column 0 is empty"),
        (GOOD + 1j, "x column 0 holds complex128, which are not real numbers"),
        ([[1.0], [1.0, 2.0]] * 30, "rows have different lengths"),
        (GOOD[:20], "x has 20 samples and y 60"),
        (np.column_stack([GOOD, np.full(60, 3.0)]), "x column 2 is 3 in every row"),
        (
            np.array([2**64 - 1 - k for k in range(60)], dtype=np.uint64),
            "holds 18446744073709551615 and 184.*one number in float64",
        ),
        ([10**40 + k for k in range(60)], "holds 10{40} and 10{39}1, which are one number in float64"),
        (np.full(60, 1e40), "x column 0 is 1e.40 in every row to the 16 digits that float64 holds"),
        ({"city": ["Rome"] * 59 + [None]}, "x column city is 'Rome' in every row; a constant"),
        (["1", "1.0"] * 30, "x column 0 is 1 in every row; a constant"),
        (["1", "b"] * 30, "not a number although at least half of the column is"),
        (GOOD.astype(np.longdouble) * np.longdouble("1e400"), "x holds -?inf at row 0"),
        (GOOD.reshape(60, 2, 1), r"x has shape \(60, 2, 1\)"),
        (np.empty((60, 0)), r"x has shape \(60, 0\)"),
        (GOOD[:55], "x has 55 samples and y 60"),
        ([10**400 * k for k in range(1, 61)], "one number in float64"),
        ([*range(59), -(10**400)], "x holds -inf at row 59"),
        (np.array([], dtype=object), "x column 0 is empty"),
        (3.0, r"x has shape \(\)"),
    ],
)
def test_bad_samples_get_one_sentence(bad: object, sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence) as caught:
        check_pair(bad, GOOD)
    assert "\n" not in str(caught.value)


def test_lists_tensors_and_whole_numbers_are_taken() -> None:
    for values in (GOOD.tolist(), torch.from_numpy(GOOD), GOOD.astype(np.float32)):
        np.testing.assert_allclose(as_columns(values, "x").values, GOOD, atol=1e-6)
    assert as_columns(np.arange(60) % 2 == 0, "x").values.shape == (60, 1)
    for tensor in (torch.from_numpy(GOOD).bfloat16(), torch.from_numpy(GOOD).requires_grad_().to_sparse()):
        np.testing.assert_allclose(as_columns(tensor, "x").values, GOOD, rtol=1e-2)


def test_dates_and_durations_are_numbers_in_every_container() -> None:
    """Days apart are the same everywhere; a datetime with a zone is its instant."""
    days = [3, 1, 4, 1, 5]
    start = datetime.datetime(2020, 1, 1)
    dates = [start + datetime.timedelta(days=k) for k in days]
    eastern = datetime.timezone(datetime.timedelta(hours=-5))
    containers = {
        "datetimes": (dates, 86400.0),
        "datetimes with a zone": ([date.replace(tzinfo=eastern) for date in dates], 86400.0),
        "dates": ([date.date() for date in dates], 1.0),
        "durations": ([date - start for date in dates], 86400.0),
        "numpy": (np.array(dates, dtype="datetime64[s]"), 86400.0),
    }
    for name, (values, unit) in containers.items():
        column = as_columns(values, "x")
        assert not column.words.any(), name
        assert ((column.values[:, 0] - column.values[1, 0]) / unit).tolist() == [2, 0, 3, 0, 4], name
    with_gap = as_columns([*dates, None], "x")
    assert with_gap.complete.tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("kind", [float, int, object])
def test_masked_cells_are_gaps(kind: type) -> None:
    values: Any = np.ma.masked_array(np.arange(6).astype(kind), mask=np.arange(6) % 4 == 1)
    assert as_columns(values, "x").complete.tolist() == [True, False, True, True, True, False]


@pytest.mark.parametrize(
    ("estimate", "sentence"),
    [
        (lambda: nf.estimate_kl(3.0, 4.0), r"p has shape \(\)"),
        (lambda: nf.estimate_kl({}, {}), "p has no columns"),
        (lambda: nf.estimate_kl(GOOD[:, :, None], GOOD[:, :, None]), r"p has shape \(60, 2, 1\)"),
        (lambda: nf.total_correlation(np.full((60, 2), np.nan)), "0 samples; at least 50"),
        (lambda: nf.estimate_cmi(GOOD, GOOD[:, 0] + 1, np.full(60, np.nan)), "0 samples; at least 50"),
        (lambda: nf.mi_matrix([[1.0, 2.0], [3.0]] * 30), "table is not a table of numbers"),
        (lambda: nf.mi_matrix(GOOD, discrete="some"), "discrete was 'some'; expected auto, all, none"),
        (lambda: nf.mi_matrix(GOOD, refine=cast(Any, 1.5)), "refine was 1.5; expected a whole number from 0"),
        (lambda: nf.rank_columns([[1.0], [2.0, 3.0]] * 30, GOOD[:, 0]), "table is not a table of numbers"),
        (lambda: mutual_info_regression(GOOD, GOOD[:, 0], discrete_features="some"), "was 'some'; expected"),
        (lambda: mutual_info_regression(GOOD, GOOD[:, 0], discrete_features=[2]), r"was \[2\]; expected"),
        (lambda: mutual_info_regression(GOOD, GOOD[:, 0], discrete_features=[True]), "a mask of 2 columns"),
    ],
)
def test_other_estimates_refuse_bad_samples_in_one_sentence(
    estimate: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(nf.UserError, match=sentence) as caught:
        estimate()
    assert "\n" not in str(caught.value)


def test_words_are_categories_and_gaps_are_left_out() -> None:
    """None, NaN and empty cells are gaps on either side; words become codes that are known as categories."""
    words = np.array(["red", "green", None, "blue", ""] * 20, dtype=object)
    y = GOOD[np.arange(100) % 60].copy()
    y[3, 1] = np.nan
    pair = check_pair(words, y)
    assert len(pair.x) == len(pair.y) == 59
    assert pair.kinds[0].all()
    assert pair.notes == ("41 of 100 rows have gaps and were left out",)
    np.testing.assert_array_equal(pair.y, y[pair.rows])
    assert [len(np.unique(words[pair.rows][pair.x[:, 0] == code])) for code in np.unique(pair.x)] == [1, 1, 1]


class Frame:
    """The part of pandas' and polars' frames that is used."""

    columns = ("a", "colour")

    def __getitem__(self, name: str) -> np.ndarray:
        return GOOD[:, 0] if name == "a" else np.array(["red", "blue", "green"] * 20)


@pytest.mark.parametrize("table", [Frame(), {name: Frame()[name] for name in Frame.columns}])
def test_frames_and_mappings_are_read_by_column(table: object) -> None:
    pair = check_pair(table, GOOD)
    assert pair.names[0] == ("a", "colour")
    assert list(pair.kinds[0]) == [False, True]
    np.testing.assert_array_equal(pair.x[:, 0], GOOD[:, 0])


def test_categories_can_be_declared_for_one_side() -> None:
    """40 codes beside a number of 40 values: one a category, the other not."""
    codes, number = np.arange(60) % 40, np.round(GOOD[:, 0], 1)
    assert [bool(kind[0]) for kind in check_pair(codes, number, "x").kinds] == [True, False]
    assert [bool(kind[0]) for kind in check_pair(number, codes, "y").kinds] == [False, True]


def test_standardising_knows_small_columns_from_constant_ones() -> None:
    """A column of size 1e-20 is one like any other; 0.1 in every fitted row has only rounding for a deviation."""
    small = ColumnEncoding.fit(1e-20 * GOOD[:, :1], "standard", CONTINUOUS)
    assert small(1e-20 * GOOD[:, :1]).std() == pytest.approx(1.0)
    constant = ColumnEncoding.fit(np.full((70, 1), 0.1), "standard", CONTINUOUS)
    assert abs(constant(np.array([[0.2]]))[0, 0]) < 1.0


@pytest.mark.parametrize("option", [{"scaling": "log"}, {"discrete": "some"}])
def test_invalid_options_are_reported(option: dict[str, Any]) -> None:
    name, value = next(iter(option.items()))
    with pytest.raises(nf.UserError, match=f"{name} was '{value}'; expected"):
        nf.estimate_mi(GOOD, GOOD, **option)


@pytest.mark.parametrize("noise", [1e-9, 1e-4])
def test_copies_with_little_noise_are_detected(noise: float) -> None:
    """200 independent rows, each four times with noise: 1.1 nats "proven" where I = 0. Draws that are merely close are not copies."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.repeat(np.arange(200), 4))
    x, y = rng.normal(size=(2, 200, 1))[:, rows] + noise * rng.normal(size=(2, 800, 1))
    assert "copies of others but for a little noise" in check_rows(x, y).refuted
    label = rng.integers(0, 3, size=(200, 1)).astype(float)[rows]
    assert "copies of others but for a little noise" in check_rows(x, label).refuted
    for size in (60, 300, 3000):
        z = rng.normal(size=(size, 1))
        for second in (z, np.exp(z), z + 1e-6 * rng.normal(size=z.shape), rng.standard_cauchy((size, 1))):
            assert not check_rows(z, second).refuted
        heavy = rng.standard_t(0.5, size=(size, 1))
        assert not check_rows(heavy, heavy).refuted
        clustered = rng.integers(0, 8, size=(size, 1)) + 1e-6 * rng.normal(size=(size, 1))
        assert not check_rows(clustered, clustered + 1e-6 * rng.normal(size=(size, 1))).refuted


def test_recurring_levels_are_not_copies() -> None:
    """60 words, kept half the time, in 130 rows: equal pairs of words are what such a channel makes."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.integers(0, 60, size=(130, 1))
        y = np.where(rng.random((130, 1)) < 0.5, x, rng.integers(0, 60, size=(130, 1)))
        assert not check_rows(x.astype(float), y.astype(float)).refuted


@pytest.mark.parametrize("period", [2, 12])
def test_seasons_are_found(period: int) -> None:
    """Both sides follow what was a period before: 0.3 nats "proven" where I = 0, and nothing at lag 1."""
    rng = np.random.default_rng(4)
    x, y = np.tile(rng.normal(size=(2, period)), 840 // period)[..., None] + 0.3 * rng.normal(
        size=(2, 840, 1)
    )
    refuted = check_rows(x, y).refuted
    assert "in a time series" in refuted
    # one side alone cannot make the two look dependent
    assert not check_rows(x, rng.permutation(y)).refuted


def test_volatility_clusters_are_found() -> None:
    """White noise whose deviation is 1 or 10 for a while: no correlation between neighbours, and 0.017 nats "proven" where I = 0."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        wild = (rng.random((1000, 2)) < 0.01).cumsum(axis=0) % 2
        x, y = ((1 + 9 * wild) * rng.normal(size=(1000, 2))).T[..., None]
        assert "in a time series" in check_rows(x, y).refuted
        shuffled = rng.permutation(1000)
        assert not check_rows(x[shuffled], y[shuffled]).refuted
    binary = rng.integers(0, 2, (1000, 1)).astype(float)  # its distances from the median may be all alike
    assert not check_rows(binary, rng.normal(size=(1000, 1))).refuted


@pytest.mark.parametrize("bound", ["auto", "infonce", "ml-cpc"])
@pytest.mark.parametrize("share", [0.01, 0.02])
def test_kl_limit_is_at_most_the_log_of_the_sample_size(share: float, bound: str) -> None:
    """KL = -log of the share of q there; of 100 rows none is, in 37 or 13 % of samples: 5.5 nats "proven" where there are 4.6 or 3.9."""
    rng = np.random.default_rng(0)
    p, q = 0.5 * rng.random(100), 5 + rng.random(100)
    result = nf.estimate_kl(p, q, bound=bound, folds=2)
    assert 0.5 < float(result.at_least) < -np.log(share)
    # what overlaps is claimed as before: KL of a shift by one is 1/2
    close = nf.estimate_kl(rng.normal(size=400) + 1, rng.normal(size=400), bound=bound, folds=2)
    assert 0.1 < float(close.at_least) < 0.5


def test_rounded_readings_are_not_copies() -> None:
    """Equal values of a reading to two digits may lie half a step apart: beside a category they are no copies, as 34 of 178 wines were said to be."""
    rng = np.random.default_rng(5)
    for size in (180, 600):
        label = rng.integers(0, 3, size=(size, 1)).astype(float)
        reading = np.round(label + rng.normal(size=(size, 1)), 2)
        assert len(np.unique(reading)) > size / 2
        assert not check_rows(reading, label).refuted
        assert not check_rows(reading, np.round(reading + rng.normal(size=(size, 1)), 2)).refuted
