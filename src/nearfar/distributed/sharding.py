"""Weights that are spread over the ranks (`sharding=fsdp`), for networks whose weights and moments do not fit one of them.

torch's FSDP2 keeps 1/N of each weight on each of N ranks as a `DTensor`; a block's weights are gathered when it is called and let go
afterwards, and its gradient is averaged over ranks and cut up again as it appears. That average is the one that `Ranks.average_gradients`
takes of all other weights, so the step is that of one process. Names and global shapes stay what they are: checkpoints hold whole
tensors, whoever wrote them.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.distributed.ranks import Ranks
from nearfar.errors import UserError

_LISTS = (nn.Sequential, nn.ModuleList)


def shard(encoders: nn.Module, ranks: Ranks, device: torch.device) -> None:
    """Spreads the weights of the encoders' networks over the ranks, which must have the same."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _check(encoders)
    ranks.copy_first(list(encoders.state_dict().values()))
    mesh = init_device_mesh(device.type, (ranks.world,))
    encoders.to(memory_format=torch.contiguous_format)  # FSDP2 takes no other
    read_uncalled: tuple[str, ...] = getattr(encoders, "read_uncalled", ())
    for name, child in encoders.named_children():
        for unit in [] if name in read_uncalled else list(units(child)):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)


def _check(encoders: nn.Module) -> None:
    """Refuses weights that FSDP2 would train as others, or not at all."""
    names: dict[int, str] = {}
    for name, weight in encoders.named_parameters(remove_duplicate=False):
        if weight.ndim == 0:
            raise UserError(
                f"sharding was fsdp, which takes no weight that is one number, and {name} is; use sharding=none"
            )
        if id(weight) in names:
            raise UserError(
                f"sharding was fsdp, and {names[id(weight)]} and {name} are one weight, of which it would make two; use sharding=none"
            )
        names[id(weight)] = name


@contextmanager
def explained(sharded: bool) -> Iterator[None]:
    """Says in a sentence what is the matter with a network that reads a weight of a part without calling the part, so that it was not gathered."""
    try:
        yield
    except RuntimeError as problem:
        if not sharded or "DTensor" not in str(problem):
            raise
        raise UserError(
            "sharding was fsdp, and the network uses weights of a part of it without calling that part, so that they are not gathered; use "
            "sharding=none, or call the part"
        ) from None


def units(module: nn.Module, listed: bool = False) -> Iterator[nn.Module]:
    """What is gathered at a time, inner ones first: the blocks of a list of blocks, and what else has weights of its own. Whoever
    calls a network calls these, also one that takes it apart (Deep InfoMax)."""
    if next(module.parameters(), None) is None or isinstance(module, nn.Embedding):
        return  # a table of vectors is also read by who does not call it (hidden symbols are contrasted with its rows)
    own = next(module.parameters(recurse=False), None) is not None
    inner = any(_is_list_of_blocks(part) for part in module.modules())
    if (own or listed) and not inner:
        yield module
        return
    for child in module.children():
        yield from units(child, isinstance(module, _LISTS))
    if own:
        yield module


def _is_list_of_blocks(module: nn.Module) -> bool:
    return isinstance(module, _LISTS) and any(
        next(entry.children(), None) is not None and next(entry.parameters(), None) is not None
        for entry in module
    )


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is spread over ranks. Nothing is where nobody has loaded what spreads it, which takes a second."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def whole(tensor: Any) -> Tensor:
    """All of it: of one that is spread, gathered, for which every rank must ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def own_part(tensor: Any) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def spread_like(held: Any, value: Tensor) -> Tensor:
    """`value`, which every rank has whole, spread as `held` is."""
    if not is_sharded(held):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh = held.device_mesh
    return distribute_tensor(value.to(held.device), mesh, held.placements, src_data_rank=None)


def spread(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of whole tensors as `module.load_state_dict` takes it."""
    own = module.state_dict()
    return {name: spread_like(own[name], value) if name in own else value for name, value in state.items()}


def norm(gradients: Iterable[Tensor]) -> Tensor:
    """Of all of them together, spread or not."""
    gradients = list(gradients)
    spreaded = [each for each in gradients if is_sharded(each)]
    if not spreaded:
        return nn.utils.get_total_norm(gradients)
    others = [each for each in gradients if not is_sharded(each)]
    parts = [whole(nn.utils.get_total_norm(some)) for some in (spreaded, others) if some]
    return nn.utils.get_total_norm(parts)


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Inside, every rank has all weights, so that it may work by itself: embed another number of batches than the others."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    kind = () if loaded is None else loaded.FSDPModule
    parts: list[Any] = [part for part in module.modules() if isinstance(part, kind)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
