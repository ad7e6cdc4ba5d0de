"""Densities estimated by contrast with noise: how far from maximum likelihood, for how much noise (Liu 2022,
sec. 1.3, Sáez Maldonado 2021, ch. 4).

Two unnormalised models, after Gutmann and Hyvärinen, whose estimator both papers present: a Gaussian of five
dimensions with an unknown precision matrix, and four Laplace sources behind an unknown mixing matrix (ICA).
Neither paper reports numbers; they claim that the estimate approaches maximum likelihood as nu, the noise per
data point, grows (Liu 2022, Eq. 20-23).

Command: nearfar study nce-density     Cost: about half a minute on one core.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from nearfar.errors import check_whole
from nearfar.estimate.density import fit_density
from nearfar.studies.frame import REFERENCE, StudyResult, StudyRow, StudyTable, Workspace, mean_row, study

NUS = (1, 3, 10, 30, 100)
MODELS = ("gaussian", "ica")


class GaussianModel(nn.Module):
    """log p0(u) = -u^T Lambda u / 2, Lambda symmetric and nothing more."""

    def __init__(self, start: Float[Tensor, "dim dim"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.contiguous().clone())

    def forward(self, u: Float[Tensor, "point dim"]) -> Float[Tensor, "point"]:
        return -0.5 * ((u @ self.matrix()) * u).sum(dim=1)

    def matrix(self) -> Float[Tensor, "dim dim"]:
        return 0.5 * (self.weight + self.weight.T)

    def log_partition(self) -> Tensor:
        return 0.5 * (len(self.weight) * math.log(2 * math.pi) - torch.linalg.slogdet(self.matrix())[1])


class SourcesModel(nn.Module):
    """log p0(u) = -sqrt(2) sum_i |b_i u|: Laplace sources of unit variance, B the unmixing matrix."""

    def __init__(self, start: Float[Tensor, "dim dim"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.contiguous().clone())

    def forward(self, u: Float[Tensor, "point dim"]) -> Float[Tensor, "point"]:
        return -math.sqrt(2) * (u @ self.weight.T).abs().sum(dim=1)

    def matrix(self) -> Float[Tensor, "dim dim"]:
        return self.weight

    def log_partition(self) -> Tensor:
        return 0.5 * len(self.weight) * math.log(2) - torch.linalg.slogdet(self.weight)[1]


DensityModel = GaussianModel | SourcesModel


@dataclass(frozen=True)
class DensityProblem:
    """Data, the noise they are contrasted with, the start of a fit, and the true model."""

    data: Float[Tensor, "point dim"]
    noise: MultivariateNormal
    start: DensityModel
    truth: DensityModel


def problem(name: str, points: int, seed: int) -> DensityProblem:
    rng = np.random.default_rng([seed, MODELS.index(name)])
    if name == "gaussian":
        factor = mixing(5, rng)
        data = torch.from_numpy(rng.normal(size=(points, 5)) @ factor.T)
        covariance = torch.diag(data.var(dim=0))
        truth: DensityModel = GaussianModel(torch.from_numpy(np.linalg.inv(factor @ factor.T)))
        start: DensityModel = GaussianModel(torch.linalg.inv(covariance))
    else:
        factor = mixing(4, rng)
        data = torch.from_numpy(rng.laplace(scale=math.sqrt(0.5), size=(points, 4)) @ factor.T)
        covariance = torch.cov(data.T)
        truth = SourcesModel(torch.from_numpy(np.linalg.inv(factor)))
        values, vectors = torch.linalg.eigh(covariance)
        start = SourcesModel(vectors.T / values.sqrt()[:, None])
    noise = MultivariateNormal(torch.zeros(data.shape[1], dtype=data.dtype), covariance)
    return DensityProblem(data, noise, start, truth)


def mixing(dim: int, rng: np.random.Generator) -> Float[np.ndarray, "dim dim"]:
    """A random matrix none of whose directions is stretched more than three times another."""
    left_vectors, _, right_vectors = np.linalg.svd(rng.normal(size=(dim, dim)))
    return left_vectors @ np.diag(np.geomspace(1.0, 3.0, dim)) @ right_vectors


def maximum_likelihood(start: DensityModel, data: Float[Tensor, "point dim"]) -> DensityModel:
    """The limit of nu: these two models' integrals are known, so it can be computed."""
    if isinstance(start, GaussianModel):
        return GaussianModel(torch.linalg.inv(data.T @ data / len(data)))
    model = SourcesModel(start.weight.detach())

    def closure() -> Tensor:
        model.zero_grad()
        loss = model.log_partition() - model(data).mean()
        loss.backward()
        return loss

    for _ in range(3):  # |s| has a kink on which L-BFGS can stop early; a fresh start moves on
        torch.optim.LBFGS(model.parameters(), max_iter=500, line_search_fn="strong_wolfe").step(closure)
    return model


def matrix_error(estimate: DensityModel, truth: DensityModel) -> float:
    """Relative distance |M - M*| / |M*|, for the best order and signs of sources."""
    ours, theirs = estimate.matrix().detach(), truth.matrix().detach()
    if isinstance(estimate, SourcesModel):
        orders = (ours[list(order)] for order in itertools.permutations(range(len(ours))))
        aligned = [order * (order * theirs).sum(dim=1, keepdim=True).sign() for order in orders]
        ours = min(aligned, key=lambda candidate: float((candidate - theirs).norm()))
    return float((ours - theirs).norm() / theirs.norm())


def errors(name: str, nu: int, points: int, seed: int) -> dict[str, float]:
    """Errors of one fit against the truth (matrix, log Z) and against maximum likelihood on the same data."""
    task = problem(name, points, seed)
    likely = maximum_likelihood(task.start, task.data)
    fitted = fit_density(task.start, task.data, task.noise, nu=nu, seed=seed)
    return {
        "matrix": matrix_error(fitted.model, task.truth),
        "log Z": abs(fitted.log_partition - float(fitted.model.log_partition().detach())),
        "to likelihood": matrix_error(fitted.model, likely),
        "likelihood": matrix_error(likely, task.truth),
    }


QUANTITIES = {
    "matrix": "matrix error",
    "log Z": "error of log Z",
    "to likelihood": "distance to maximum likelihood",
}
REMARKS = (
    "neither Liu 2022 nor Sáez Maldonado 2021 prints numbers for this experiment; they claim that the "
    "estimate nears maximum likelihood as nu grows.",
    "two things may slow the sources down, and were not separated: Laplace tails are heavier than the "
    "Gaussian noise's, so p / (nu p_n), which Liu 2022, Eq. 22-23 let vanish, stays large far out; and the "
    "optimiser can stop on the kinks of |s| (restarting fits moved them by up to 0.03).",
)


@study(
    "nce-density", "Liu 2022, sec. 1.3: unnormalised Gaussian and ICA contrasted with noise, error against nu"
)
def run(workspace: Workspace, seed: int = 0, repeats: int = 5, points: int = 1000) -> StudyResult:
    check_whole("repeats", repeats, 1)
    check_whole("points", points, 50)
    tables = []
    for name in MODELS:
        arms = {f"{name},nu={nu}": {"name": name, "nu": nu, "points": points} for nu in NUS}
        values = workspace.repeat(errors, arms, range(seed, seed + repeats))
        tables.append(_table(name, dict(zip(NUS, values.values(), strict=True))))
    return StudyResult(tuple(tables), REMARKS)


def _table(name: str, by_nu: dict[int, list[dict[str, float]]]) -> StudyTable:
    rows = [
        mean_row(f"{title}, nu={nu}", [fit[quantity] for fit in fits], x=nu, series=title)
        for quantity, title in QUANTITIES.items()
        for nu, fits in by_nu.items()
    ]
    likelihood = [fit["likelihood"] for fit in by_nu[NUS[0]]]
    rows.append(mean_row("matrix error, maximum likelihood", likelihood, series=REFERENCE))
    gaps = [float(row.ours or 0.0) for row in rows if row.series == QUANTITIES["to likelihood"]]
    falls = all(a > b for a, b in itertools.pairwise(gaps))
    verdict = "falls" if falls else "not at every step"
    rows.append(StudyRow("distance to maximum likelihood as nu grows", "falls", verdict))
    label, source = "nu: noise points per data point", "Liu 2022, Eq. 20-23, in words"
    return StudyTable(f"Liu 2022, Eq. 20-23, {name}", tuple(rows), source, x_label=label, log="xy")
