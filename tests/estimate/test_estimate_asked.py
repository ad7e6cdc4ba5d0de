"""What people ask next: conditional information, KL, total correlation, rows, lags, tables, pictures; against closed forms."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate.divergence import kl_certificate, kl_scores, tail_gain
from nearfar.estimate.ratios import stack
from nearfar.parts.bounds import smallest_proven_alpha

RNG = np.random.default_rng


def normals(seed: int, n: int, covariance: list[list[float]]) -> np.ndarray:
    return np.random.default_rng(seed).multivariate_normal(np.zeros(len(covariance)), covariance, size=n)


def sample_information(*columns: np.ndarray) -> float:
    """-log det of the sample correlation / 2: the Gaussian total correlation, most of the sampling noise taken out."""
    return float(-np.linalg.slogdet(np.corrcoef(np.stack(columns)))[1] / 2)


def test_conditional_information_of_gaussians() -> None:
    """y = x + z + noise, x = z + noise: I(x; y | z) = log(2)/2, while I(x; y) is more; and nothing for a common cause alone."""
    rng = np.random.default_rng(0)
    z, a, b = rng.normal(size=(3, 500))
    x = z + a
    result = nf.estimate_cmi(x, x + z + b, z, folds=2)
    assert result.nats == pytest.approx(math.log(2) / 2, abs=0.12)
    assert result.interval[0] <= math.log(2) / 2 <= result.interval[1]
    assert result.certificate.status == "not covered"
    nothing = nf.estimate_cmi(z + 0.5 * a, z + 0.5 * b, z, folds=2)
    assert nothing.interval[0] == 0
    assert set(result.as_json()) >= {"nats", "bits", "interval", "certificate", "terms"}


def test_corrections_of_two_estimates_are_no_conditional_information() -> None:
    """x and y follow z and nothing else joins them. Each term of the difference has a correction for what is still to
    be learned, and that of (x, z) is larger."""
    values = []
    for seed in range(4):
        z, a, b = np.random.default_rng(seed).normal(size=(3, 300))
        values.append(nf.estimate_cmi(z + a, z + b, z).nats)
    assert np.mean(values) < 0.015


def test_total_correlation_of_gaussians() -> None:
    x = normals(0, 500, [[1, 0.6, 0.3], [0.6, 1, 0.5], [0.3, 0.5, 1]])
    result = nf.total_correlation(x, folds=2)
    assert result.nats == pytest.approx(sample_information(*x.T), abs=0.1)
    with pytest.raises(nf.UserError, match="a total correlation needs two or more"):
        nf.total_correlation(x[:, 0])


def test_information_at_every_row() -> None:
    """log p(x, y) / p(x) p(y) of a Gaussian pair in closed form; NaN where there is a gap."""
    x, y = normals(1, 800, [[1, 0.8], [0.8, 1]]).T
    truth = -0.5 * math.log(1 - 0.64) - (0.64 * (x**2 + y**2) - 1.6 * x * y) / (2 * 0.36)
    x = x.copy()
    x[5] = np.nan
    result = nf.pointwise_mi(x, y, folds=3)
    assert np.isnan(result[5])
    selected = ~np.isnan(result)
    assert selected.sum() == 799
    assert np.corrcoef(result[selected], truth[selected])[0, 1] > 0.95
    assert result[selected].mean() == pytest.approx(truth[selected].mean(), abs=0.05)


@pytest.mark.parametrize(("shift", "scale"), [(1.0, 1.0), (0.0, 1.5), (0.0, 1.0)])
def test_kl_between_two_normals(shift: float, scale: float) -> None:
    """KL(N(m, s^2) || N(0, 1)) = -log s + (s^2 + m^2 - 1) / 2."""
    rng = np.random.default_rng(4)
    truth = -math.log(scale) + (scale**2 + shift**2 - 1) / 2
    result = nf.estimate_kl(shift + scale * rng.normal(size=1200), rng.normal(size=1200), folds=3)
    assert result.nats == pytest.approx(truth, abs=0.12)
    assert float(result.at_least) <= truth
    assert result.interval[0] <= truth <= result.interval[1]
    assert "NWJ" in result.at_least.certificate.condition
    with pytest.raises(nf.UserError, match="p has 2 columns and q 1"):
        nf.estimate_kl(rng.normal(size=(100, 2)), rng.normal(size=100))


@pytest.mark.parametrize(("of_p", "of_q"), [(2, 2), (1, 3), (3, 2)])
def test_bounds_of_two_samples_never_exceed_the_divergence(of_p: int, of_q: int) -> None:
    """Song & Ermon 2020, Thm 1 and 2: every outcome of so many rows of p and q, of three states, for true and wrong log
    ratios. What is called proven is at most KL in expectation; Donsker-Varadhan is not called so, and exceeds it."""
    anchors, negatives = min(of_p, of_q), of_q // min(of_p, of_q)
    least = smallest_proven_alpha(anchors, negatives)
    bounds = [
        nf.InfoNCE(),
        nf.AlphaCPC(1.7),
        nf.NWJ(),
        nf.TUBA(0.4),
        nf.MultiLabelCPC(least),
        nf.MultiLabelCPC(1.2),
    ]
    assert all(kl_certificate(bound, of_p, of_q).status == "proven" for bound in bounds)
    assert kl_certificate(nf.DonskerVaradhan(), of_p, of_q).status == "not covered"
    rows = np.array(list(itertools.product(range(3), repeat=of_p + of_q)))
    exceeds = False
    for seed in range(6):
        rng = np.random.default_rng(seed)
        p, q = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
        f, truth = np.log(p / q) + (seed % 3) * rng.normal(size=3), float(nf.info.kl(p, q))
        chances = p[rows[:, :of_p]].prod(1) * q[rows[:, of_p:]].prod(1)

        def expectation(bound: nf.AbstractBound, chances: np.ndarray = chances, f: np.ndarray = f) -> float:
            values = [float(bound(kl_scores(bound, f[row[:of_p]], f[row[of_p:]]))) for row in rows]
            return float(chances @ values)

        for bound in bounds:
            assert expectation(bound) <= truth + 1e-9, bound
        exceeds |= expectation(nf.DonskerVaradhan()) > truth + 0.01
    assert exceeds


@pytest.mark.parametrize("bound", ["infonce", "ml-cpc", "nwj", nf.AlphaCPC(2.0), "dv"], ids=str)
def test_kl_by_a_named_bound(bound: str | nf.AbstractBound) -> None:
    """KL(N(1, 1) || N(0, 1)) is 1/2; NWJ's limit stands where the bound proves nothing or has no ceiling."""
    rng = np.random.default_rng(4)
    p, q = 1 + rng.normal(size=500), rng.normal(size=900)
    result, best = (nf.estimate_kl(p, q, bound=one, folds=2) for one in (bound, "auto"))
    assert result.interval[0] <= 0.5 <= result.interval[1]
    assert result.nats == pytest.approx(0.5, abs=0.15)
    assert float(result.at_least) <= 0.5
    assert result.at_least.certificate.status == "proven"
    if bound in ("nwj", "dv"):
        assert (result.at_least, result.at_least.bound) == (best.at_least, "nwj")
        assert any("dv is not covered" in warning for warning in result.warnings) == (bound == "dv")
    else:
        assert result.at_least.bound != "nwj"
        assert result.nats < result.at_least.certificate.ceiling  # type: ignore[operator]


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("js", "bound was js, which does not estimate information"),
        ("kl", "bound was 'kl'; expected auto"),
        (nf.MultiLabelCPC(5.0), "bound.alpha was 5 with 1 negatives to a positive"),
    ],
    ids=["js", "kl", "alpha"],
)
def test_unsuitable_bounds_of_kl_are_refused(bound: str | nf.AbstractBound, sentence: str) -> None:
    p, q = np.random.default_rng(0).normal(size=(2, 60))
    with pytest.raises(nf.UserError, match=sentence):
        nf.estimate_kl(p, q, bound=bound, folds=2)


def test_kl_of_words_is_that_of_their_frequencies() -> None:
    """Words that one sample lacks have the same code in both: KL of the counted shares, and gaps are said."""
    rng = np.random.default_rng(5)
    shares = [0.5, 0.3, 0.2, 0.0], [0.1, 0.3, 0.4, 0.2]
    words = np.array(["oak", "ash", "elm", "yew"])
    p, q = (rng.choice(words, p=share, size=800).astype(object) for share in shares)
    p[3] = None
    result = nf.estimate_kl({"tree": p}, {"tree": q}, folds=3)
    truth = float(nf.info.kl(np.array(shares[0]), np.array(shares[1])))
    assert result.nats == pytest.approx(truth, abs=0.1)
    assert result.warnings == ("1 of 1600 rows have gaps and were left out",)
    assert result.samples == (799, 800)
    with pytest.raises(nf.UserError, match="must have the same columns; bush is in one of them"):
        nf.estimate_kl({"tree": p}, {"bush": q})


def test_kl_of_columns_by_name_and_of_rows_that_depend() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=300), 3 + rng.normal(size=300)
    same = nf.estimate_kl({"a": a, "b": b}, {"b": rng.permutation(b), "a": rng.permutation(a)}, folds=2)
    assert same.interval[0] < 0.05
    assert same.at_least.certificate.status == "proven"
    copied = nf.estimate_kl(np.tile(a, 2), b, folds=2)
    assert copied.at_least.certificate.status == "not covered"
    assert any("rows of p are copies" in warning for warning in copied.warnings)


def test_total_correlation_leaves_rows_with_gaps_out_of_all_terms() -> None:
    x = normals(0, 300, [[1, 0.6, 0.3], [0.6, 1, 0.5], [0.3, 0.5, 1]])
    full = x[20:]
    x[:20, 2] = np.nan
    result = nf.total_correlation(x, folds=2)
    assert result.samples == 280
    assert result.warnings == ("20 of 300 rows have gaps and were left out",)
    assert result.nats == nf.total_correlation(full, folds=2).nats


def test_a_p_value_of_zero_stays_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """So far out that the normal tail is zero to all digits: the clearest of columns must not be called chance."""
    monkeypatch.setattr("nearfar.estimate.mi.independence_p_value", lambda folds: 0.0)
    x = normals(3, 100, [[1, 0.9], [0.9, 1]])
    assert nf.rank_columns({"x": x[:, 0], "y": x[:, 1]}, "y", folds=2)[0].p_value == 0.0


def test_lags_find_the_delay_of_a_series() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1500)
    x[1:] += 0.4 * x[:-1]
    y = np.concatenate([rng.normal(size=2), x[:-2]]) + 0.7 * rng.normal(size=1500)
    result = nf.mi_over_lags(x, y, (1, 2), folds=2, block=10)
    assert result[2].nats == pytest.approx(sample_information(x[:-2], y[2:]), abs=0.1)
    assert result[1].nats < 0.3 * result[2].nats
    assert result[2].at_least.certificate.status == "proven"
    with pytest.raises(nf.UserError, match="at least 40 are needed"):
        nf.mi_over_lags(x, y, (0,), block=100)
    # 44 blocks are enough for four folds, and nobody asked for five
    assert len(nf.mi_over_lags(x[:220], y[:220], (0,), block=5)[0].folds) == 4


def test_kl_warns_where_p_lies_outside_the_range_of_q() -> None:
    """KL(U(0, 4) || U(0, 1)) is infinite."""
    rng = np.random.default_rng(0)
    result = nf.estimate_kl(rng.uniform(0, 4, 200), rng.uniform(0, 1, 200), folds=2)
    assert any("of the rows of p lie outside the range of q" in warning for warning in result.warnings)
    close = nf.estimate_kl(rng.normal(0.5, 1, 200), rng.normal(0, 1, 200), folds=2)
    assert not any("range of q" in warning for warning in close.warnings)


def test_words_of_a_series_are_categories_at_every_lag() -> None:
    """Forty words, more than numbers may have to be read as levels; the number that follows one step later depends on the word."""
    rng = np.random.default_rng(7)
    code = rng.integers(0, 40, 800)
    y = np.concatenate([[0.0], 3.0 * (code[:-1] % 2)]) + rng.normal(size=800)
    result = nf.mi_over_lags([f"word {k}" for k in code], y, [1], folds=2, block=2)[1]
    assert "1 discrete columns" in result.scaling
    assert result.nats > 0.2
    for wrong in ([], [0.5], "ab"):
        with pytest.raises(nf.UserError, match="it must be whole numbers"):
            nf.mi_over_lags(code, y, wrong)
    with pytest.raises(nf.UserError, match="series of 800 steps allow -799 to 799"):
        nf.mi_over_lags(code, y, range(10**12))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    a, b, noise = rng.normal(size=(3, 300))
    colour = np.where(a + 0.5 * noise > 0, "red", "blue")
    rows = [f"{p:.5f},{q:.5f},{c},{1.5 * p + z:.5f}" for p, q, c, z in zip(a, b, colour, noise, strict=True)]
    rows[7] = rows[7].replace(rows[7].split(",")[1], "")
    (tmp_path / "t.csv").write_text("\n".join(["strong,nothing,colour,target", *rows]) + "\n")
    return tmp_path / "t.csv"


def test_a_table_is_ranked_with_words_and_gaps(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = table.parent / "rank.svg"
    assert main(["mi", str(table), "--target", "target", "--json", "--plot", str(plot)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["column"] for one in answer["columns"]] == ["strong", "colour", "nothing"]
    assert answer["columns"][0]["p_among_all"] < 0.01 < answer["columns"][2]["p_among_all"]
    assert answer["columns"][2]["warnings"] == ["1 of 300 rows have gaps and were left out"]
    assert plot.read_text().startswith("<?xml")
    assert main(["mi", str(table), "--target", "price"]) == 2
    assert "--target was price;" in capsys.readouterr().err
    assert main(["mi", str(table)]) == 2
    assert "Y is missing" in capsys.readouterr().err


def test_an_estimate_is_plotted(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = table.parent / "one.png"
    assert main(["mi", f"{table}:strong", f"{table}:target", "--folds", "2", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "p = " in capsys.readouterr().out
    assert main(["mi", f"{table}:strong", f"{table}:target", "--plot", "picture.txt"]) == 2
    assert "must end in .svg, .png or .pdf" in capsys.readouterr().err


def test_rows_and_lags_by_command(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [f"{table}:strong", f"{table}:target", "--folds", "2"]
    assert main(["mi", *pair, "--rows", str(table.parent / "rows.csv"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    written = (table.parent / "rows.csv").read_text().splitlines()
    assert written[0] == "nats"
    assert len(written) == 301
    assert answer["mean"] == pytest.approx(np.mean([float(one) for one in written[1:]]), abs=1e-5)
    plot = table.parent / "lags.svg"
    assert main(["mi", *pair, "--lags", "0:1", "--plot", str(plot)]) == 0
    assert plot.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--given", "{t}:nothing", "--bound", "nwj"], "--bound has no effect with --given"),
        (["--given", "{t}:nothing", "--plot", "a.svg"], "--plot has no effect with --given"),
        (["--check", "--plot", "a.svg"], "--plot has no effect with --check"),
        (["--lags", "0:1", "--groups", "{t}:colour"], "--groups has no effect with --lags"),
        (["--rows", "a.csv", "--critic", "joint"], "--critic has no effect with --rows"),
        (["--target", "target"], "Y has no effect with --target"),
        (["--rows", "a.txt"], "--rows was a.txt; it must end in .csv"),
    ],
)
def test_an_option_without_effect_is_refused(
    table: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [one.replace("{t}", str(table)) for one in options]
    assert main(["mi", f"{table}:strong", f"{table}:target", *text]) == 2
    assert sentence in capsys.readouterr().err


def test_ratios_are_calibrated() -> None:
    """Calibration on unseen rows: as counted, within what so few rows allow."""
    x, y = normals(2, 1000, [[1, 0.7], [0.7, 1]]).T
    result = nf.estimate_mi(x, y, folds=2, baselines=False)
    assert len(result.calibration) >= 4
    assert np.mean([abs(text - count) for text, count in result.calibration]) < 0.25
    assert result.p_value is not None
    assert result.p_value < 1e-6


def test_empty_and_constant_columns_are_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty, the same in every row, and the same in every row in which the target is known."""
    rng = np.random.default_rng(0)
    t, x = rng.normal(size=(2, 60))
    rows = [f"{a if k else ''},{b},,7,{k > 0}" for k, (a, b) in enumerate(zip(t, x, strict=True))]
    (tmp_path / "t.csv").write_text("t,x,gaps,seven,rest\n" + "\n".join(rows) + "\n")
    command = ["mi", str(tmp_path / "t.csv"), "--target", "t", "--folds", "2"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "note: left out, empty: gaps" in text
    assert "note: left out, the same in every row: seven, rest" in text
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["column"] for one in told["columns"]] == ["x"]
    assert told["left_out"] == dict.fromkeys(["seven", "rest"], "the same in every row") | {"gaps": "empty"}


def test_a_constant_condition_is_named(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    with pytest.raises(nf.UserError, match=r"z \(what is given\) column sort is 'a' in every row"):
        nf.estimate_cmi(x, y, {"sort": ["a"] * 60})
    with pytest.raises(nf.UserError, match="x column 0 is 1 in every row"):
        nf.estimate_cmi(np.ones(60), y, x)


def test_a_lag_beyond_the_series_is_named() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    for lag in (60, -60, 10**23):
        with pytest.raises(nf.UserError, match=f"lags held {lag}, which is longer than the series; 60 steps"):
            nf.mi_over_lags(x, y, [lag])


@pytest.mark.parametrize("option", ["--rows", "--plot"])
def test_a_missing_output_folder_is_reported_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / ("a.csv" if option == "--rows" else "a.svg")
    assert main(["mi", "nowhere.npy", "nowhere.npy", option, str(file)]) == 2
    assert f"{option} was {file}, but the folder {file.parent} was not found" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_a_weight_too_small_to_divide_by_makes_no_infinite_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """log of the mixture = log(1e-310 e^9 + 1 - 1e-310): scipy divides by the weight of the largest."""
    weights = np.array([1.0, 1e-310])
    monkeypatch.setattr(stack, "mixture_weights", lambda table: weights)
    np.testing.assert_allclose(stack._weigh({"a": np.full(3, 9.0)})[1], 0.0, atol=1e-12)
    weights[1] = 0.0
    np.testing.assert_allclose(stack._weigh({"a": np.full(3, 9.0)})[1], 0.0, atol=1e-12)


def test_kl_warns_about_levels_that_q_lacks() -> None:
    """A third of p's rows are c, and q has none: infinite, however many rows there are."""
    rng = RNG(30)
    result = nf.estimate_kl(rng.choice(list("abc"), 200), rng.choice(list("ab"), 200), folds=2)
    assert "lie outside the range of q" in result.warnings[0]
    assert nf.estimate_kl(rng.choice(list("ab"), 200), rng.choice(list("abc"), 200), folds=2).warnings == ()


def test_kl_allows_for_tails_outside_the_range_of_q() -> None:
    """KL(N(0, 4) || N(0, 1)) = 3/2 - log 2: the rows beyond all of q's carry most of it, and telling rows apart never rewards being surer there."""
    truth = 1.5 - math.log(2)
    result = [
        nf.estimate_kl(2 * RNG(k).normal(size=400), RNG(k + 9).normal(size=400), folds=3) for k in range(4)
    ]
    assert sum(one.interval[0] < truth < one.interval[1] for one in result) >= 3
    assert sum(float(one.at_least) < truth for one in result) == 4
    z, of_p, of_q = (
        np.array([[0.0], [5.0], [-5.0]]),
        2 * RNG(1).normal(size=(500, 1)),
        RNG(2).normal(size=(500, 1)),
    )
    more = tail_gain(z, of_p, of_q, np.ones(3))
    by_hand = norm.logpdf(5, of_p.mean(), of_p.std()) - norm.logpdf(5, of_q.mean(), of_q.std()) - 1
    assert more[0] == 0.0
    assert more[1] == pytest.approx(by_hand)


def test_cmi_refuses_a_y_that_is_in_z() -> None:
    x, y = RNG(31).normal(size=(2, 100))
    with pytest.raises(
        nf.UserError, match="y column 0 is also in z, so that its information given z is zero"
    ):
        nf.estimate_cmi(x, y, np.column_stack([x, y]))
    with pytest.raises(nf.UserError, match="x column 1 is 1 in every row"):
        nf.total_correlation(np.column_stack([x, np.ones(100), y]))
    assert (
        "it may be a function of them" in nf.total_correlation(np.column_stack([x, -x]), folds=2).warnings[0]
    )
