"""The two unnormalised models of `nce-density`: their integrals, their error measures, and a small run."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.studies.nce_density import (
    MODELS,
    NUS,
    STUDY,
    Gaussian,
    Sources,
    matrix_error,
    maximum_likelihood,
    problem,
)
from nearfar.studies.run import run_study


@pytest.mark.parametrize("kind", [Gaussian, Sources])
def test_log_partition_is_the_integral(kind: type[Gaussian] | type[Sources]) -> None:
    model = kind(torch.tensor([[1.5, 0.4], [0.4, 0.8]], dtype=torch.float64))
    line = torch.linspace(-20, 20, 1601, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    integral = float(model(grid).exp().sum().detach()) * float(line[1] - line[0]) ** 2
    assert math.log(integral) == pytest.approx(float(model.log_partition().detach()), abs=1e-3)


def test_the_order_and_signs_of_sources_are_nobodys() -> None:
    torch.manual_seed(0)
    truth = Sources(torch.randn(4, 4, dtype=torch.float64))
    shuffled = Sources(truth.matrix().detach()[[2, 0, 3, 1]] * torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]))
    assert matrix_error(shuffled, truth) == pytest.approx(0, abs=1e-12)
    assert matrix_error(Sources(2 * truth.matrix().detach()), truth) == pytest.approx(1, abs=1e-12)
    moved = truth.matrix().detach()[[2, 0, 3, 1]]
    assert matrix_error(Gaussian(moved + moved.T), Gaussian(moved + moved.T + 1)) > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_maximum_likelihood_is_above_the_truth_and_stationary(name: str) -> None:
    task = problem(name, 500, seed=1)
    likely = maximum_likelihood(task.start, task.data)

    def likelihood(model: Gaussian | Sources) -> float:
        return float((model(task.data).mean() - model.log_partition()).detach())

    assert likelihood(likely) >= likelihood(task.truth)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        step = 0.01 * torch.randn(likely.weight.shape, generator=generator, dtype=torch.float64)
        assert likelihood(type(likely)(likely.weight.detach() + step)) < likelihood(likely)


def test_a_small_run_nears_maximum_likelihood(tmp_path: Path) -> None:
    record = run_study(STUDY, tmp_path, ["points=400", "repeats=1"])
    gaussian, sources = (finding.curves["to likelihood"] for finding in record.result.findings)
    assert gaussian[-1] < 0.5 * gaussian[0]
    assert sources[-1] < sources[0]
    for finding in record.result.findings:
        assert finding.curves["log Z"][-1] < finding.curves["log Z"][0]
        assert all(np.isfinite(finding.curves["matrix"]))
    assert len(list((tmp_path / "arms").iterdir())) == len(MODELS) * len(NUS)
    again = run_study(STUDY, tmp_path, ["points=400", "repeats=1"])
    assert again.result == record.result


def test_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match="repeats was 0 and points 1000"):
        run_study(STUDY, tmp_path, ["repeats=0"])
