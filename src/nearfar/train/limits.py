"""What a run will take of its machine, beside what is free, before the first step: memory, and disk for its checkpoints.

An estimate from a few instances and the sizes of tensors, said so that nobody finds out at night. What cannot be, because not even one
checkpoint fits, is refused. While it runs, probes that take more time than training does are told of.
"""

import shutil
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from torch.utils._pytree import tree_leaves

from nearfar.config.reading import in_units
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.system.machine import memory_held
from nearfar.train.memory import (
    LOADED,
    MEASURED,
    STATES,
    WORKSPACE,
    bytes_per_instance,
    memory_free,
    size_of,
)
from nearfar.train.trainer import Trainer

MOMENTS = 2  # copies of the weights in a checkpoint beside them, at most: an optimiser's moments


@dataclass(frozen=True)
class Needs:
    """Bytes: of memory for the whole process, of a checkpoint at most, and what is free of both (None: nobody can tell)."""

    memory: int
    memory_free: int | None
    checkpoint: int
    disk_free: int

    def sentence(self, keep: int) -> str:
        free = "" if self.memory_free is None else f" ({in_units(self.memory_free)} more are free)"
        return (
            f"it needs about {in_units(self.memory)} of memory{free}, and for up to {keep + 1} checkpoints {in_units(self.checkpoint)} each "
            f"({in_units(self.disk_free)} are free on that disk)"
        )


def needs(trainer: Trainer, few: Batch, folder: Path) -> Needs:
    """What is held now, an optimiser's state and gradients, batches made ahead, and what a backward pass holds."""
    settings = trainer.settings
    count = settings.batch_size // trainer.strategy.world
    pixels = size_of(tree_leaves(few.views)) * count // max(1, len(few.index))
    each = ceil(WORKSPACE * bytes_per_instance(trainer, few)) if len(few.index) >= MEASURED else 0
    at_once = min(count, trainer.method.encoding.chunk or count)
    to_come = STATES * _trained(trainer) + (settings.workers + 3) * pixels + each * at_once + LOADED
    free = memory_free(trainer.device)
    return Needs(memory_held() + to_come, free, checkpoint_size(trainer), disk_free(folder))


def checkpoint_size(trainer: Trainer) -> int:
    """Bytes that a checkpoint holds once the optimiser has begun, at most."""
    counts = 8 * len(list(trainer.method.parameters()))  # of the steps that each weight has taken
    return size_of(list(trainer.method.state_dict().values())) + MOMENTS * _trained(trainer) + counts


def check_disk(trainer: Trainer, folder: Path) -> None:
    """Stops where not even the first checkpoint could be written: it holds what the method holds already."""
    least, free = size_of(list(trainer.method.state_dict().values())), disk_free(folder)
    if free < least:
        raise UserError(
            f"--out {folder}: a checkpoint takes at least {in_units(least)} and {in_units(free)} are free on its disk; make room, or choose "
            "another --out"
        )


def disk_free(folder: Path) -> int:
    """Bytes that may still be written where a folder is, or will be."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free


def _trained(trainer: Trainer) -> int:
    local = trainer.strategy.local_tensor
    return size_of([local(weight) for weight in trainer.method.parameters() if weight.requires_grad])


class Pace:
    """How much of a run's time its probes take; says so once, when it is more than half of what is already long."""

    LONG, SHARE, SEVERAL = 60.0, 0.5, 3  # seconds of probing, of all time, probes

    def __init__(self) -> None:
        self.probing, self.count, self.told = 0.0, 0, False

    def observe(self, seconds: float, elapsed: float) -> str | None:
        """After a probe that took `seconds`, `elapsed` since the run began or was resumed."""
        self.probing, self.count = self.probing + seconds, self.count + 1
        slow = self.probing > self.LONG and self.probing > self.SHARE * elapsed
        if self.told or self.count < self.SEVERAL or not slow:
            return None
        self.told = True
        return (
            f"probes take {self.probing / self.count:.0f} s each, {100 * self.probing / elapsed:.0f} % of the time; probe_every is in epochs: "
            "raise it, or set probe_every=0 for none"
        )
