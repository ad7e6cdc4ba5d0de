"""Priors on the embeddings of a batch: variance and covariance (VICReg), cross-correlation (Barlow Twins), a
normal distribution (SIGReg), an adversary (Deep InfoMax)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, at, parse_within
from nearfar.core.types import Encoded, Sizes
from nearfar.errors import UserError, check_number, check_whole


def checked(value: Value, key: str = "weight") -> Value:
    """A weight: a number or schedule, never below 0."""
    return parse_within(value, f"prior.{key}", 0)


BATCH_NORM_EPS = 1e-5  # added to a variance, as batch norms do
VARIANCE_EPS = 1e-4  # added to a variance, so that its root has a gradient at zero


@dataclass(frozen=True)
class VarianceCovariance(AbstractPrior):
    """weight ( variance mean_j max(0, 1 - s_j) + covariance (1/d) sum_(i != j) C_ij^2 ), s_j the deviation of
    dimension j over the batch and C its covariance matrix (Bardes et al. 2022, Eq. 1-4).

    As in the authors' code, the variance terms of the views are averaged and the covariance terms are twice
    their average: for two views, their sum. With `critic=distance` and `bound=barber-agakov` the whole is
    VICReg.
    """

    equation = (
        "{weight} ( {variance} mean_j max(0, 1 - s_j) + {covariance} sum_(i != j) C_ij^2 / d ), s_j the "
        "deviation of dimension j over the batch, C its covariance"
    )

    weight: Value = 1.0
    variance: float = 25.0
    covariance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", checked(self.weight))
        for key in ("variance", "covariance"):
            check_number(f"prior.{key}", getattr(self, key), 0)

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        variance = torch.stack([variance_hinge(cloud) for cloud in encoded.embeddings_per_view()]).mean()
        covariance = torch.stack([covariance_energy(cloud) for cloud in encoded.embeddings_per_view()]).mean()
        return at(self.weight, progress) * (self.variance * variance + 2.0 * self.covariance * covariance)


def variance_hinge(cloud: Float[Tensor, "row dim"], eps: float = VARIANCE_EPS) -> Float[Tensor, ""]:
    """mean_j max(0, 1 - s_j), s_j the deviation of dimension j."""
    return F.relu(
        1.0 - (_centred(cloud).square().sum(dim=0) / _degrees_of_freedom(cloud) + eps).sqrt()
    ).mean()


def covariance_energy(cloud: Float[Tensor, "row dim"]) -> Float[Tensor, ""]:
    """(1/d) sum_(i != j) C_ij^2, C the covariance matrix of the dimensions."""
    centred = _centred(cloud)
    covariance = centred.T @ centred / _degrees_of_freedom(cloud)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / cloud.shape[1]


def _centred(cloud: Tensor) -> Tensor:
    return cloud - cloud.mean(dim=0)


def _degrees_of_freedom(cloud: Tensor) -> int:
    return max(1, len(cloud) - 1)


@dataclass(frozen=True)
class CrossCorrelation(AbstractPrior):
    """weight ( sum_i (1 - C_ii)^2 + redundancy sum_(i != j) C_ij^2 ), C the matrix of correlations over the batch
    between the dimensions of one view and those of another (Zbontar et al. 2021, Eq. 1-2).

    Its mean over pairs of views, of which at least one is a key where there are small crops. With `bound=none`
    it is Barlow Twins.
    """

    equation = (
        "{weight} ( sum_i (1 - C_ii)^2 + {redundancy} sum_(i != j) C_ij^2 ), C the correlations of the dimensions "
        "of two views over the batch"
    )

    weight: Value = 1.0
    redundancy: float = 0.0051

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", checked(self.weight))
        check_number("prior.redundancy", self.redundancy, 0)

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        views, encoders = choices["views"], parts["encoders"]
        # where keys are symbols or come from another network, views that are keys alone have no embedding
        every_view = not (encoders.separate_key_network or encoders.keys_are_symbols)
        if views["count"] >= 2 and (views["symmetric"] or every_view):
            return None
        return (
            "prior was cross-correlation, which compares two views embedded by one network, with "
            f"encoders={choices['encoders']['name']}, views.count={views['count']} and "
            f"views.symmetric={str(views['symmetric']).lower()}; use views.count=2 and views.symmetric=true"
        )

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        views = [standardised(cloud) for cloud in encoded.embeddings_per_view()]
        keys = [view for view in range(len(views)) if view in encoded.keys] or list(range(len(views)))
        pairs = [(a, b) for b in keys for a in range(len(views)) if a < b or (a > b and a not in keys)]
        if not pairs:
            raise UserError(
                "prior=cross-correlation compares two views embedded by one network; use encoders=shared with "
                "views.count=2 and views.symmetric=true"
            )
        terms = [correlation_error(views[a], views[b], self.redundancy) for a, b in pairs]
        return at(self.weight, progress) * torch.stack(terms).mean()


def correlation_error(
    first: Float[Tensor, "row dim"], second: Float[Tensor, "row dim"], redundancy: float
) -> Float[Tensor, ""]:
    """sum_i (1 - C_ii)^2 + redundancy sum_(i != j) C_ij^2 of standardised views."""
    correlation = first.T @ second / len(first)
    diagonal = correlation.diagonal()
    off_diagonal = correlation.square().sum() - diagonal.square().sum()
    return (1.0 - diagonal).square().sum() + redundancy * off_diagonal


def standardised(cloud: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    """Every dimension with mean 0 and variance 1 over the batch, as a batch norm without weights gives it."""
    centred = _centred(cloud)
    return centred / (centred.square().mean(dim=0) + BATCH_NORM_EPS).sqrt()


KNOTS, REACH = 17, 3.0  # of the integral over frequencies, as the authors have it


@dataclass(frozen=True)
class SIGReg(AbstractPrior):
    """weight times the mean over random directions a of the Epps-Pulley statistic

        n ∫ |phi_n(t) - e^(-t²/2)|² e^(-t²/2) dt,   phi_n(t) = (1/n) sum_i e^(i t a·z_i),

    averaged over views. A cloud whose every projection is standard normal is standard normal (Cramér and
    Wold), so few directions that change with every step do. Which they are is a function of the step: a
    resumed run draws the same.
    """

    equation = (
        "{weight} E_a[ n ∫ |mean e^(i t a.z) - e^(-t^2/2)|^2 e^(-t^2/2) dt ], a: {directions} random "
        "directions"
    )

    weight: Value = 0.05
    directions: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", checked(self.weight))
        check_whole("prior.directions", self.directions, 1, 2**20)

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        clouds = encoded.embeddings_per_view()
        statistics = [
            epps_pulley(cloud, self.sketch(cloud.shape[1], progress.step).to(cloud)) for cloud in clouds
        ]
        return at(self.weight, progress) * torch.stack(statistics).mean()

    def sketch(self, dim: int, step: int) -> Float[Tensor, "dim direction"]:
        """The unit vectors of a step."""
        # numpy's generator, since torch.func.vmap refuses torch's
        directions = np.random.default_rng(step).normal(size=(dim, self.directions))
        return torch.from_numpy(directions / np.linalg.norm(directions, axis=0))


def epps_pulley(
    cloud: Float[Tensor, "row dim"],
    directions: Float[Tensor, "dim direction"],
    knots: int = KNOTS,
    reach: float = REACH,
) -> Float[Tensor, ""]:
    """The Epps-Pulley statistic, averaged over directions; the integral is over |t| <= reach."""
    along = cloud @ directions
    t = torch.linspace(0.0, reach, knots, dtype=cloud.dtype, device=cloud.device)
    normal = torch.exp(-0.5 * t.square())
    angle = along[..., None] * t  # (row, direction, knot)
    real, imaginary = angle.cos().mean(dim=0), angle.sin().mean(dim=0)
    # even in t, so the integral over all t is twice that from 0
    error = ((real - normal).square() + imaginary.square()) * normal
    return 2.0 * len(cloud) * torch.trapezoid(error, t, dim=-1).mean()


Target = Literal["uniform", "gaussian"]
DISCRIMINATOR_WIDTH = 200


class _Reversed(torch.autograd.Function):
    """The identity, with the gradient turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Adversarial(nn.Module, AbstractPrior):
    """weight times min over E, max over D of E_V[ln D(v)] + E_P[ln(1 - D(E(x)))] (Liu 2022, Eq. 38-39).

    Its value is minus that, which the discriminator lowers; the gradient that reaches E is turned round, so E
    raises what D lowers, in one backward pass. The target is a uniform distribution of sigmoid(y) over the
    unit cube, or a normal distribution of y.
    """

    equation = (
        "{weight} of what tells u from draws of a {target} distribution, E_V[ln D(v)] + E_P[ln(1 - D(u))], "
        "which D climbs"
    )

    def __init__(self, weight: Value = 0.1, target: Target = "uniform", *, dim: int | None = None) -> None:
        super().__init__()
        if target not in ("uniform", "gaussian"):
            raise UserError(f"prior.target was {target!r}; expected uniform or gaussian")
        self.weight, self.target = checked(weight), target
        if dim is not None:
            self._make_discriminator(dim)

    def meet(self, sizes: Sizes) -> None:
        self._make_discriminator(sizes.width(self))

    def _make_discriminator(self, dim: int) -> None:
        self.discriminator = nn.Sequential(
            nn.Linear(dim, DISCRIMINATOR_WIDTH), nn.ReLU(inplace=True), nn.Linear(DISCRIMINATOR_WIDTH, 1)
        )

    def forward(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        y = torch.cat(encoded.embeddings_per_view())
        if self.target == "uniform":
            embeddings, samples = torch.sigmoid(y), torch.rand_like(y)
        else:
            embeddings, samples = y, torch.randn_like(y)
        reversed_: Tensor = _Reversed.apply(embeddings)
        of_prior, of_embeddings = self.discriminator(samples), self.discriminator(reversed_)
        # -ln D(v) and -ln(1 - D(y)) of a logit
        return at(self.weight, progress) * (F.softplus(-of_prior) + F.softplus(of_embeddings)).mean()
