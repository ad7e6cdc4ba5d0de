"""Claims of `estimate_mi` that a hostile statistician would try: explosions, lower ends above the truth, dependent rows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln, psi

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate import CriticTraining
from nearfar.estimate.bound_choice import FoldScores, choose_bound, effective_samples, measure_fold
from nearfar.estimate.measure import BoundValue, average_of_draws, expected_variance
from nearfar.estimate.read import read_sample
from nearfar.estimate.rows import autocorrelation, check_rows
from nearfar.estimate.settings import MIN_EFFECTIVE_SAMPLES

Rng = np.random.Generator
Problem = tuple[np.ndarray, np.ndarray, float]
QUICK: dict[str, Any] = {"folds": 2, "baselines": False}


def normal_pairs(rng: Rng, n: int, d: int, nats: float) -> Problem:
    rho = math.sqrt(1 - math.exp(-2 * nats / d))
    x = rng.normal(size=(n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * rng.normal(size=(n, d)), nats


X10 = np.random.default_rng(0).normal(size=(500, 10))
EXPLODING = {
    "the same": (X10, X10),
    "nearly the same": (X10, X10 + 0.05 * np.random.default_rng(1).normal(size=X10.shape)),
    "5 nats from 200 rows": normal_pairs(np.random.default_rng(2), 200, 10, 5.0)[:2],
}


@pytest.mark.parametrize("name", EXPLODING)
@pytest.mark.parametrize("bound", ["auto", "nwj"])
def test_strong_dependence_stays_finite(name: str, bound: str) -> None:
    """-4.6e23 nats, "proven", before: the constant was read off a mean of e^f that no pair supported."""
    x, y = EXPLODING[name]
    result = nf.estimate_mi(x, y, bound=bound, baselines=False, folds=3, training=CriticTraining(steps=5))
    pairs = math.log(len(x) * (len(x) - 1))
    assert -pairs < result.interval[0] <= result.nats <= pairs + 1
    # only an estimate that was cut has no upper end
    assert math.isfinite(result.interval[1]) or result.nats == pytest.approx(2 * math.log(len(x)))
    assert result.at_least.certificate.status == "proven"
    if bound == "auto":
        assert result.bound == "infonce"
        assert 2 < float(result.at_least) <= math.log(len(x))
        warns = "no distribution-free lower bound" in " ".join(result.warnings)
        assert warns == (result.nats > math.log(len(x)))


def test_the_effective_sample_is_kish_s() -> None:
    """(sum w)^2 / sum w^2 over anchors and over keys; equal scores count all, one heavy key counts as one."""
    assert effective_samples(torch.zeros(30, 30)) == pytest.approx(30)
    heavy = torch.zeros(30, 30)
    heavy[:, 7] = 20.0
    assert effective_samples(heavy) == pytest.approx(1, abs=0.01)
    f = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    off = f.exp().double().fill_diagonal_(0)
    sizes = [float(w.sum() ** 2 / w.square().sum()) for w in (off.sum(0), off.sum(1))]
    assert effective_samples(f) == pytest.approx(min(sizes), rel=1e-5)


def test_a_bound_without_ceiling_is_not_chosen_without_an_effective_sample() -> None:
    """Positives far above InfoNCE's ceiling on validation rows, where one pair carries the mean of e^f."""
    f = torch.full((40, 40), -30.0).fill_diagonal_(9.0)
    f[3, 4] = 0.0
    assert effective_samples(f) < MIN_EFFECTIVE_SAMPLES
    part = FoldScores([[f]], f, [f])
    name, values = choose_bound({"infonce": nf.InfoNCE(), "nwj": nf.NWJ()}, part, "batch", 0)
    assert (name, list(values)) == ("infonce", ["infonce"])
    assert abs(measure_fold(nf.NWJ(), part, "batch", 0).nats) < math.log(40 * 39) + 5


def test_errors_of_samples_that_share_rows_do_not_cancel() -> None:
    """Five times the same validation rows are one sample, not five."""
    assert average_of_draws([BoundValue(1.0, 0.3, 9)] * 5).error == pytest.approx(0.3)


def student_information(d: int, nu: float) -> float:
    """Independent scale mixture of d + d normals: I of a multivariate t with identity scatter (closed form)."""

    def entropy(k: int) -> float:
        return (
            gammaln(nu / 2)
            - gammaln((nu + k) / 2)
            + k / 2 * math.log(nu * math.pi)
            + (nu + k) / 2 * (psi((nu + k) / 2) - psi(nu / 2))
        )

    return float(2 * entropy(d) - entropy(2 * d))


def gaussian(rng: Rng, n: int) -> Problem:
    return normal_pairs(rng, n, 1, rng.uniform(0.01, 1.5))


def gaussian_many(rng: Rng, n: int) -> Problem:
    return normal_pairs(rng, n, int(rng.integers(2, 9)), rng.uniform(0.1, 3))


def monotone(rng: Rng, n: int) -> Problem:
    x, y, truth = normal_pairs(rng, n, 2, rng.uniform(0.1, 1.5))
    return np.exp(x), y**3, truth


def student(rng: Rng, n: int) -> Problem:
    d, nu = int(rng.integers(1, 4)), rng.uniform(1, 5)
    joint = rng.normal(size=(n, 2 * d)) / np.sqrt(rng.chisquare(nu, size=(n, 1)) / nu)
    return joint[:, :d], joint[:, d:], student_information(d, nu)


def independent_numbers(rng: Rng, n: int) -> Problem:
    return rng.normal(size=(n, 3)), rng.exponential(size=(n, 2)), 0.0


def independent_categories(rng: Rng, n: int) -> Problem:
    return rng.integers(0, 6, n), rng.integers(0, 6, n), 0.0


def channel(rng: Rng, n: int) -> Problem:
    """k symbols, kept with probability p, else any: I from its joint table."""
    k, p = int(rng.integers(2, 9)), rng.uniform(0.2, 0.9)
    x = rng.integers(0, k, n)
    y = np.where(rng.random(n) < p, x, rng.integers(0, k, n))
    return x, y, nf.info.mutual_information(np.full((k, k), (1 - p) / k**2) + np.eye(k) * p / k)


def uniform_noise(rng: Rng, n: int) -> Problem:
    """x + U(-a, a), x uniform on (0, 1): a - log 2a."""
    a, x = rng.uniform(0.05, 0.5), rng.random(n)
    return x, x + rng.uniform(-a, a, n), a - math.log(2 * a)


def folded(rng: Rng, n: int) -> Problem:
    """|x| + U(-a, a): no correlation with x, the same information as with |x|."""
    a, x = rng.uniform(0.05, 0.5), rng.uniform(-1, 1, n)
    return x, np.abs(x) + rng.uniform(-a, a, n), a - math.log(2 * a)


def two_classes(rng: Rng, n: int) -> Problem:
    """Uniform on (0, 1) or (s, 1 + s): outside the overlap all is told, inside nothing."""
    s, y = rng.uniform(0.1, 0.9), rng.integers(0, 2, n)
    return s * y + rng.random(n), y, s * math.log(2)


def sign_product(rng: Rng, n: int) -> Problem:
    """The sign of a product, flipped with probability e: log 2 - H(e), and nothing in either factor alone."""
    e, x = rng.uniform(0.01, 0.3), rng.normal(size=(n, 2))
    y = np.sign(x[:, 0] * x[:, 1]) * np.where(rng.random(n) < e, -1, 1)
    return x, y, math.log(2) - nf.info.entropy([e, 1 - e])


FAMILIES: list[Callable[[Rng, int], Problem]] = [
    gaussian,
    gaussian_many,
    monotone,
    student,
    independent_numbers,
    independent_categories,
    channel,
    uniform_noise,
    folded,
    two_classes,
    sign_product,
]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lower_end_rarely_exceeds_the_truth(family: Callable[[Rng, int], Problem]) -> None:
    """12 random problems of each of eleven families: a one-sided 95 % bound fails at most 2 times of 12 (with
    probability 0.98 were it exactly 95 %; one that failed half of the time would pass with 0.02)."""
    rng = np.random.default_rng([7, *family.__name__.encode()])
    higher = 0
    for _ in range(12):
        x, y, truth = family(rng, int(rng.integers(100, 300)))
        result = nf.estimate_mi(x, y, **QUICK)
        assert result.interval[0] < result.interval[1]
        higher += result.at_least > truth
        higher += result.interval[0] > truth and result.at_least <= truth
    assert higher <= 2


def test_at_least_is_a_number_with_a_claim() -> None:
    x, y, _truth = gaussian(np.random.default_rng(0), 400)
    result = nf.estimate_mi(x, y, **QUICK)
    assert 0 <= result.at_least == result.at_least.nats <= result.nats
    assert result.at_least.confidence == pytest.approx(0.95)
    assert "central limit theorem" in result.at_least.certificate.condition
    written = result.as_json()["at_least"]
    assert set(written) == {"nats", "confidence", "certificate", "bound"}
    assert set(written["certificate"]) == {"status", "condition"}
    # a bound that is not covered still comes with one that is
    other = nf.estimate_mi(x, y, bound="dv", **QUICK)
    assert other.certificate.status == "not covered"
    assert other.at_least.certificate.status == "proven"
    assert float(other.at_least) == pytest.approx(float(result.at_least), abs=0.05)


def test_weak_dependence_has_an_interval_of_some_width() -> None:
    """A critic that found nothing is constant, and had an interval of width zero."""
    x, y, truth = normal_pairs(np.random.default_rng(1), 200, 1, 0.005)
    low, high = nf.estimate_mi(x, y, baselines=False).interval
    assert low <= truth <= high


def autoregressive(rng: Rng, n: int) -> np.ndarray:
    z = rng.normal(size=n)
    for t in range(1, n):
        z[t] += 0.99 * z[t - 1]
    return z


SUBJECT = np.repeat(np.arange(50), 20)


def dependent_rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if kind == "bootstrap copies":
        return tuple(rng.normal(size=(2, 500))[:, rng.integers(0, 500, 1000)])
    if kind == "autoregression":
        return autoregressive(rng, 1000), autoregressive(rng, 1000)
    first, second = 3 * rng.normal(size=(2, 50))[:, SUBJECT] + rng.normal(size=(2, 1000))
    return first, second


@pytest.mark.parametrize("kind", ["bootstrap copies", "autoregression", "50 subjects of 20 rows"])
def test_dependent_rows_are_never_proven(kind: str) -> None:
    x, y = dependent_rows(kind)
    result = nf.estimate_mi(x, y, **QUICK)
    assert result.certificate.status == result.at_least.certificate.status == "not covered"
    assert any("needs independent rows" in warning for warning in result.warnings)


def test_groups_keep_a_subject_s_rows_together() -> None:
    """50 subjects of 20 rows, each with levels of its own: I = 0 between subjects, and the groups say so."""
    x, y = dependent_rows("50 subjects of 20 rows")
    result = nf.estimate_mi(x, y, groups=[f"subject {k}" for k in SUBJECT], **QUICK)
    assert result.ceiling == pytest.approx(math.log(25))  # one row of each of 25 unseen subjects
    assert float(result.at_least) < 0.02
    assert "groups are independent" in result.at_least.certificate.condition
    with pytest.raises(nf.UserError, match="groups names 10 groups; at least 20"):
        nf.estimate_mi(x, y, groups=np.arange(1000) % 10)
    with pytest.raises(nf.UserError, match=r"groups has shape \(3,\); it must be \(1000,\)"):
        nf.estimate_mi(x, y, groups=[1, 2, 3])


def test_the_circular_shift_law_finds_a_series() -> None:
    x, y = dependent_rows("autoregression")
    x, y = x[:600], y[:600]
    how = {**QUICK, "training": CriticTraining(steps=100)}
    laws = {check.law: check for check in nf.check_mi(x, y, **how)}
    assert not laws["circular shift"].holds
    assert laws["independence"].holds


@pytest.mark.parametrize("family", FAMILIES)
def test_independent_rows_pass_the_check(family: Callable[[Rng, int], Problem]) -> None:
    for seed in range(20):
        x, y, _ = family(np.random.default_rng(seed), 400)
        rows = check_rows(x.reshape(400, -1).astype(float), y.reshape(400, -1).astype(float))
        assert (rows.refuted, rows.doubt) == ("", "")


def test_sorted_rows_are_noticed_and_rounded_ones_are_not_copies() -> None:
    rng = np.random.default_rng(0)
    x, y, _ = normal_pairs(rng, 500, 1, 1.0)
    order = np.argsort(y[:, 0])
    assert "sorted by y column 0, and x follows" in check_rows(x[order], y[order]).refuted
    assert "sorted by y column 0" in check_rows(rng.permutation(x), y[order]).doubt
    rounded = np.round(x, 1), np.round(y, 1)
    assert not check_rows(*rounded).refuted
    assert not check_rows(rounded[0], rounded[0]).refuted


def test_time_beside_a_random_walk_is_not_covered() -> None:
    """Any walk is related to its own time, and what one walk shows says nothing about the next."""
    walk = np.random.default_rng(0).normal(size=200).cumsum()
    result = nf.estimate_mi(np.arange(200), walk, **QUICK)
    assert result.at_least.certificate.status == "not covered"
    assert any("sorted by x column 0, and y follows" in warning for warning in result.warnings)


@pytest.mark.parametrize("copies", [2, 10, 20])
def test_rows_copied_often_and_shuffled_are_copies_too(copies: int) -> None:
    """Measurements of many digits never recur by themselves; levels do, also where one is the code of the other."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50, 1))
    rows = rng.permutation(np.repeat(np.arange(50), copies))
    assert "are copies of others" in check_rows(x[rows], y[rows]).refuted
    level = rng.integers(0, 30, size=(600, 1)).astype(float)
    assert not check_rows(level, 100 - level).refuted
    assert not check_rows(level / 8, level / 4).refuted


def test_neighbours_are_spearman_s_correlation_of_a_column_with_itself() -> None:
    from scipy.stats import spearmanr

    series = autoregressive(np.random.default_rng(0), 2000)
    assert autocorrelation(series[:, None])[0, 0] == pytest.approx(
        spearmanr(series[1:], series[:-1])[0], abs=0.01
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    a, b, noise = rng.normal(size=(3, 200))
    lines = [f"{p:.6f},{q:.6f},{p + z:.6f}" for p, q, z in zip(a, b, noise, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,target", *lines]) + "\n")
    return tmp_path / "d.csv"


@pytest.mark.parametrize("turned", [False, True])
def test_the_target_is_dropped_from_the_other_side(
    table: Path, turned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """3.68 nats, "proven", before. I(a; a + z) = log(2)/2."""
    sides = [str(table), f"{table}:target"]
    assert main(["mi", *(sides[::-1] if turned else sides), "--folds", "2"]) == 0
    text = capsys.readouterr().out
    assert "column target" in text
    assert "left out of the other side" in text
    assert float(text.split()[0]) < 0.6


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ("d.csv:a,b", "d.csv:b", "column b of .* is both in X and in Y"),
        ("d.csv", "d.csv", "the same columns"),
    ],
)
def test_a_column_on_both_sides_is_refused(table: Path, x: str, y: str, sentence: str) -> None:
    from nearfar.estimate.read import read_pair

    with pytest.raises(nf.UserError, match=sentence):
        read_pair(str(table.parent / x), str(table.parent / y))


def test_the_wrong_cell_of_a_column_is_named(tmp_path: Path) -> None:
    """ "holds '1.5'" before: the first cell of a column that one wrong cell had made text."""
    (tmp_path / "w.csv").write_text("a,b\n" + "1.5,2\n" * 7 + "oops,2\n" + "2.5,2\n" * 60)
    with pytest.raises(
        nf.UserError, match=r"column a holds 'oops' at row 7 \(line 9\), which is not a number"
    ):
        read_sample(str(tmp_path / "w.csv"))
    with pytest.raises(nf.UserError, match=r"x column 0 holds 'oops' at row 59, which is not a number"):
        nf.estimate_mi(np.array([1.0] * 59 + ["oops"], dtype=object), np.arange(60))


def test_expected_variance_covers_unseen_rare_flips() -> None:
    """A bit that is kept but for about 2 of 300 rows: I = log 2 - H(e). Where none flipped, mean and spread both say too much,
    and a lower bound that trusts the spread is above the truth in 12 to 20 % of samples."""
    rng = np.random.default_rng(11)
    n, e = 300, 2 / 300
    truth = math.log(2) - nf.info.entropy([e, 1 - e])
    higher = 0
    for _ in range(40):
        x = rng.integers(0, 2, n)
        result = nf.estimate_mi(x, x ^ (rng.random(n) < e), baselines=False)
        # copies of joint rows are what two bits are made of
        assert result.at_least.certificate.status == "proven"
        assert not result.warnings
        higher += result.at_least > truth
    assert higher <= 2


def test_binary_columns_with_few_flips_are_not_copies() -> None:
    """Binary columns of which none to a few rows differ, alone and beside others: their rows recur, and nobody copied them."""
    rng = np.random.default_rng(0)
    for flips in (0, 1, 3, 10):
        for broad in (1, 3):
            x = rng.integers(0, 2, size=(1000, broad)).astype(float)
            y = x.copy()
            rows = rng.choice(1000, flips, replace=False)
            y[rows] = 1 - y[rows]
            assert (check_rows(x, y).refuted, check_rows(x, y).doubt) == ("", "")
    x = rng.integers(0, 2, 1000).astype(float)
    y = x.copy()
    y[3] = 1 - y[3]
    result = nf.estimate_mi(x, y, **QUICK)
    assert result.at_least.certificate.status == "proven"
    assert 0.6 < float(result.at_least) <= result.nats <= math.log(2) + 0.01
    assert result.interval[0] <= math.log(2) - nf.info.entropy([0.001, 0.999]) <= result.interval[1]


def test_the_variance_a_critic_expects_is_that_of_draws_from_it() -> None:
    """Keys drawn by the softmax itself, 200,000 times; and a critic that excludes a pair for certain is no NaN."""
    f = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()
    share = f.softmax(dim=1)
    keys = torch.multinomial(share, 200_000, replacement=True, generator=torch.Generator().manual_seed(1))
    draws = (share.gather(1, keys) * 6).log()
    assert expected_variance(f) == pytest.approx(float(draws.var()), rel=0.02)
    f[0, 1] = -math.inf
    assert math.isfinite(expected_variance(f))
    assert expected_variance(torch.zeros(5, 5)) == pytest.approx(0, abs=1e-12)
