"""Vectors: rows of a table of numbers.

nearfar pretrain simclr table.csv --out runs/table          also Parquet, an .npz with `x`, an array (n, width)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearfar.modalities.base import (
    AbstractNetworks,
    AbstractPresenter,
    Choice,
    Features,
    MakeViews,
    Modality,
    StandardisedDescription,
    ViewFamily,
)
from nearfar.modalities.showing import heat, plain_views
from nearfar.modalities.vectors.data import Vectors, VectorsDescription, VectorsReader
from nearfar.modalities.vectors.views import Corrupt
from nearfar.parts.encoders import InputSpec

WIDTHS = {"mlp": 256, "mlp-small": 64}


class MLP(nn.Module):
    """Two hidden layers with batch norm: (n, inputs) -> (n, width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dim = width
        layers = [
            layer
            for size in (inputs, width)
            for layer in (nn.Linear(size, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class VectorsNetworks(AbstractNetworks):
    names = tuple(WIDTHS)
    default = "mlp"
    smallest = "mlp-small"

    def inputs(self, network: str, choice: Choice, description: StandardisedDescription) -> InputSpec:
        width = len(description.mean)
        return InputSpec(
            lambda view: MLP(width, WIDTHS[network]),
            ((width,),) * choice["count"],
            {"instances": description.instances},
        )


class VectorsPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers themselves"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "numbers": lambda data: torch.cat([view.cpu() for view in plain_views(data, plain_view, 4096, 0)])
        }

    def pictures(self, loaded: np.ndarray, description: StandardisedDescription) -> list[Image.Image]:
        return [heat(row[None]) for row in (loaded - np.array(description.mean)) / np.array(description.std)]

    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        return [heat(row[None]) for row in view.detach().cpu().numpy()]


VECTORS = Modality(
    name="vectors",
    unit="vectors",
    plural="vectors",
    example="table.csv",
    reader=VectorsReader(),
    views=ViewFamily({"corrupt": Corrupt}),
    networks=VectorsNetworks(),
    presenter=VectorsPresenter(),
)

__all__ = ["VECTORS", "Vectors", "VectorsDescription"]
