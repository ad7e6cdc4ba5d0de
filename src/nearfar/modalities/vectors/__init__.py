"""Vectors: rows of a table of numbers and categories.

nearfar pretrain simclr table.csv --out runs/table          also Parquet, an .npz with `x`, an array (n, width)
"""

from torch import Tensor, nn

from nearfar.modalities.base import AbstractNetworks, Choice, Modality, ViewFamily
from nearfar.modalities.showing import NumbersPresenter
from nearfar.modalities.vectors.data import Vectors, VectorsDescription, VectorsReader
from nearfar.modalities.vectors.views import Corrupt, Scarf, Standardised
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

    def inputs(self, network: str, choice: Choice, description: VectorsDescription) -> InputSpec:
        width = sum(levels or 1 for levels in description.level_counts)
        return InputSpec(
            lambda view: MLP(width, WIDTHS[network]),
            ((width,),) * choice["count"],
            {"instances": description.instances},
        )


VECTORS = Modality(
    name="vectors",
    unit="vectors",
    plural="vectors",
    example="table.csv",
    reader=VectorsReader(),
    views=ViewFamily({"corrupt": Corrupt, "scarf": Scarf}),
    networks=VectorsNetworks(),
    presenter=NumbersPresenter(Standardised),
)

__all__ = ["VECTORS", "Vectors", "VectorsDescription"]
