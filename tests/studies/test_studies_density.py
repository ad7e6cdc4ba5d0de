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
    GaussianModel,
    SourcesModel,
    matrix_error,
    maximum_likelihood,
    problem,
)
from nearfar.studies.run import find_study, run_study


@pytest.mark.parametrize("kind", [GaussianModel, SourcesModel])
def test_log_partition_is_the_integral(kind: type[GaussianModel] | type[SourcesModel]) -> None:
    model = kind(torch.tensor([[1.5, 0.4], [0.4, 0.8]], dtype=torch.float64))
    line = torch.linspace(-20, 20, 1601, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    integral = float(model(grid).exp().sum().detach()) * float(line[1] - line[0]) ** 2
    assert math.log(integral) == pytest.approx(float(model.log_partition().detach()), abs=1e-3)


def test_order_and_signs_of_sources_do_not_matter() -> None:
    torch.manual_seed(0)
    truth = SourcesModel(torch.randn(4, 4, dtype=torch.float64))
    shuffled = SourcesModel(
        truth.matrix().detach()[[2, 0, 3, 1]] * torch.tensor([[1.0], [-1.0], [-1.0], [1.0]])
    )
    assert matrix_error(shuffled, truth) == pytest.approx(0, abs=1e-12)
    assert matrix_error(SourcesModel(2 * truth.matrix().detach()), truth) == pytest.approx(1, abs=1e-12)
    moved = truth.matrix().detach()[[2, 0, 3, 1]]
    assert matrix_error(GaussianModel(moved + moved.T), GaussianModel(moved + moved.T + 1)) > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_maximum_likelihood_is_above_the_truth_and_stationary(name: str) -> None:
    task = problem(name, 500, seed=1)
    likely = maximum_likelihood(task.start, task.data)

    def likelihood(model: GaussianModel | SourcesModel) -> float:
        return float((model(task.data).mean() - model.log_partition()).detach())

    assert likelihood(likely) >= likelihood(task.truth)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        step = 0.01 * torch.randn(likely.weight.shape, generator=generator, dtype=torch.float64)
        assert likelihood(type(likely)(likely.weight.detach() + step)) < likelihood(likely)


def test_a_small_run_nears_maximum_likelihood(tmp_path: Path) -> None:
    record = run_study(find_study("nce-density"), tmp_path, ["points=400", "repeats=1"])
    distance, log_z, matrix = "distance to maximum likelihood", "error of log Z", "matrix error"
    gaussian, sources = (
        {
            name: [float(row.ours or 0.0) for row in table.rows if row.series == name]
            for name in (distance, log_z, matrix)
        }
        for table in record.result.tables
    )
    assert gaussian[distance][-1] < 0.5 * gaussian[distance][0]
    assert sources[distance][-1] < sources[distance][0]
    for columns in (gaussian, sources):
        assert columns[log_z][-1] < columns[log_z][0]
        assert all(np.isfinite(columns[matrix]))
    assert len(list((tmp_path / "cells").iterdir())) == len(MODELS) * len(NUS)
    second = run_study(find_study("nce-density"), tmp_path, ["points=400", "repeats=1"])
    assert second.result == record.result


def test_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match="repeats was 0; expected a whole number from 1"):
        run_study(find_study("nce-density"), tmp_path, ["repeats=0"])
