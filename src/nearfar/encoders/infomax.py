"""Deep InfoMax: a summary of a picture must identify its own feature map among those of other pictures.

    anchors   y = E(x), the head's output                          one vector a picture
    keys      the whole feature map through a network              global term, I(X; E(X))
              each of its M x M places through a network           local term, the mean of I(X^(i); E(X))

(Liu 2022, Eq. 36-37; what Eq. 38 asks of y beside it is a prior, `priors.Adversarial`). The map is that of the stage before the last, so that a summary is more than a mean of the map.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

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


class InfoMax(nn.Module):
    """`global_weight` and `local_weight` are alpha and beta of Liu 2022, Eq. 37.

    With several views, the summary of one is contrasted with the maps of another.
    """

    equation: ClassVar[str] = (
        "u = h(x), v = the feature map of x' whole ({global_weight} of the loss) and at every place ({local_weight})"
    )
    one_view: ClassVar[bool] = True
    networks: ClassVar[tuple[str, ...]] = tuple(BACKBONES)  # a map from inside them is needed
    key_groups: int = 2  # whole maps and places go through networks of their own

    def __init__(
        self,
        network: Network,
        global_weight: float = 0.5,
        local_weight: float = 1.0,
        *,
        whole: nn.Module,
        place: nn.Module,
        places: int,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        weights = {"global_weight": global_weight, "local_weight": local_weight}
        for key, weight in weights.items():
            if weight < 0:
                raise UserError(f"encoders.{key} was {weight:g}; it must be at least 0")
        if global_weight + local_weight == 0:
            raise UserError(
                "encoders.global_weight and encoders.local_weight were both 0; one must be above 0"
            )
        self.network, self.whole, self.place, self.predictor = network, whole, place, predictor
        self.global_weight, self.local_weight, self.places = global_weight, local_weight, places

    @classmethod
    def from_config(cls, plan: HeadConfig, seen: InputSpec, **settings: Any) -> Self:
        if plan.head == "none":
            raise UserError("encoders.head was none with encoders=infomax; its summary is what a head makes")
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
        return Encoded(predicted(self.predictor, summaries), known, clouds=summaries)

    def _places(self, maps: Float[Tensor, "image channel side side"]) -> Float[Tensor, "image place dim"]:
        return self.place(maps).flatten(2).transpose(1, 2)

    def advance(self, progress: Progress) -> None:
        """Nothing follows slowly here."""
