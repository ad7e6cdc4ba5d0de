"""A modality: this file, and a line in `nearfar/modalities/__init__.py`:  MODALITIES["angles"] = ANGLES

    nf.pretrain("simclr", data=angles, out="runs/angles")       angles: an array (n,), in radians

Angles are points on a circle, seen turned a little. What they have in common with vectors they take from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nearfar.config.schema import chosen_views, settable
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import Arrays, Choice
from nearfar.modalities.vectors.modality import Standard, Vectors, VectorsDescription, VectorsModality


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AngleSet(Vectors):
    modality: ClassVar[str] = "angles"
    unit: ClassVar[str] = "angles"


@dataclass(frozen=True)
class Turn:
    """`count` views, each turned by up to `by` radians either way."""

    by: float = 0.3
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.by < 0:
            raise UserError(f"views.by was {self.by:g}; it must be at least 0")


class Turned(Standard):
    def __init__(self, turn: Turn, known: VectorsDescription, device: torch.device) -> None:
        super().__init__(known, device)
        self.turn = turn

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        angle = np.arctan2(loaded[:, 1], loaded[:, 0])
        shown = []
        for view in range(self.turn.count):
            by = self.turn.by * (2 * uniforms(seed, epoch, index, view, 1)[:, 0] - 1)
            turned = np.stack([np.cos(angle + by), np.sin(angle + by)], axis=1)
            shown.append(self._tensor((turned - self.mean) / self.std))
        return tuple(shown)


class AnglesModality(VectorsModality):
    name = "angles"
    unit = files = holds = "angles"
    key = "angles"
    axes = (1,)
    pipelines = ("turn",)
    default_views = "turn"

    def convert(self, item: Any, options: Mapping[str, Any]) -> None:
        """Items of a data set that are rows of numbers are vectors."""

    def from_array(self, given: Arrays, name: str, options: Mapping[str, Any]) -> AngleSet:
        points = np.stack([np.cos(given.array), np.sin(given.array)], axis=1)
        rows = super().from_array(replace(given, array=points), name, options)
        return AngleSet(**{field.name: getattr(rows, field.name) for field in fields(rows)})

    def typical(self, instances: int) -> VectorsDescription:
        return VectorsDescription("", instances, (0.0, 0.0), (1.0, 1.0))

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Turn, choice)

    def views(self, choice: Choice, known: VectorsDescription, device: torch.device) -> Turned:  # type: ignore[override]
        return Turned(Turn(**{key: choice[key] for key in settable(Turn)}), known, device)


ANGLES = AnglesModality()
