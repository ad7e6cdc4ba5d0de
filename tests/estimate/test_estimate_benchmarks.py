"""Parts of the benchmarks of the estimator: records that resume, the plug-in, truths of adversarial
families."""

from pathlib import Path

import numpy as np
import pytest
from adversarial_bound import FAMILIES, ZIPF, entropy, truth
from records import run_recorded, share
from report_information import plug_in
from scipy.stats import norm

from nearfar.bench.information_tasks import student


def test_records_resume_and_stop(tmp_path: Path) -> None:
    calls: list[str] = []

    def measure(key: str) -> dict[str, int]:
        calls.append(key)
        return {"length": len(key)}

    file = tmp_path / "folder" / "records.jsonl"
    assert len(run_recorded(file, ["a", "bb"], measure)) == 2
    records = run_recorded(file, ["a", "bb", "ccc"], measure)
    assert [record["length"] for record in records] == [1, 2, 3]
    assert calls == ["a", "bb", "ccc"]
    assert [r["key"] for r in run_recorded(file, ["dd", "a"], measure, seconds=-1)] == ["a"]


def test_shares_have_exact_limits() -> None:
    """Clopper and Pearson: none of 10 is at most 1 - 0.025^(1/10)."""
    assert share([False] * 10) == f"0 of 10 (0.0%; 0.0% to {1 - 0.025**0.1:.1%})"


def test_plug_in_of_copies_is_the_entropy() -> None:
    x = np.repeat([0, 1, 2], [10, 20, 30])[:, None].astype(float)
    assert plug_in(x, 5 * x + 1) == pytest.approx(entropy([1 / 6, 2 / 6, 3 / 6]))
    number = np.random.default_rng(0).normal(size=(1000, 1))
    assert plug_in(number, number) == pytest.approx(np.log(10), abs=1e-9)  # ten bins of a hundred


@pytest.mark.parametrize("family", ["rare event", "rare class"])
def test_adversarial_truths_from_the_other_side(family: str) -> None:
    """h(x) - h(x | y) by quadrature is H(y) - E[H(y | x)] over draws; six standard errors."""
    shares = np.array([39 / 40, 1 / 40]) if family == "rare event" else ZIPF
    x, _ = FAMILIES[family](np.random.default_rng(0), 50_000)
    means = (3.0 if family == "rare event" else 1.5) * np.arange(len(shares))
    posterior = shares * norm.pdf(x[:, None], means)
    posterior /= posterior.sum(axis=1, keepdims=True)
    left = -(posterior * np.log(np.maximum(posterior, 1e-300))).sum(axis=1)
    error = 6 * left.std() / np.sqrt(len(left))
    assert truth(family) == pytest.approx(entropy(shares) - left.mean(), abs=error)


def test_other_adversarial_truths() -> None:
    """The chain rule for the column that tells the size of the noise: I(x, c; y) = I(c; y) + I(x; y | c).
    Student's t is that of the tasks of `nearfar bench information`."""
    assert truth("rare flip") < np.log(2)
    assert truth("many levels") < np.log(40)
    assert truth("shared size") == pytest.approx(student(3, 1).truth)
    given_noise = 0.05 * np.log1p(400) + 0.45 * np.log1p(0.04)
    grid, spread = np.linspace(-60, 60, 600_001), np.sqrt(1 + np.array([0.05, 5.0]) ** 2)
    parts = norm.pdf(grid[:, None], 0, spread) * np.array([0.1, 0.9])
    total = parts.sum(axis=1)
    about_noise = np.trapezoid(
        (parts * np.log(parts / np.array([0.1, 0.9]) / total[:, None] + 1e-300)).sum(axis=1), grid
    )
    assert truth("unequal noise") == pytest.approx(given_noise + about_noise, abs=1e-4)
