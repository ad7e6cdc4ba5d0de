"""Computing a loss that changes nothing, whatever network computes it.

Batch norms move their running statistics inside `forward`, so computing a loss twice would count a batch
twice. Here what a forward pass writes to a network's buffers is written to copies, and `apply` puts them in
place once the step is taken (`Method.advance`). It holds for torch's norms, timm's and those of anybody's own
modules, while they are in training.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

# (module, name of the buffer, new value)
BufferUpdates = Sequence[tuple[nn.Module, str, Tensor]]


@contextmanager
def deferred_buffers(networks: object) -> Iterator[BufferUpdates]:
    """Inside, networks in training write to copies of their buffers. Afterwards the buffers are as before, and the
    yielded list holds the copies."""
    updates: list[tuple[nn.Module, str, Tensor]] = []
    buffers = [
        (child, name, buffer)
        for child in (networks.modules() if isinstance(networks, nn.Module) else ())
        if child.training
        for name, buffer in child.named_buffers(recurse=False, remove_duplicate=False)
        if not is_lazy(buffer)  # a lazy buffer has no value before the first pass
    ]
    copies = {id(buffer): buffer.clone() for _, _, buffer in buffers}  # one for all that share it
    for child, name, buffer in buffers:
        setattr(child, name, copies[id(buffer)])
    try:
        yield updates
    finally:
        for child, name, buffer in buffers:
            updates.append((child, name, getattr(child, name)))
            setattr(child, name, buffer)


@torch.no_grad()
def apply(updates: BufferUpdates) -> None:
    """Writes the buffer updates of a forward pass to the networks."""
    for child, name, value in updates:
        buffer = getattr(child, name)
        if buffer.shape == value.shape:
            buffer.copy_(value)
        else:
            setattr(child, name, value)


def uses_batch_statistics(networks: object) -> bool:
    """Whether a batch norm would now normalise by its batch, so that an embedding depends on the rest of it.
    A module of another kind that mixes instances is not seen."""
    return isinstance(networks, nn.Module) and any(
        isinstance(child, _BatchNorm) and (child.training or child.running_mean is None)
        for child in networks.modules()
    )


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """The module in evaluation mode; afterwards each of its parts is in its previous mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield module
    finally:
        for part, mode in modes:
            part.training = mode
