"""Sketched isotropic Gaussian regularisation (SIGReg; LeJEPA, Balestriero & LeCun 2025)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, at
from nearfar.core.types import Encoded
from nearfar.errors import UserError
from nearfar.parts.priors.weights import checked

KNOTS, REACH = 17, 3.0  # of the integral over frequencies, as the authors have it


@dataclass(frozen=True)
class SIGReg(AbstractPrior):
    """weight times the mean over random directions a of the Epps-Pulley statistic

        n ∫ |phi_n(t) - e^(-t²/2)|² e^(-t²/2) dt,   phi_n(t) = (1/n) sum_i e^(i t a·z_i),

    averaged over views. A cloud whose every projection is standard normal is standard normal (Cramér and Wold), so few directions
    that change with every step do. Which they are is a function of the step: a resumed run draws the same.
    """

    equation = "{weight} E_a[ n ∫ |mean e^(i t a.z) - e^(-t^2/2)|^2 e^(-t^2/2) dt ], a: {directions} random directions"

    weight: Value = 0.05
    directions: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", checked(self.weight))
        if not 1 <= self.directions <= 2**20:
            raise UserError(f"prior.directions was {self.directions}; it must be from 1 to {2**20}")

    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        statistics = [self._statistic(cloud, progress.step) for cloud in encoded.embeddings_per_view()]
        return at(self.weight, progress) * torch.stack(statistics).mean()

    def sketch(self, dim: int, step: int) -> Float[Tensor, "dim direction"]:
        """The unit vectors of a step."""
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randn(dim, self.directions, generator=generator, dtype=torch.float64, device="cpu")
        return drawn / drawn.norm(dim=0)

    def _statistic(self, cloud: Float[Tensor, "row dim"], step: int) -> Float[Tensor, ""]:
        along = cloud @ self.sketch(cloud.shape[1], step).to(cloud)
        t = torch.linspace(0.0, REACH, KNOTS, dtype=cloud.dtype, device=cloud.device)
        normal = torch.exp(-0.5 * t.square())
        angle = along[..., None] * t  # (row, direction, knot)
        real, imaginary = angle.cos().mean(dim=0), angle.sin().mean(dim=0)
        # even in t, so the integral over all t is twice that from 0
        error = ((real - normal).square() + imaginary.square()) * normal
        return 2.0 * len(cloud) * torch.trapezoid(error, t, dim=-1).mean()
