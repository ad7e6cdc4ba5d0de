"""All pairs of columns: screening against closed forms and scipy, and the conventions of scikit-learn."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import chi2_contingency, kstest
from sklearn.feature_selection import SelectKBest
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate.crossfit import permutation_moments
from nearfar.estimate.matrix import (
    _grids,
    bin_codes,
    g_test,
    polya_evidence,
    refined_nats,
    screen,
    worth_refining,
)
from nearfar.sklearn import RunFeatures, mutual_info_classif, mutual_info_regression


def table(rows: int = 400, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=rows)
    return {
        "x": x,
        "linear": 0.8 * x + 0.6 * random.normal(size=rows),
        "square": x**2 + 0.3 * random.normal(size=rows),
        "noise": random.normal(size=rows),
        "sign": np.where(x > 0, "up", "down"),
        "gaps": np.where(random.uniform(size=rows) < 0.2, np.nan, x + 0.2 * random.normal(size=rows)),
        "constant": np.ones(rows),
    }


def test_pairs_are_ranked_and_refined() -> None:
    pairs = nf.mi_matrix(table(), refine=3, workers=1)
    assert len(pairs) == 15
    assert pairs.left_out == {"constant": "the same in every row"}
    assert (np.diff(pairs["nats"]) <= 0).all()
    assert pairs.refined.sum() == 3
    nats = pairs.matrix("nats")
    place = {name: k for k, name in enumerate(pairs.columns)}
    np.testing.assert_array_equal(nats, nats.T)
    assert np.isnan(np.diag(nats)).all()
    for name in ("linear", "square", "sign", "gaps"):
        assert nats[place["x"], place[name]] > 0.2, name
    assert pairs.matrix("p_value")[place["x"], place["noise"]] > 0.05
    refined = {frozenset(pair) for pair in zip(pairs.x, pairs.y, strict=True)}
    assert len(refined) == 15, "every pair once"
    first = table()[pairs.x[0]], table()[pairs.y[0]]
    complete = ~np.isnan(first[0]) & ~np.isnan(first[1])
    expected = nf.estimate_mi(first[0][complete], first[1][complete], folds=3, baselines=False).nats
    assert max(pairs.nats[pairs.refined]) == pytest.approx(expected, abs=0.05), "as the full estimator"


def test_pairs_with_few_common_rows_are_screened_alone() -> None:
    """One such pair does not stop the others; two columns without a common row tell nothing."""
    random = np.random.default_rng(0)
    first = random.normal(size=200)
    second, third = (first + 0.3 * random.normal(size=200) for _ in range(2))
    first[:90] = np.nan
    second[110:] = np.nan
    third[90:] = np.nan
    pairs = nf.mi_matrix({"first": first, "second": second, "third": third}, workers=1)
    refined = {
        tuple(sorted(pair))
        for pair, r in zip(zip(pairs.x, pairs.y, strict=True), pairs.refined, strict=True)
        if r
    }
    assert refined == {("second", "third")}
    assert pairs.nats[pairs.p_value == 1].tolist() == [0.0]


def test_refined_information_of_a_gaussian() -> None:
    """-log(1 - r²) / 2, of r = 0.8, whatever the units; a column and its copy have a finite value."""
    x, y = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 1000).T
    kinds = np.zeros(2, dtype=bool)
    assert refined_nats(1e300 * x, y, kinds)[0] == pytest.approx(-0.5 * np.log(0.36), abs=0.06)
    assert 3 < refined_nats(x, x, kinds)[0] <= 2 * np.log(1000)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_screening_recovers_the_information_of_gaussians(correlation: float) -> None:
    """-log(1 - r²) / 2; the standard error of its plug-in is about r / sqrt(n)."""
    rows = 4000
    x, y = np.random.default_rng(0).multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], rows).T
    (nats,), (p_value,), _ = screen(np.stack([x, np.exp(y)], 1), np.zeros(2, dtype=bool))
    assert nats == pytest.approx(-0.5 * np.log(1 - correlation**2), abs=4 * correlation / rows**0.5)
    assert p_value < 1e-10


def test_screening_of_categories_is_near_the_plug_in() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 4, 5000)
    y = np.where(random.uniform(size=5000) < 0.5, x, random.integers(0, 4, 5000))
    joint = np.histogram2d(x, y, bins=4)[0] / 5000
    (nats,), *_ = screen(np.stack([x, y], 1).astype(float), np.ones(2, dtype=bool))
    assert nats == pytest.approx(nf.info.mutual_information(joint), abs=16 / 5000)


@given(st.integers(0, 10**6), st.sampled_from([(2, 2), (4, 2), (3, 5)]))
@settings(max_examples=30)
def test_g_test_equals_that_of_scipy(seed: int, shape: tuple[int, int]) -> None:
    grid = np.random.default_rng(seed).integers(5, 60, shape).astype(float)
    expected = chi2_contingency(grid, correction=False, lambda_="log-likelihood").pvalue
    assert g_test(grid) == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_evidence_is_the_polya_likelihood_of_the_sequence(seed: int) -> None:
    """The chain rule: each row's predictive probability (counts + A p q) / (rows + A), against those of its row and
    its column."""
    random = np.random.default_rng(seed)
    cells = random.integers(0, 6, 12)
    grid = np.bincount(cells, minlength=6).reshape(2, 3).astype(float)
    product = np.outer(grid.sum(1), grid.sum(0)) / 12**2
    prior = 0.5 * (product > 0).sum() * product
    counts, log_ratio = np.zeros((2, 3)), 0.0
    for rows, cell in enumerate(cells):
        place = divmod(int(cell), 3)
        joint, first, second = (
            (seen + weight) / (rows + prior.sum())
            for seen, weight in (
                (counts[place], prior[place]),
                (counts[place[0]].sum(), prior[place[0]].sum()),
                (counts[:, place[1]].sum(), prior[:, place[1]].sum()),
            )
        )
        log_ratio += np.log(joint / (first * second))
        counts[place] += 1
    assert polya_evidence(grid)[0] == pytest.approx(log_ratio, abs=1e-9)
    assert np.isfinite(gammaln(prior[product > 0])).all()


def test_grids_merge_bins_and_keep_all_rows() -> None:
    random = np.random.default_rng(0)
    codes = [bin_codes(random.normal(size=320), False) for _ in range(2)]
    counts = np.histogram2d(codes[0], codes[1], bins=np.arange(33))[0][None, None]
    shapes = set()
    for grid in _grids(counts):
        assert grid.sum() == 320
        np.testing.assert_array_equal(grid[0, 0].sum(1), np.full(grid.shape[2], 320 / grid.shape[2]))
        shapes.add(grid.shape[2:])
    assert shapes == {(2**a, 2**b) for a in range(1, 6) for b in range(1, 6)}


def test_what_no_bins_see_has_a_small_p_value_once_refined() -> None:
    """A category that repeats eight times per unit of a number: 8 bins of the number hardly tell it."""
    x = np.random.default_rng(0).normal(size=1000)
    code = np.floor(40 * np.abs(x)) % 5
    values, kinds = np.stack([x, code], 1), np.array([False, True])
    _, (screened,), _ = screen(values, kinds)
    pairs = nf.mi_matrix({"x": x, "code": code.astype(int).astype(str)}, workers=1)
    assert screened > 0.01
    assert pairs.p_value[0] < 1e-6


def test_permutation_moments_are_those_of_all_permutations() -> None:
    """Hoeffding 1951: mean and variance of sum_i f(i, π(i)) over the 120 permutations of five rows."""
    f = np.random.default_rng(0).normal(size=(5, 5))
    sums = [f[np.arange(5), list(order)].sum() for order in permutations(range(5))]
    assert permutation_moments(f) == pytest.approx((np.trace(f) - np.mean(sums), np.var(sums)))


def test_p_values_of_independent_columns_are_valid() -> None:
    """P(p <= u) <= u for all u: one-sided Kolmogorov-Smirnov over 435 pairs of one table of 30 columns."""
    random = np.random.default_rng(0)
    values = np.concatenate([random.normal(size=(600, 20)), random.integers(0, 3, (600, 10))], axis=1)
    _, p_value, _ = screen(values, np.arange(30) >= 20)
    assert kstest(p_value, "uniform", alternative="greater").pvalue > 1e-3


def test_the_strongest_and_the_least_certain_pairs_are_refined() -> None:
    nats, evidence = np.array([0.0, 0.9, 0.1, 0.5, 0.2]), np.array([-3.0, 80.0, 9.0, 1.0, 0.5])
    assert worth_refining(nats, evidence, 3) == [1, 3, 4]
    assert sorted(worth_refining(nats, evidence, 100)) == [1, 2, 3, 4], "independence is not refined"
    assert worth_refining(nats, evidence, 0) == []


def test_unusable_tables_get_a_sentence() -> None:
    with pytest.raises(nf.UserError, match="fewer than two columns"):
        nf.mi_matrix({"a": np.ones(50), "b": np.arange(50)})
    with pytest.raises(nf.UserError, match="refine was -1"):
        nf.mi_matrix(table(), refine=-1)
    with pytest.raises(nf.UserError, match="folds was 41; expected a whole number from 2 to 40"):
        nf.mi_matrix(table(), folds=41)


def test_command_prints_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = table(200)
    lines = [",".join(columns)] + [
        ",".join(str(cell) for cell in row) for row in zip(*columns.values(), strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines).replace("nan", ""))
    words = ["mi", str(tmp_path / "t.csv"), "--matrix"]
    assert main([*words, "--json", "--plot", str(tmp_path / "m.png")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["pairs"]) == 15
    assert set(answer["pairs"][0]) == {"x", "y", "nats", "p_value", "refined"}
    assert (tmp_path / "m.png").stat().st_size > 1000
    assert main([*words, "--target", "x"]) == 2
    assert "--target has no effect with --matrix" in capsys.readouterr().err


def test_scikit_learn_conventions() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 4))
    y = np.sin(2 * X[:, 2]) + 0.2 * random.normal(size=300)
    chosen = SelectKBest(mutual_info_regression, k=1).fit(X, y)
    assert chosen.get_support().tolist() == [False, False, True, False]
    labels = np.array(["no", "yes"])[(X[:, 1] > 0).astype(int)]
    nats = mutual_info_classif(X, labels, discrete_features=False)
    assert nats.argmax() == 1
    assert nats[1] == pytest.approx(np.log(2), abs=0.1)
    X[:, 0] = X[:, 0] > 0.3
    both = [
        mutual_info_classif(X, labels, discrete_features=kind)
        for kind in ("auto", [0], [True, False, False, False])
    ]
    np.testing.assert_array_equal(both[0], both[1])
    np.testing.assert_array_equal(both[0], both[2])
    drawn = [
        mutual_info_classif(X[:, :1], labels, random_state=state)
        for state in (None, np.random.RandomState(1))
    ]
    np.testing.assert_allclose(drawn, both[0][0], atol=0.1)


def test_run_features_in_a_pipeline(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(48) % 2
    images[labels == 1, :8] = 0
    run = nf.pretrain(
        "simclr", images, tmp_path / "run", epochs=1, batch_size=16, quiet=True, backbone="resnet8-w8"
    )
    pipeline = make_pipeline(RunFeatures(tmp_path / "run"), DecisionTreeClassifier(random_state=0))
    assert pipeline.fit(images, labels).score(images, labels) == 1
    np.testing.assert_array_equal(pipeline[0].transform(images), run.embed(images).numpy())
