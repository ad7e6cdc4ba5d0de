"""FSDP2 for the encoders (`sharding=fsdp`), for networks whose weights and moments do not fit one rank.

torch's FSDP2 keeps 1/N of each weight on each of N ranks as a `DTensor`. The weights of a block are gathered
when it is called and freed afterwards, and its gradient is averaged over ranks and split again during the
backward pass. This is the average that `Strategy.average_gradients` takes of all other weights, so the step
equals that of one process. Names and global shapes do not change: checkpoints hold full tensors.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.networks import is_list_of_blocks
from nearfar.errors import UserError


def shard(encoders: nn.Module, world: int, device: torch.device) -> None:
    """Spreads the weights of the encoders' networks over the ranks, which must hold equal weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    check_weights(encoders)
    mesh = init_device_mesh(device.type, (world,))
    encoders.to(memory_format=torch.contiguous_format)  # the only one that FSDP2 takes
    unsharded = encoders.unsharded if isinstance(encoders, AbstractEncoders) else ()
    for name, child in encoders.named_children():
        for unit in [] if name in unsharded else list(units(child)):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)


def check_weights(encoders: nn.Module) -> None:
    """Refuses weights that FSDP2 would train differently, or not at all."""
    names: dict[int, str] = {}
    for name, weight in encoders.named_parameters(remove_duplicate=False):
        if weight.ndim == 0:
            raise UserError(
                f"sharding was fsdp, which cannot split the scalar weight {name}; use sharding=none"
            )
        if id(weight) in names:
            raise UserError(
                f"sharding was fsdp, which cannot share one weight between {names[id(weight)]} and {name}; "
                "use sharding=none"
            )
        names[id(weight)] = name


@contextmanager
def explained_errors() -> Iterator[None]:
    """Explains the error of a network that reads a submodule's weight without calling the submodule."""
    try:
        yield
    except RuntimeError as problem:
        if "DTensor" not in str(problem):
            raise
        raise UserError(
            "sharding was fsdp, but the network uses weights of a submodule without calling it, so they are "
            "not gathered; call the submodule, or use sharding=none"
        ) from None


def units(module: nn.Module, is_block: bool = False) -> Iterator[nn.Module]:
    """The modules whose weights are gathered together, inner ones first: the blocks of a list of blocks, and
    every other module with weights of its own. Code that takes a network apart (Deep InfoMax) still calls
    these modules."""
    if next(module.parameters(), None) is None or isinstance(module, nn.Embedding):
        return  # an embedding table is also read without being called (mlm contrasts with its rows)
    has_weights = next(module.parameters(recurse=False), None) is not None
    has_blocks = any(is_list_of_blocks(part) for part in module.modules())
    if (has_weights or is_block) and not has_blocks:
        yield module
        return
    for child in module.children():
        yield from units(child, isinstance(module, (nn.Sequential, nn.ModuleList)))
    if has_weights:
        yield module


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a `DTensor`, without importing its module, which takes a second."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def shard_like(reference: Any, value: Tensor) -> Tensor:
    """`value`, full on every rank, split as `reference` is."""
    if not is_sharded(reference):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh = reference.device_mesh
    return distribute_tensor(value.to(reference.device), mesh, reference.placements, src_data_rank=None)


@contextmanager
def full_weights(module: nn.Module) -> Iterator[None]:
    """Inside, every rank has all weights, so that ranks may embed different numbers of batches."""
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
