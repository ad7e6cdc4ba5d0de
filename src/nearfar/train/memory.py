"""How many instances are encoded at a time, where the memory does not suffice for all: measured on a few, before the first step."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nearfar.config.reading import in_units
from nearfar.core.buffers import uses_batch_statistics
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.system.machine import memory_available, memory_held
from nearfar.train.trainer import Trainer

# of what the backward pass holds: gradients of activations, workspace of convolutions and memory that is free in pieces too small come on top; and
# what torch and its kernels load with the first steps (measured: docs/scale.md)
WORKSPACE, LOADED = 2.4, 220 * 2**20
LESS, MEASURED = 2, 4  # instances: what grows between them is what an instance needs
STATES = 3  # copies of the weights beside them: gradients and an optimiser's two moments
# an instance's activations are some hundred times its pixels; below this nobody need measure
AT_MOST = 2000
SPARE = 0.8  # of what is free when nobody set `memory`


def choose_chunk(trainer: Trainer, few: Batch, before: int | None = None) -> tuple[int | None, str | None]:
    """How many instances are encoded at a time (None: all), and a sentence if nobody asked for that. `few` instances are tried. A run
    that was begun keeps what was chosen for it (`before`)."""
    settings, strategy = trainer.settings, trainer.strategy
    count = settings.batch_size // strategy.world
    if settings.memory is not None and settings.encode_chunk is not None:
        raise UserError(
            f"memory was {in_units(settings.memory)} with encode_chunk={settings.encode_chunk}; give one of them: memory chooses encode_chunk"
        )
    if settings.encode_chunk is not None or before is not None:
        return _with_statistics(trainer, settings.encode_chunk or before, count), None
    if len(few.index) < MEASURED:
        said = f"memory has no effect on {count} instances, which are encoded at once"
        return None, None if settings.memory is None else said
    # ranks decide together: one has less memory than another, or larger instances
    pixels = max(strategy.all_gather_json(size_of(tree_leaves(few.views)) * count // len(few.index)))
    rooms = [room for room in strategy.all_gather_json(_room(trainer, pixels)) if room is not None]
    room = min(rooms, default=None)
    if room is None or (settings.memory is None and room > AT_MOST * pixels):
        return None, None
    each = max(strategy.all_gather_json(ceil(WORKSPACE * bytes_per_instance(trainer, few))))
    fits = room // max(1, each)
    if fits >= count:
        return None, None
    if fits < 1:
        raise UserError(
            f"memory was {in_units(settings.memory or 0)}; without encoding anything the run needs {in_units((settings.memory or 0) - room)}, "
            f"and an instance {in_units(each)} more; raise memory, or lower batch_size or workers"
        )
    return _with_statistics(trainer, fits, count), _sentence(trainer, fits, count, each * count, room)


def _with_statistics(trainer: Trainer, chunk: int | None, count: int) -> int | None:
    """The size of parts, if each has batch statistics: a row alone has none."""
    if chunk is None or trainer.strategy.is_distributed or not uses_batch_statistics(trainer.method.encoders):
        return chunk
    if count // ceil(count / chunk) < 2 <= count:
        raise UserError(
            f"encode_chunk was {chunk} for {count} instances, so that one would be encoded alone, and batch norm needs several; raise "
            "encode_chunk or memory"
        )
    return chunk


def _sentence(trainer: Trainer, fits: int, count: int, needed: int, room: int) -> str:
    why = "are left of memory" if trainer.settings.memory is not None else "are free"
    said = (
        f"encode_chunk={fits}: {fits} of a batch's {count} instances are encoded at a time, and once more for the gradient, since all would "
        f"take about {in_units(needed)} and {in_units(room)} {why}"
    )
    if uses_batch_statistics(trainer.method.encoders):
        said += "; batch norm takes its statistics from each such part"
    return said


def _room(trainer: Trainer, pixels: int) -> int | None:
    """Bytes that encoding may take; None where nobody can tell. Batches made ahead and an optimiser's state are still to come."""
    settings = trainer.settings
    local = trainer.strategy.local_tensor
    weights = size_of([local(w) for w in trainer.method.parameters() if w.requires_grad])
    to_come = STATES * weights + (settings.workers + 3) * pixels
    if settings.memory is None:
        free = memory_free(trainer.device)
        return None if free is None else int(SPARE * (free - to_come))
    return settings.memory - held(trainer.device) - to_come - (LOADED if trainer.device.type == "cpu" else 0)


def memory_free(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_available()


def held(device: torch.device) -> int:
    """What this process has of the device's memory now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else memory_held()


def bytes_per_instance(trainer: Trainer, few: Batch) -> int:
    """What a backward pass would hold of each instance. Nothing changes: forward is pure, and generators are put back."""

    def saved(count: int) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = trainer.strategy.local_tensor(tensor).untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        kept: Callable[[Any], Any] = lambda tensor: tensor
        part = trainer.here(few.rows(slice(0, count)))
        half = torch.autocast(
            trainer.device.type, torch.bfloat16, enabled=trainer.precision is torch.bfloat16
        )
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, kept)
        with trainer.strategy.explained_errors(), torch.random.fork_rng(devices=[]), hooks, half:
            method.encode_batch(part)
        return sum(sizes.values())

    method, mode, how = trainer.method, trainer.method.training, trainer.method.encoding
    method.train()
    method.encoding = replace(how, chunk=None)
    try:
        less, more = saved(LESS), saved(MEASURED)
    finally:
        method.train(mode)
        method.encoding = how
    return max(1, (more - less) // (MEASURED - LESS))


def size_of(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
