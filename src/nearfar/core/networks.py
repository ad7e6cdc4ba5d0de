"""Networks applied to the views of a batch, and the parts they consist of."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
