"""Networks applied to the views of a batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def embed_views(network: nn.Module, views: Sequence[Any], indices: Sequence[int]) -> dict[int, Tensor]:
    """Embeddings of the requested views, in one forward pass where they have one shape."""
    if len(indices) < 2:
        return {w: network(views[w]) for w in indices}
    shapes = [tree_map(lambda tensor: tensor.shape, views[w]) for w in indices]
    if any(shape != shapes[0] for shape in shapes):  # views of several sizes cannot share a forward pass
        return {w: network(views[w]) for w in indices}
    joined = tree_map(lambda *tensors: concatenate(tensors), *(views[w] for w in indices))
    return dict(zip(indices, network(joined).chunk(len(indices)), strict=True))


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
