"""What people ask next: conditional information, KL, total correlation, rows, lags, tables, pictures; against closed forms."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import nearfar as nf
from nearfar.cli import main


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
    found = nf.estimate_cmi(x, x + z + b, z, folds=2)
    assert found.nats == pytest.approx(math.log(2) / 2, abs=0.12)
    assert found.interval[0] <= math.log(2) / 2 <= found.interval[1]
    assert found.certificate.status == "not covered"
    nothing = nf.estimate_cmi(z + 0.5 * a, z + 0.5 * b, z, folds=2)
    assert nothing.interval[0] < 0.05
    assert set(found.as_json()) >= {"nats", "bits", "interval", "certificate", "terms"}


def test_total_correlation_of_gaussians() -> None:
    x = normals(0, 500, [[1, 0.6, 0.3], [0.6, 1, 0.5], [0.3, 0.5, 1]])
    found = nf.total_correlation(x, folds=2)
    assert found.nats == pytest.approx(sample_information(*x.T), abs=0.1)
    with pytest.raises(nf.UserError, match="a total correlation needs two or more"):
        nf.total_correlation(x[:, 0])


def test_information_at_every_row() -> None:
    """log p(x, y) / p(x) p(y) of a Gaussian pair in closed form; NaN where there is a gap."""
    x, y = normals(1, 800, [[1, 0.8], [0.8, 1]]).T
    truth = -0.5 * math.log(1 - 0.64) - (0.64 * (x**2 + y**2) - 1.6 * x * y) / (2 * 0.36)
    x = x.copy()
    x[5] = np.nan
    found = nf.pointwise_mi(x, y, folds=3)
    assert np.isnan(found[5])
    kept = ~np.isnan(found)
    assert kept.sum() == 799
    assert np.corrcoef(found[kept], truth[kept])[0, 1] > 0.95
    assert found[kept].mean() == pytest.approx(truth[kept].mean(), abs=0.05)


@pytest.mark.parametrize(("shift", "scale"), [(1.0, 1.0), (0.0, 1.5), (0.0, 1.0)])
def test_kl_between_two_normals(shift: float, scale: float) -> None:
    """KL(N(m, s^2) || N(0, 1)) = -log s + (s^2 + m^2 - 1) / 2."""
    rng = np.random.default_rng(4)
    truth = -math.log(scale) + (scale**2 + shift**2 - 1) / 2
    found = nf.estimate_kl(shift + scale * rng.normal(size=1200), rng.normal(size=1200), folds=3)
    assert found.nats == pytest.approx(truth, abs=0.12)
    assert float(found.at_least) <= truth
    assert found.interval[0] <= truth <= found.interval[1]
    assert "NWJ" in found.at_least.certificate.condition
    with pytest.raises(nf.UserError, match="p has 2 columns and q 1"):
        nf.estimate_kl(rng.normal(size=(100, 2)), rng.normal(size=100))


def test_lags_find_the_delay_of_a_series() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1500)
    x[1:] += 0.4 * x[:-1]
    y = np.concatenate([rng.normal(size=2), x[:-2]]) + 0.7 * rng.normal(size=1500)
    found = nf.mi_over_lags(x, y, (1, 2), folds=2, block=10)
    assert found[2].nats == pytest.approx(sample_information(x[:-2], y[2:]), abs=0.1)
    assert found[1].nats < 0.3 * found[2].nats
    assert found[2].at_least.certificate.status == "proven"
    with pytest.raises(nf.UserError, match="at least 40 are needed"):
        nf.mi_over_lags(x, y, (0,), block=100)


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


def test_the_picture_of_one_estimate(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = table.parent / "one.png"
    assert main(["mi", f"{table}:strong", f"{table}:target", "--folds", "2", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "p = " in capsys.readouterr().out
    assert main(["mi", f"{table}:strong", f"{table}:target", "--plot", "picture.txt"]) == 2
    assert "must end in .svg, .png or .pdf" in capsys.readouterr().err


def test_the_critic_s_ratios_mean_what_they_say() -> None:
    """Calibration on unseen rows: as counted, within what so few rows allow."""
    x, y = normals(2, 1000, [[1, 0.7], [0.7, 1]]).T
    found = nf.estimate_mi(x, y, folds=2, baselines=False)
    assert len(found.calibration) >= 4
    assert np.mean([abs(said - counted) for said, counted in found.calibration]) < 0.25
    assert found.p_value is not None
    assert found.p_value < 1e-6
