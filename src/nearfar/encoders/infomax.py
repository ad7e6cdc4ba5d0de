"""Deep InfoMax: a summary of a picture must identify its own feature map among those of other pictures.

    anchors   y = E(x), the head's output                          one vector a picture
    keys      the whole feature map through a network              global term, I(X; E(X))
              each of its M x M places through a network           local term, the mean of I(X^(i); E(X))
    penalty   a discriminator tells y from draws of a prior        E is moved against it

(Liu 2022, Eq. 36-39). The map is that of the stage before the last, so that a summary is more than a mean of the map.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.encoders.backbones import BACKBONES
from nearfar.encoders.config import HeadConfig, InputSpec
from nearfar.encoders.heads import Network
from nearfar.encoders.roles import predicted
from nearfar.encoders.stages import map_and_features, map_shape
from nearfar.errors import UserError
from nearfar.schedules import Progress
from nearfar.types import Batch, Encoded, Pair, view_pairs

Prior = Literal["uniform", "gaussian", "none"]
DISCRIMINATOR_WIDTH = 200


class _Reversed(torch.autograd.Function):
    """The identity, with the gradient turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class PriorMatch(nn.Module):
    """min over E, max over D of E_V[ln D(v)] + E_P[ln(1 - D(E(x)))] (Liu 2022, Eq. 38).

    Its value is minus that, which the discriminator lowers; the gradient that reaches E is turned round, so E raises
    what D lowers, in one backward pass. `uniform` asks sigmoid(y) to be spread evenly over the unit cube, `gaussian`
    asks y to be normal.
    """

    def __init__(self, prior: Prior, dim: int) -> None:
        super().__init__()
        self.prior = prior
        self.discriminator = nn.Sequential(
            nn.Linear(dim, DISCRIMINATOR_WIDTH), nn.ReLU(inplace=True), nn.Linear(DISCRIMINATOR_WIDTH, 1)
        )

    def forward(self, y: Float[Tensor, "image dim"]) -> Float[Tensor, ""]:
        if self.prior == "uniform":
            ours, drawn = torch.sigmoid(y), torch.rand_like(y)
        else:
            ours, drawn = y, torch.randn_like(y)
        reversed_: Tensor = _Reversed.apply(ours)
        of_prior, of_ours = self.discriminator(drawn), self.discriminator(reversed_)
        # -ln D(v) and -ln(1 - D(y)) of a logit
        return (F.softplus(-of_prior) + F.softplus(of_ours)).mean()


class InfoMax(nn.Module):
    """`global_weight` and `local_weight` are alpha and beta of Liu 2022, Eq. 37, `prior_weight` that of Eq. 38 in Eq. 39.

    With several views, the summary of one is contrasted with the maps of another.
    """

    equation: ClassVar[str] = (
        "u = h(x), v = the feature map of x' whole ({global_weight} of the loss) and at every place "
        "({local_weight}); u matched to a prior ({prior}, {prior_weight})"
    )
    one_view: ClassVar[bool] = True
    networks: ClassVar[tuple[str, ...]] = tuple(BACKBONES)  # a map from inside them is needed
    key_groups: int = 2  # whole maps and places go through networks of their own

    def __init__(
        self,
        network: Network,
        global_weight: float = 0.5,
        local_weight: float = 1.0,
        prior: Prior = "uniform",
        prior_weight: float = 0.1,
        *,
        whole: nn.Module,
        place: nn.Module,
        places: int,
        dim: int,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        weights = {"global_weight": global_weight, "local_weight": local_weight, "prior_weight": prior_weight}
        for key, weight in weights.items():
            if weight < 0:
                raise UserError(f"encoders.{key} was {weight:g}; it must be at least 0")
        if global_weight + local_weight == 0:
            raise UserError(
                "encoders.global_weight and encoders.local_weight were both 0; one must be above 0"
            )
        self.network, self.whole, self.place, self.predictor = network, whole, place, predictor
        self.global_weight, self.local_weight, self.places = global_weight, local_weight, places
        self.prior_weight = prior_weight
        self.match = PriorMatch(prior, dim) if prior != "none" and prior_weight else None

    @classmethod
    def from_config(cls, plan: HeadConfig, seen: InputSpec, **settings: Any) -> Self:
        network = plan.network(seen)
        channels, side = map_shape(network.backbone, seen)
        whole = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side * side, plan.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(plan.hidden, plan.dim),
        )
        place = nn.Sequential(
            nn.Conv2d(channels, plan.hidden, 1), nn.ReLU(inplace=True), nn.Conv2d(plan.hidden, plan.dim, 1)
        )
        return cls(
            network,
            **settings,
            whole=whole,
            place=place,
            places=side * side,
            dim=plan.dim,
            predictor=plan.make_predictor(),
        )

    def group_of(self, key: int) -> int:
        return key % 2  # see `pairs`

    def pairs(self, views: int, symmetric: bool) -> tuple[Pair, ...]:
        """The summary of view a contrasted with the maps of view b: key 2b is b's whole map, 2b + 1 its places."""
        asked = view_pairs(views, symmetric)
        both = [
            pair
            for a, b in asked
            for pair in (
                Pair(a, 2 * b, self.global_weight / len(asked)),
                Pair(a, 2 * b + 1, self.local_weight / len(asked), self.places),
            )
        ]
        return tuple(pair for pair in both if pair.weight)

    def backbone(self) -> nn.Module:
        return self.network.backbone

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        maps, features = {}, {}
        for w in sorted({*anchors, *(key // 2 for key in keys)}):
            maps[w], features[w] = map_and_features(self.network.backbone, batch.views[w])
        summaries = {w: self.network.head(self.network.dropped(features[w])) for w in anchors}
        known = {key: self._places(maps[key // 2]) if key % 2 else self.whole(maps[key // 2]) for key in keys}
        penalty = None
        if self.match is not None and summaries:
            penalty = self.prior_weight * self.match(torch.cat(list(summaries.values())))
        return Encoded(predicted(self.predictor, summaries), known, penalty=penalty)

    def _places(self, maps: Float[Tensor, "image channel side side"]) -> Float[Tensor, "image place dim"]:
        return self.place(maps).flatten(2).transpose(1, 2)

    def advance(self, progress: Progress) -> None:
        """Nothing follows slowly here."""
