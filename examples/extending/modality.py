"""A modality: this file, and a line in `nearfar/modalities/__init__.py`:  MODALITIES["angles"] = ANGLES

    nf.pretrain("simclr", data=angles, out="runs/angles")       angles: an array (n,), in radians

Angles are points on a circle, seen turned a little. Networks and pictures are those of vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import Arrays, Modality, ViewFamily
from nearfar.modalities.vectors import VECTORS, Vectors, VectorsDescription
from nearfar.modalities.vectors.data import VectorsReader
from nearfar.modalities.vectors.views import Standardised


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AngleSet(Vectors):
    modality: ClassVar[str] = "angles"
    unit: ClassVar[str] = "angles"


class AnglesReader(VectorsReader):
    files = "angles"
    array_key = "angles"
    array_axes = (1,)

    def convert(self, item: Any, options: Mapping[str, Any]) -> None:
        """Items of a torch `Dataset` that are rows of numbers are vectors."""

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> AngleSet:
        points = np.stack([np.cos(arrays.array), np.sin(arrays.array)], axis=1)
        rows = super().from_array(replace(arrays, array=points), name, options)
        return AngleSet(**{field.name: getattr(rows, field.name) for field in fields(rows)})

    def example_description(self, instances: int) -> VectorsDescription:
        return VectorsDescription("", instances, (0.0, 0.0), (1.0, 1.0))


@dataclass(frozen=True)
class Turn(AbstractViewSettings):
    """`count` views, each turned by up to `by` radians either way."""

    by: float = 0.3
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.by < 0:
            raise UserError(f"views.by was {self.by:g}; it must be at least 0")

    def training(self, description: VectorsDescription, device: torch.device) -> "Turned":
        return Turned(self, description, device)

    def plain_view(self, description: VectorsDescription, device: torch.device) -> Standardised:
        return Standardised(description, device)


class Turned(AbstractViews, Standardised):
    def __init__(self, turn: Turn, description: VectorsDescription, device: torch.device) -> None:
        super().__init__(description, device)
        self.turn = turn

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        angle = np.arctan2(loaded[:, 1], loaded[:, 0])
        views = []
        for view in range(self.turn.count):
            by = self.turn.by * (2 * uniforms(seed, epoch, index, view, 1)[:, 0] - 1)
            turned = np.stack([np.cos(angle + by), np.sin(angle + by)], axis=1)
            views.append(self._tensor((turned - self.mean) / self.std))
        return tuple(views)


ANGLES = Modality(
    name="angles",
    unit="angles",
    plural="angles",
    example="angles.npz",
    reader=AnglesReader(),
    views=ViewFamily({"turn": Turn}),
    networks=VECTORS.networks,
    presenter=VECTORS.presenter,
)
