"""Multilayer perceptrons for vectors."""

from torch import Tensor, nn

from nearfar.modalities.base import AbstractNetworks, Choice, StandardisedDescription
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
