"""Networks applied to the views of a batch, the parts they consist of, and the layout of their weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map


def embed_views(network: nn.Module, views: Sequence[Any], indices: Sequence[int]) -> dict[int, Tensor]:
    """Embeddings of the requested views, in one forward pass for each of their shapes."""
    groups: dict[Any, list[int]] = {}
    for w in indices:
        groups.setdefault(shape_of(views[w]), []).append(w)
    embedded: dict[int, Tensor] = {}
    for group in groups.values():
        if len(group) == 1:
            embedded[group[0]] = network(views[group[0]])
            continue
        joined = tree_map(lambda *tensors: concatenate(tensors), *(views[w] for w in group))
        embedded.update(zip(group, network(joined).chunk(len(group)), strict=True))
    return {w: embedded[w] for w in indices}


def shape_of(view: Any) -> tuple[str, tuple[torch.Size, ...]]:
    """The structure of a view and the shapes of its tensors. Views can be concatenated where it is equal."""
    tensors, structure = tree_flatten(view)
    return str(structure), tuple(tensor.shape for tensor in tensors)


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape, concatenated by row; not copied where they are contiguous in memory already, as
    the views of a batch are on a CPU."""
    first = parts[0]
    step = len(first) * first.stride(0)
    if any(part.requires_grad for part in parts) or not all(
        part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.stride() == first.stride()
        and part.storage_offset() == first.storage_offset() + k * step
        and part.dtype == first.dtype
        for k, part in enumerate(parts)
    ):
        return torch.cat(list(parts))
    return first.as_strided((len(parts) * len(first), *first.shape[1:]), first.stride())


def backbone_of(network: nn.Module) -> nn.Module:
    """The part of a network that is kept after training: its `backbone`, or all of one without."""
    backbone = getattr(network, "backbone", None)
    return backbone if isinstance(backbone, nn.Module) else network


def blocks_of(networks: object) -> list[nn.Module]:
    """The blocks of networks: modules of several modules that stand in a list (nn.Sequential, nn.ModuleList) and
    contain no such list themselves, like those of ResNets and transformers."""
    modules = networks.modules() if isinstance(networks, nn.Module) else ()
    lists = [part for part in modules if is_list_of_blocks(part)]
    return [
        entry
        for part in lists
        for entry in part.children()
        if _is_block(entry) and not any(is_list_of_blocks(inner) for inner in entry.modules())
    ]


def is_list_of_blocks(module: nn.Module) -> bool:
    return isinstance(module, (nn.Sequential, nn.ModuleList)) and any(map(_is_block, module))


def _is_block(module: nn.Module) -> bool:
    return next(module.children(), None) is not None and next(module.parameters(), None) is not None


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside, these modules compute with other functions. Their class, hooks and names of weights stay."""
    previous = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, own_forward in previous.items():
            del vars(module)["forward"]
            if own_forward is not None:  # a user replaced it before
                vars(module)["forward"] = own_forward


# ---------------------------------------------------------------------------------------------------- layout

# Channels-last weights and views are fastest for CPU convolutions, and are left out where they are unsafe.
# oneDNN, as torch 2.15.0 ships it, writes past the end of a buffer in the weight gradient of a strided 1x1
# convolution in channels-last layout with 2 to 15 input channels: a segmentation fault, or a damaged heap. A
# convolution uses the layout if its input or its weight has it, so such a convolution gets both contiguous.
# The values are the same up to rounding.
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
