"""Barber and Agakov's bound with a fitted conditional probability: normalised, below the truth, refused where it cannot be."""

import math
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate.prediction_bound import CellPredictor, bound_terms
from nearfar.estimate.ratios import SideMap, SideRows

RNG = np.random.default_rng


def half(z: np.ndarray, discrete: bool = False) -> SideRows:
    z = z.reshape(len(z), -1).astype(float)
    return SideMap.fit(z, np.full(z.shape[1], discrete))(z)


@pytest.mark.parametrize("discrete", [False, True])
def test_probabilities_add_up_to_one(discrete: bool) -> None:
    x, e = RNG(0).normal(size=(2, 200))
    y = np.digitize(x + e, [-1, 0, 1]) if discrete else x + e
    fitted = CellPredictor.fit(half(x), half(y, discrete), 0, np.arange(200), 50)
    log_q = fitted.log_probability(half(x))
    np.testing.assert_allclose(np.exp(log_q).sum(axis=1), 1, rtol=1e-12)
    assert fitted.cell_of(half(y, discrete)).max() < fitted.cells


def test_terms_are_the_mean_log_probability_and_counted_entropy() -> None:
    """By loops; and a level that training did not see is the last cell, possible and unlikely."""
    x, y = RNG(1).integers(0, 3, size=(2, 120))
    joint = SideMap.fit(y[:, None].astype(float), np.array([True]))
    fitted = CellPredictor.fit(half(x, True), joint(y[:, None].astype(float)), 0, np.arange(120), 30)
    new = np.array([0, 0, 1, 2, 2, 2, 9])
    source, second = half(x, True)[np.arange(7)], joint(new[:, None].astype(float))
    assert fitted.cell_of(second).tolist() == [0, 0, 1, 2, 2, 2, 3]
    terms, _ = bound_terms(fitted, source, second)
    log_q = fitted.log_probability(source)
    entropy = -sum(k / 7 * math.log(k / 7) for k in (2, 1, 3, 1))
    expected = np.mean([log_q[i, c] for i, c in enumerate([0, 0, 1, 2, 2, 2, 3])]) + entropy
    assert terms.mean() == pytest.approx(expected, rel=1e-12)
    assert -10 < log_q[6, 3] < -4


def test_a_gaussian_and_its_direction() -> None:
    """Either side may be the one that is predicted; the value is below the truth by what cells and fitting cost."""
    x = RNG(2).normal(size=(800, 2))
    y = x[:, 0] + 0.5 * RNG(3).normal(size=800)
    truth = 0.5 * math.log(5)
    for sides in ((x, y), (y, x)):
        result = nf.estimate_mi(*sides, bound="barber-agakov", folds=3, baselines=False)
        assert truth - 0.2 < result.nats < truth + 0.05
        assert float(result.at_least) < truth
        assert result.certificate.status == result.at_least.certificate.status == "proven"
        assert ("log q(y" if sides[0] is x else "log q(x") in result.certificate.condition
        assert result.interval[0] < result.nats < result.interval[1]


def test_number_of_bins_balances_detail_and_counted_entropy() -> None:
    """Of few unseen rows few intervals, of many more; and what is found of a Gaussian's 0.347 nats is most of it (a fixed eight rows to an
    interval found nothing: counting loses half a nat for every row of an interval)."""
    x, e = RNG(8).normal(size=(2, 600))
    divided = [
        CellPredictor.fit(half(x), half(x + e), 0, np.arange(600), unseen).cells - 1 for unseen in (30, 10**6)
    ]
    assert 2 <= divided[0] < divided[1]
    result = nf.estimate_mi(x, x + e, "barber-agakov", baselines=False)
    assert 0.2 < result.nats < 0.45


def test_at_least_is_below_the_information_of_random_tables() -> None:
    """One-sided 95 %: of 30 tables at most 4 above (chance of 5 or more: 1.6 %)."""
    higher = 0
    for seed in range(30):
        rng = RNG([7, seed])
        p = rng.dirichlet(np.full(9, 0.7)).reshape(3, 3)
        cell = rng.choice(9, p=p.ravel(), size=120)
        x, y = cell // 3, cell % 3
        if min(len(np.unique(x)), len(np.unique(y))) < 2:
            continue
        result = nf.estimate_mi(x, y, "barber-agakov", folds=2, baselines=False, discrete="all", seed=seed)
        higher += float(result.at_least) > nf.info.mutual_information(p)
    assert higher <= 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"critic": "separable"}, "leave critic at auto and negatives at batch"),
        ({"negatives": "independent"}, "leave critic at auto and negatives at batch"),
        ({}, "predicts one column; x has 2 columns and y 2"),
    ],
)
def test_barber_agakov_refuses_several_columns(options: dict[str, Any], sentence: str) -> None:
    x, y = RNG(4).normal(size=(2, 100, 2))
    with pytest.raises(nf.UserError, match=sentence):
        nf.estimate_mi(x, y if not options else y[:, 0], "barber-agakov", **options)


def test_dependent_rows_are_not_covered_by_barber_agakov(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x, e = RNG(5).normal(size=(2, 150))
    rows = np.tile(np.stack([x, x + e], axis=1), (2, 1))
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="x,y", comments="")
    table = tmp_path / "t.csv"
    assert main(["mi", f"{table}:x", f"{table}:y", "--bound", "barber-agakov", "--folds", "2"]) == 0
    text = capsys.readouterr().out
    assert "bound barber-agakov (as requested)" in text
    assert "not covered: 150 of 300 rows are copies" in text
