"""What stands between features and scores: projection heads, predictors, and the network of both."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def linear_head(inputs: int, outputs: int, norm: bool = False) -> nn.Module:
    """A linear map (instance discrimination, MoCo v1), its output batch-normalised on request."""
    linear = nn.Linear(inputs, outputs, bias=not norm)
    return nn.Sequential(linear, nn.BatchNorm1d(outputs)) if norm else linear


def mlp_head(inputs: int, hidden: int, outputs: int, norm: bool = True, layers: int = 2) -> nn.Sequential:
    """Linear, batch norm, ReLU, linear (SimCLR, BYOL); without the norm it is MoCo v2's head, with three linear `layers` SimCLR v2's."""
    inner: list[nn.Module] = []
    for _ in range(layers - 1):
        inner.append(nn.Linear(inputs, hidden, bias=not norm))
        inner += [nn.BatchNorm1d(hidden)] if norm else []
        inner.append(nn.ReLU(inplace=True))
        inputs = hidden
    return nn.Sequential(*inner, nn.Linear(inputs, outputs))


class Network(nn.Module):
    """Backbone, dropout on its features, head. After training the head is thrown away. `dim` is how wide its output is, and
    `backbone_width` its features, where that is known."""

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        dropout: float = 0.0,
        *,
        dim: int | None = None,
        backbone_width: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.dropout, self.dim = backbone, head, dropout, dim
        self.backbone_width = backbone_width

    def forward(self, x: Tensor) -> Float[Tensor, "image dim"]:
        return self.head(self.dropped(self.backbone(x)))

    def dropped(self, features: Tensor) -> Tensor:
        return F.dropout(features, self.dropout, self.training) if self.dropout else features
