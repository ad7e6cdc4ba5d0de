"""A prior that a discriminator enforces (Deep InfoMax, Liu 2022, Eq. 38)."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractPrior
from nearfar.core.schedules import START, Progress, Value, at
from nearfar.core.types import Encoded
from nearfar.errors import UserError
from nearfar.parts.priors.weights import checked

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

    Its value is minus that, which the discriminator lowers; the gradient that reaches E is turned round, so E raises
    what D lowers, in one backward pass. `uniform` asks sigmoid(y) to be spread evenly over the unit cube, `gaussian`
    asks y to be normal.
    """

    equation = "{weight} of what tells u from draws of a {target} distribution, E_V[ln D(v)] + E_P[ln(1 - D(u))], which D climbs"

    def __init__(self, weight: Value = 0.1, target: Target = "uniform", *, dim: int | None = None) -> None:
        super().__init__()
        if target not in ("uniform", "gaussian"):
            raise UserError(f"prior.target was {target!r}; expected uniform or gaussian")
        self.weight, self.target = checked(weight), target
        if dim is None:  # settings alone: the discriminator is made when the method meets its data
            return
        self.discriminator = nn.Sequential(
            nn.Linear(dim, DISCRIMINATOR_WIDTH), nn.ReLU(inplace=True), nn.Linear(DISCRIMINATOR_WIDTH, 1)
        )

    def forward(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]:
        y = torch.cat(encoded.embeddings_per_view())
        if self.target == "uniform":
            ours, drawn = torch.sigmoid(y), torch.rand_like(y)
        else:
            ours, drawn = y, torch.randn_like(y)
        reversed_: Tensor = _Reversed.apply(ours)
        of_prior, of_ours = self.discriminator(drawn), self.discriminator(reversed_)
        # -ln D(v) and -ln(1 - D(y)) of a logit
        return at(self.weight, progress) * (F.softplus(-of_prior) + F.softplus(of_ours)).mean()
