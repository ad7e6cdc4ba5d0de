"""Variance and covariance of a batch (VICReg, Bardes et al. 2022)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, at
from nearfar.core.types import Encoded
from nearfar.errors import UserError
from nearfar.parts.priors.weights import checked

STEADY = 1e-4  # added to a variance, so that the root of none has a slope


@dataclass(frozen=True)
class VarianceCovariance(AbstractPrior):
    """weight ( variance mean_j max(0, 1 - s_j) + covariance (1/d) sum_(i != j) C_ij^2 ), s_j the deviation of dimension j over
    the batch and C its covariance matrix (Bardes et al. 2022, Eq. 1-4).

    As in the authors' code, the variance terms of the views are averaged and the covariance terms are twice their average: for two
    views, their sum. With `critic=distance` and `bound=barber-agakov` the whole is VICReg.
    """

    equation = (
        "{weight} ( {variance} mean_j max(0, 1 - s_j) + {covariance} sum_(i != j) C_ij^2 / d ), s_j the deviation of dimension j "
        "over the batch, C its covariance"
    )

    weight: Value = 1.0
    variance: float = 25.0
    covariance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", checked(self.weight))
        for key in ("variance", "covariance"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise UserError(f"prior.{key} was {getattr(self, key):g}; it must be at least 0")

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        variance = torch.stack([_flatness(cloud) for cloud in encoded.embeddings_per_view()]).mean()
        covariance = torch.stack([_redundancy(cloud) for cloud in encoded.embeddings_per_view()]).mean()
        return at(self.weight, progress) * (self.variance * variance + 2.0 * self.covariance * covariance)


def _flatness(cloud: Float[Tensor, "row dim"]) -> Float[Tensor, ""]:
    return F.relu(1.0 - (_centred(cloud).square().sum(dim=0) / _freedom(cloud) + STEADY).sqrt()).mean()


def _redundancy(cloud: Float[Tensor, "row dim"]) -> Float[Tensor, ""]:
    centred = _centred(cloud)
    covariance = centred.T @ centred / _freedom(cloud)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / cloud.shape[1]


def _centred(cloud: Tensor) -> Tensor:
    return cloud - cloud.mean(dim=0)


def _freedom(cloud: Tensor) -> int:
    return max(1, len(cloud) - 1)
