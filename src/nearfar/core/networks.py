"""Networks applied to the views of a batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
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
