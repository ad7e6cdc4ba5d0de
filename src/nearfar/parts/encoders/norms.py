"""Backbones with other norms than batch norm: `resnet18+group`, `resnet18+group-ws`, `resnet18+none`.

Batch norm lets an embedding depend on the other instances of its batch. These do not (Richemond et al. 2020
ask whether BYOL needs that).
"""

from typing import Literal

import torch
from torch import Tensor, nn

Norms = Literal["group", "group-ws", "none"]
MAX_GROUPS = 16


class StandardisedConv2d(nn.Conv2d):
    """A convolution with kernels of mean 0 and variance 1 / fan-in (Qiao et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        length = torch.linalg.vector_norm(centred, dim=(1, 2, 3), keepdim=True)
        return self._conv_forward(x, centred / (length + 1e-8), self.bias)


def replace_norms(network: nn.Module, norms: Norms) -> nn.Module:
    """The network with its batch norms replaced, and its convolutions standardised with `group-ws`."""
    for place, layer in list(network.named_modules()):
        replacement: nn.Module
        if isinstance(layer, nn.BatchNorm2d):
            groups = next(g for g in range(MAX_GROUPS, 0, -1) if layer.num_features % g == 0)
            replacement = nn.Identity() if norms == "none" else nn.GroupNorm(groups, layer.num_features)
        elif isinstance(layer, nn.Conv2d) and norms == "group-ws":
            sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
            replacement = StandardisedConv2d(*sizes, layer.dilation, layer.groups, layer.bias is not None)  # type: ignore[arg-type]
            replacement.load_state_dict(layer.state_dict())
        else:
            continue
        parent, _, name = place.rpartition(".")
        setattr(network.get_submodule(parent), name, replacement)
    return network
