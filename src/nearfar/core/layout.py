"""Channels-last weights and views: fastest for CPU convolutions, and left out where it is unsafe.

oneDNN, as torch 2.15.0 ships it, writes past the end of a buffer in the weight gradient of a strided 1x1
convolution in channels-last layout with 2 to 15 input channels: a segmentation fault, or a damaged heap. A
convolution uses the layout if its input or its weight has it, so such a convolution gets both contiguous. The
values are the same up to rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

MIN_SAFE_CHANNELS = 16  # one AVX-512 register of float32


def to_channels_last(module: nn.Module, device: torch.device | str | None = None) -> nn.Module:
    """Moves a module to the device and its weights to channels-last layout, where that is safe."""
    module.to(device=device)
    # torch's own `to` fails on weights of 3D convolutions
    for tensor in (*module.parameters(), *module.buffers()):
        if not is_lazy(tensor) and tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return keep_contiguous(module)


def keep_contiguous(module: nn.Module) -> nn.Module:
    """Makes inputs and weights of unsafe convolutions contiguous. Calling it again is harmless."""
    for layer in module.modules():
        if not isinstance(layer, nn.Conv2d) or not is_unsafe(layer):
            continue
        # `contiguous` does nothing here: with 1x1 kernels both layouts count as contiguous
        layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
        if _contiguous_input not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_contiguous_input)
    return module


def is_unsafe(layer: nn.Conv2d) -> bool:
    """Whether the layer's gradient may crash in channels-last layout."""
    strided = layer.kernel_size == (1, 1) and max(layer.stride) > 1
    return strided and layer.in_channels < MIN_SAFE_CHANNELS and not is_lazy(layer.weight)


def _contiguous_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    view = inputs[0]
    if view.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    return (view.contiguous(), *inputs[1:])
