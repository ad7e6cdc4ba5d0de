"""Densities estimated by contrast with noise: how far from maximum likelihood, for how much noise (Liu 2022, sec. 1.3, Sáez Maldonado 2021, ch. 4).

Two models that are not normalised, after Gutmann and Hyvärinen, whose estimator both papers present: a Gaussian of
five dimensions with an unknown precision matrix, and four Laplace sources behind an unknown mixing matrix (ICA).
Neither paper reports numbers; what they claim is that the estimate approaches maximum likelihood as nu, the
noise per data point, grows (Liu 2022, Eq. 20-23).

Command: nearfar study nce-density     Cost: about half a minute on one core.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from nearfar.errors import UserError
from nearfar.estimate.density import fit_density
from nearfar.studies.frame import Bench, Finding, Result, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUS = (1, 3, 10, 30, 100)
MODELS = ("gaussian", "ica")


class Gaussian(nn.Module):
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


class Sources(nn.Module):
    """log p0(u) = -sqrt(2) sum_i |b_i u|: independent Laplace sources of unit variance, B the unmixing matrix."""

    def __init__(self, start: Float[Tensor, "dim dim"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.contiguous().clone())

    def forward(self, u: Float[Tensor, "point dim"]) -> Float[Tensor, "point"]:
        return -math.sqrt(2) * (u @ self.weight.T).abs().sum(dim=1)

    def matrix(self) -> Float[Tensor, "dim dim"]:
        return self.weight

    def log_partition(self) -> Tensor:
        return 0.5 * len(self.weight) * math.log(2) - torch.linalg.slogdet(self.weight)[1]


Model = Gaussian | Sources


@dataclass(frozen=True)
class Problem:
    """Data, the noise they are contrasted with, where a fit starts, and what generated them."""

    data: Float[Tensor, "point dim"]
    noise: MultivariateNormal
    start: Model
    truth: Model


def problem(name: str, points: int, seed: int) -> Problem:
    rng = np.random.default_rng([seed, MODELS.index(name)])
    if name == "gaussian":
        factor = mixing(5, rng)
        data = torch.from_numpy(rng.normal(size=(points, 5)) @ factor.T)
        covariance = torch.diag(data.var(dim=0))
        truth: Model = Gaussian(torch.from_numpy(np.linalg.inv(factor @ factor.T)))
        start: Model = Gaussian(torch.linalg.inv(covariance))
    else:
        factor = mixing(4, rng)
        data = torch.from_numpy(rng.laplace(scale=math.sqrt(0.5), size=(points, 4)) @ factor.T)
        covariance = torch.cov(data.T)
        truth = Sources(torch.from_numpy(np.linalg.inv(factor)))
        values, vectors = torch.linalg.eigh(covariance)
        start = Sources(vectors.T / values.sqrt()[:, None])
    noise = MultivariateNormal(torch.zeros(data.shape[1], dtype=data.dtype), covariance)
    return Problem(data, noise, start, truth)


def mixing(dim: int, rng: np.random.Generator) -> Float[np.ndarray, "dim dim"]:
    """A random matrix none of whose directions is stretched more than three times another."""
    left, _, right = np.linalg.svd(rng.normal(size=(dim, dim)))
    return left @ np.diag(np.geomspace(1.0, 3.0, dim)) @ right


def maximum_likelihood(start: Model, data: Float[Tensor, "point dim"]) -> Model:
    """The limit of nu: these two models' integrals are known, so it can be computed."""
    if isinstance(start, Gaussian):
        return Gaussian(torch.linalg.inv(data.T @ data / len(data)))
    model = Sources(start.weight.detach())

    def closure() -> Tensor:
        model.zero_grad()
        loss = model.log_partition() - model(data).mean()
        loss.backward()
        return loss

    for _ in range(3):  # |s| has a kink on which L-BFGS can stop early; a fresh start moves on
        torch.optim.LBFGS(model.parameters(), max_iter=500, line_search_fn="strong_wolfe").step(closure)
    return model


def matrix_error(found: Model, truth: Model) -> float:
    """Relative distance |M - M*| / |M*|; the order and signs of sources are nobody's, so the best are taken."""
    ours, theirs = found.matrix().detach(), truth.matrix().detach()
    if isinstance(found, Sources):
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


def run(bench: Bench, seed: int = 0, repeats: int = 5, points: int = 1000) -> Result:
    if repeats < 1 or points < 50:
        raise UserError(
            f"repeats was {repeats} and points {points}; expected repeats from 1 and points from 50"
        )
    findings = tuple(_finding(bench, name, range(seed, seed + repeats), points) for name in MODELS)
    return Result(
        findings,
        (
            "neither Liu 2022 nor Sáez Maldonado 2021 prints numbers for this experiment; their claim is that the estimate nears maximum "
            "likelihood as nu grows.",
            "two things may slow the sources down, and they were not told apart: Laplace tails are heavier than the Gaussian "
            "noise's, so p / (nu p_n), which Liu 2022, Eq. 22-23 let vanish, stays large far out; and the optimiser can stop "
            "on the kinks of |s| (starting fits again moved them by up to 0.03).",
        ),
    )


def _finding(bench: Bench, name: str, seeds: range, points: int) -> Finding:
    found: dict[int, list[dict[str, float]]] = {}
    for nu in NUS:
        bench.say(f"{name}, nu = {nu}")
        arms: list[dict[str, Any]] = [{"name": name, "nu": nu, "points": points, "seed": s} for s in seeds]
        found[nu] = [bench.arm(arm, partial(errors, **arm)) for arm in arms]

    def column(nu: int, what: str) -> tuple[float, float]:
        values = np.array([fit[what] for fit in found[nu]])
        return float(values.mean()), float(values.std())

    rows = [Row(f"matrix error, nu={nu}", None, *column(nu, "matrix")) for nu in NUS]
    rows.append(Row("matrix error, maximum likelihood", None, *column(NUS[0], "likelihood")))
    rows += [Row(f"error of log Z, nu={nu}", None, *column(nu, "log Z")) for nu in NUS]
    gaps = [column(nu, "to likelihood")[0] for nu in NUS]
    rows += [
        Row(f"distance to maximum likelihood, nu={nu}", None, gap) for nu, gap in zip(NUS, gaps, strict=True)
    ]
    falls = all(a > b for a, b in itertools.pairwise(gaps))
    rows.append(
        Row("distance to maximum likelihood as nu grows", "falls", "falls" if falls else "not at every step")
    )
    curves: dict[str, Any] = {"nu": list(NUS), "likelihood": column(NUS[0], "likelihood")[0]}
    for what in ("matrix", "log Z", "to likelihood"):
        curves[what] = [column(nu, what)[0] for nu in NUS]
        curves[f"{what} sd"] = [column(nu, what)[1] for nu in NUS]
    return Finding(f"Liu 2022, Eq. 20-23, {name}", tuple(rows), curves, "Liu 2022, Eq. 20-23, in words")


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    figure, axes = panels(["Gaussian, five dimensions", "Four Laplace sources (ICA)"])
    for axis, finding in zip(axes, result.findings, strict=True):
        curves = finding.curves
        names = {"matrix": "matrix", "log Z": "log Z", "to likelihood": "matrix, to maximum likelihood"}
        for colour, (what, label) in zip(COLOURS, names.items(), strict=False):
            axis.errorbar(
                curves["nu"], curves[what], yerr=curves[f"{what} sd"], color=colour, label=label, marker="o",
                markersize=3, capsize=2, linewidth=1.2,
            )  # fmt: skip
        truth(axis, curves["likelihood"], "matrix, maximum likelihood")
        axis.set(xscale="log", yscale="log", xlabel="nu: noise points per data point", ylabel="error")
    axes[0].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "nce-density",
    "Liu 2022, sec. 1.3: unnormalised Gaussian and ICA contrasted with noise, error against nu",
    run,
    draw,
)
