"""Deep InfoMax: a summary of a picture must identify its own feature map among those of other pictures.

    anchors   y = E(x), the head's output                          one vector a picture
    keys      the whole feature map through a network              global term, I(X; E(X))
              each of its M x M places through a network           local term, the mean of I(X^(i); E(X))

(Liu 2022, Eq. 36-37; the term of Eq. 38 is a prior, `priors.Adversarial`). The map is that of
the stage before the last, so that a summary is more than a mean of the map.
"""

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.types import Batch, Encoded, Pair, view_pairs
from nearfar.errors import UserError, check_number
from nearfar.parts.encoders.backbones import STAGED
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, planned_config
from nearfar.parts.encoders.roles import predicted
from nearfar.parts.encoders.stages import map_and_features, map_shape

MAP, PLACES, SUMMARY = range(3)  # kinds of keys, each a group
KEYS = 3  # of each view


class InfoMax(nn.Module, AbstractOneNetwork):
    """`global_weight` and `local_weight` are alpha and beta of Liu 2022, Eq. 37.

    With several views, the summary of one is contrasted with the maps of another. `direction="maps"`: the
    summary is the anchor and maps of other pictures are its negatives; `"summaries"`: the map, and each of
    its places, is an anchor and other summaries are its negatives; `"both"` is their mean.
    """

    equation = (
        "u = h(x), v = the feature map of x' whole ({global_weight} of the loss) and at every place "
        "({local_weight})"
    )
    remarks = (
        ("direction", "summaries", "u and v exchanged"),
        ("direction", "both", "and with u and v exchanged, half of the loss"),
    )
    works_with_one_view = True
    backbone_names = STAGED  # a map from inside them is needed
    network: Network

    def __init__(
        self,
        network: Network | HeadConfig,
        global_weight: float = 0.5,
        local_weight: float = 1.0,
        direction: Literal["maps", "summaries", "both"] = "maps",
        *,
        map_network: nn.Module | None = None,
        place_network: nn.Module | None = None,
        places: int = 0,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_number("encoders.global_weight", global_weight, 0)
        check_number("encoders.local_weight", local_weight, 0)
        if global_weight + local_weight == 0:
            raise UserError(
                "encoders.global_weight and encoders.local_weight were both 0; one must be above 0"
            )
        self.network = network.planned() if isinstance(network, HeadConfig) else network
        self.map_network, self.place_network = map_network or nn.Identity(), place_network or nn.Identity()
        self.register_module("predictor", predictor)
        self.global_weight, self.local_weight, self.places = global_weight, local_weight, places
        self.direction = direction
        # maps, places and summaries come from different networks, so they are different groups
        self.key_groups = 2 if direction == "maps" else 3

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        if head.head == "none":
            raise UserError("encoders.head was none with encoders=infomax; its summary is what a head makes")
        self.network = head.network(inputs)
        channels, side = map_shape(self.network.backbone, inputs)
        self.map_network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side * side, head.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(head.hidden, head.dim),
        )
        self.place_network = nn.Sequential(
            nn.Conv2d(channels, head.hidden, 1), nn.ReLU(inplace=True), nn.Conv2d(head.hidden, head.dim, 1)
        )
        self.places, self.predictor = side * side, head.make_predictor()

    def group_of(self, key: int) -> int:
        return key % KEYS

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """The summary of view a contrasted with the maps of view b, and the other way round: places are then
        further anchors, so that each is contrasted with every summary once."""
        ordered_pairs = view_pairs(views, symmetric, key_views)
        shares = {"maps": (1.0, 0.0), "summaries": (0.0, 1.0), "both": (0.5, 0.5)}[self.direction]
        global_part, local_part = (
            weight / len(ordered_pairs) for weight in (self.global_weight, self.local_weight)
        )
        pairs: list[Pair] = []
        for a, b in ordered_pairs:
            summary, first = a * self._anchors, b * self._anchors + 1
            pairs += [
                Pair(summary, b * KEYS + MAP, shares[0] * global_part),
                Pair(summary, b * KEYS + PLACES, shares[0] * local_part, self.places),
                Pair(first, a * KEYS + SUMMARY, shares[1] * global_part),
            ]
            anchors = range(first + 1, first + 1 + self.places)
            pairs += [
                Pair(place, a * KEYS + SUMMARY, shares[1] * local_part / self.places) for place in anchors
            ]
        return tuple(pair for pair in pairs if pair.weight)

    @property
    def _anchors(self) -> int:
        """Of each view: its summary, its whole map, its places."""
        return 2 + self.places

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        requested_anchors = [divmod(anchor, self._anchors) for anchor in anchors]
        requested_keys = [divmod(key, KEYS) for key in keys]
        maps_and_features = {
            w: map_and_features(self.network.backbone, batch.views[w])
            for w in sorted({w for w, _ in (*requested_anchors, *requested_keys)})
        }
        of = lambda kind, part: (
            {w for w, k in requested_keys if k == kind} | {w for w, k in requested_anchors if part(k)}
        )
        summaries = {
            w: self.network.head(self.network.dropped(maps_and_features[w][1]))
            for w in sorted(of(SUMMARY, lambda k: k == 0))
        }
        maps = {w: self.map_network(maps_and_features[w][0]) for w in sorted(of(MAP, lambda k: k == 1))}
        places = {w: self._places(maps_and_features[w][0]) for w in sorted(of(PLACES, lambda k: k > 1))}
        online = predicted(self.predictor, {w: summaries[w] for w, k in requested_anchors if k == 0})
        return Encoded(
            {
                w * self._anchors + k: online[w] if k == 0 else maps[w] if k == 1 else places[w][:, k - 2]
                for w, k in requested_anchors
            },
            {w * KEYS + k: (maps, places, summaries)[k][w] for w, k in requested_keys},
            embeddings=summaries,
        )

    def _places(self, maps: Float[Tensor, "image channel side side"]) -> Float[Tensor, "image place dim"]:
        return self.place_network(maps).flatten(2).transpose(1, 2)
