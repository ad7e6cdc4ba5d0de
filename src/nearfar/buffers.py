"""Computing a loss that changes nothing, whatever network computes it.

Batch norms move their running statistics inside `forward`, so computing a loss twice would count a batch twice. Here what
a forward pass writes to a network's buffers is written to copies, and `settle` puts them in place once the step is taken
(`Method.advance`). It holds for every network: torch's norms, timm's, anyone's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Moved = Sequence[tuple[Tensor, Tensor]]  # a buffer, and what it would have become


@contextmanager
def aside(networks: object) -> Iterator[Moved]:
    """Inside, the buffers of networks in training are copies; after it they are what they were, and what was yielded tells what
    became of the copies."""
    moved: list[tuple[Tensor, Tensor]] = []
    held = [
        (child, name, buffer)
        for child in (networks.modules() if isinstance(networks, nn.Module) else ())
        if child.training
        for name, buffer in child.named_buffers(recurse=False)
    ]
    for child, name, buffer in held:
        setattr(child, name, buffer.clone())
    try:
        yield moved
    finally:
        for child, name, buffer in held:
            moved.append((buffer, getattr(child, name)))
            setattr(child, name, buffer)


@torch.no_grad()
def settle(moved: Moved) -> None:
    """Puts in place what a forward pass had written aside."""
    for buffer, became in moved:
        buffer.copy_(became)
