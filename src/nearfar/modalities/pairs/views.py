"""Views of pairs: the two sides of a row are its two views. Each side has a network of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice, MakeViews, PlainView
from nearfar.modalities.pairs.data import SIDES, PairsDescription
from nearfar.parts.encoders import InputSpec


@dataclass(frozen=True)
class BothSides(AbstractViewSettings):
    """Both columns; with `augment`, as in the training of their modality, text unchanged."""

    augment: bool = True
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.count != 2:
            raise UserError(f"views.count was {self.count}; with pairs it is 2")

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        encoders, negatives = choices["encoders"]["name"], choices["negatives"]["name"]
        if encoders != "per-view":
            return f"encoders was {encoders} with views=both; two columns need encoders=per-view"
        if negatives not in ("in-batch", "none"):
            return f"negatives was {negatives} with views=both; use in-batch"
        return None

    def training(self, description: PairsDescription, device: torch.device) -> "PairViews":
        return PairViews(self, description, device)

    def plain_view(self, description: PairsDescription, device: torch.device) -> "FirstSide":
        return FirstSide(description, device)


@cache
def side_views(kind: str) -> AbstractViewSettings:
    """The views of one side: one view of its modality."""
    views = SIDES[kind].views
    single = {"count": 1, "symmetric": False} if views.several else {}
    return views.of({"name": views.default, **single})


class PairViews(AbstractViews):
    """The views of training: row i of both sides."""

    def __init__(self, settings: BothSides, description: PairsDescription, device: torch.device) -> None:
        self.description = description
        self.sides: list[MakeViews] = []
        for kind, side in zip(description.kinds, description.of_sides(), strict=True):
            views = side_views(kind)
            augmented = settings.augment and SIDES[kind].views.several
            self.sides.append((views.training if augmented else views.plain_view)(side, device))

    def __call__(
        self, loaded: tuple[Any, Any], seed: int, epoch: int, index: np.ndarray
    ) -> tuple[Tensor, ...]:
        return tuple(
            make(side, seed + number, epoch, index)[0]
            for number, (make, side) in enumerate(zip(self.sides, loaded, strict=True))
        )


class FirstSide(PlainView):
    """The view of evaluation: the plain view of the first column."""

    def __init__(self, description: PairsDescription, device: torch.device) -> None:
        kind, side = description.kinds[0], description.of_sides()[0]
        self.first = side_views(kind).plain_view(side, device)

    def __repr__(self) -> str:
        return f"FirstSide({self.first!r})"

    def __call__(
        self, loaded: tuple[Any, Any], seed: int, epoch: int, index: np.ndarray
    ) -> tuple[Tensor, ...]:
        return self.first(loaded[0], seed, epoch, index)


class PairsNetworks(AbstractNetworks):
    """One network for each side of a pair, of the side's modality."""

    names = ("both", "both-small")
    default = "both"
    small = "both-small"
    smallest = "both-small"

    def inputs(self, network: str, choice: Choice, description: PairsDescription) -> InputSpec:
        sides = []
        for kind, side in zip(description.kinds, description.of_sides(), strict=True):
            networks = SIDES[kind].networks
            name = networks.default if network == "both" else networks.smallest
            sides.append(networks.inputs(name, side_views(kind).section(), side))
        # each network receives its own view, so the shapes are not those of channels to be split
        return InputSpec(lambda view: sides[view].body(0), ((1,), (1,)), {"instances": description.instances})
