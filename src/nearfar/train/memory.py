"""Memory and disk of a run, estimated before the first step from a few instances and the sizes of tensors.

If memory does not suffice for the whole batch, `choose_chunk` sets how many instances are encoded at a time.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nearfar.config.reading import in_units
from nearfar.core.abstract import is_inner_product
from nearfar.core.buffers import uses_batch_statistics
from nearfar.core.method import Method
from nearfar.core.networks import blocks_of, replaced_forwards
from nearfar.core.scores import MAX_MATRIX, MIN_TILE, max_scores
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.core.types import Batch
from nearfar.errors import UserError, counted
from nearfar.run import checkpoints
from nearfar.run.folder import RunFolder
from nearfar.system.machine import memory_available, memory_held
from nearfar.train.session import Session

# multiple of saved activations: their gradients, workspace, fragmentation (docs/large.md)
WORKSPACE = 2.4
# of a score in float32 at the peak of a step, its mask and gradient included (fake tensors: 11)
SCORE_BYTES = 12
LOADED = 220 * 2**20  # bytes that torch and its kernels load during the first steps
FEWER_INSTANCES, PROBED_INSTANCES = 2, 4  # the growth between the two is what an instance needs
TRAINING_COPIES = 3  # of the weights: gradients and an optimiser's two moments
CHECKPOINT_MOMENTS = 2  # further copies of the weights in a checkpoint, at most
MAX_ACTIVATION_RATIO = 2000  # activations of an instance are some hundred times its pixels
FREE_SHARE = 0.8  # of the free memory that a run may take if `memory` is not set


def choose_chunk(session: Session, sample: Batch, stored: int | None = None) -> tuple[int | None, str | None]:
    """How many instances are encoded at a time (None: all), and a note if this was not set by the user.
    Measured on `sample`. A resumed run keeps the size that was chosen for it (`stored`)."""
    settings, strategy = session.settings, session.strategy
    count = settings.batch_size // strategy.world
    if settings.memory is not None and settings.encode_chunk is not None:
        raise UserError(
            f"memory was {in_units(settings.memory)} with encode_chunk={settings.encode_chunk}; set one of "
            "them: memory chooses encode_chunk"
        )
    if settings.encode_chunk is not None or stored is not None:
        return _check_batch_norm(session, settings.encode_chunk or stored, count), None
    if len(sample.index) < PROBED_INSTANCES:
        note = f"memory has no effect on {count} instances, which are encoded at once"
        return None, None if settings.memory is None else note
    # ranks decide together: one may have less memory than another, or larger instances
    pixels = max(strategy.all_gather_json(size_of(tree_leaves(sample.views)) * count // len(sample.index)))
    budgets = [budget for budget in strategy.all_gather_json(_budget(session, pixels)) if budget is not None]
    budget = min(budgets, default=None)
    if budget is None or (settings.memory is None and budget > MAX_ACTIVATION_RATIO * pixels):
        return None, None
    size = max(strategy.all_gather_json(ceil(WORKSPACE * bytes_per_instance(session, sample))))
    chunk = budget // max(1, size)
    if chunk >= count:
        return None, None
    if chunk < 1:
        raise UserError(
            f"memory was {in_units(settings.memory or 0)}; without encoding anything the run needs "
            f"{in_units((settings.memory or 0) - budget)}, "
            f"and an instance {in_units(size)} more; raise memory, or lower batch_size or workers"
        )
    return _check_batch_norm(session, chunk, count), _chunk_note(session, chunk, count, size * count, budget)


def _check_batch_norm(session: Session, chunk: int | None, count: int) -> int | None:
    """The chunk size, if no chunk is a single instance, which has no batch statistics."""
    if chunk is None or session.strategy.is_distributed or not uses_batch_statistics(session.method.encoders):
        return chunk
    if count // ceil(count / chunk) < 2 <= count:
        raise UserError(
            f"encode_chunk was {chunk} for {count} instances, so one would be encoded alone, but batch norm "
            "needs several; raise encode_chunk or memory"
        )
    return chunk


def _chunk_note(session: Session, chunk: int, count: int, needed: int, budget: int) -> str:
    source = "left of memory" if session.settings.memory is not None else "free"
    note = (
        f"encode_chunk={chunk}: {chunk} of the {count} instances of a batch are encoded at a time, and "
        f"again for the gradient; all would take about {in_units(needed)} ({in_units(budget)} {source})"
    )
    if uses_batch_statistics(session.method.encoders):
        note += "; batch norm uses the statistics of each chunk"
    return note


def _budget(session: Session, pixels: int) -> int | None:
    """Bytes that encoding may take, without batches, optimiser state and scores; None if unknown."""
    settings = session.settings
    reserved = TRAINING_COPIES * _trainable_bytes(session) + (settings.workers + 3) * pixels
    reserved += _session_score_bytes(session)
    if settings.memory is None:
        available = memory_free(session.device)
        return None if available is None else int(FREE_SHARE * (available - reserved))
    loaded = LOADED if session.device.type == "cpu" else 0
    return settings.memory - memory_used(session.device) - reserved - loaded


def score_bytes(method: Method, batch_size: int, world: int, views: int, device: torch.device) -> int:
    """Bytes that the scores of a step take: of all pairs where they are held as matrices, of one tile where
    they are not (`core.scores.inner_product_negatives`)."""
    candidates = method.candidate_count(batch_size, views)
    matrix, tile = batch_size // world * candidates, max_scores(device)
    pairs = len(method.pairs_of(views))
    if method.chunk is not None:
        return SCORE_BYTES * min(matrix, method.chunk * candidates)
    reads_matrix = matrix <= (tile if method.selection.keeps_all else MAX_MATRIX)
    if reads_matrix or not is_inner_product(method.critic):
        return SCORE_BYTES * matrix * pairs
    return SCORE_BYTES * max(tile, MIN_TILE * candidates)


def _session_score_bytes(session: Session) -> int:
    settings = session.settings
    views = settings.views["count"]
    return score_bytes(session.method, settings.batch_size, session.strategy.world, views, session.device)


def memory_free(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_available()


def memory_used(device: torch.device) -> int:
    """Bytes of the device that this process uses now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else memory_held()


def bytes_per_instance(session: Session, sample: Batch) -> int:
    """Bytes that autograd stores for each instance; where blocks are computed again, with those of the largest
    block. Changes nothing: forward is pure, and generators are restored."""
    method, mode, encoding = session.method, session.method.training, session.method.encoding
    strategy = session.strategy

    def stored_bytes(count: int) -> int:
        part = session.to_device(sample.rows(slice(0, count)))

        def encoded_bytes(recompute: bool) -> int:
            method.encoding = replace(encoding, chunk=None, recompute=recompute)
            with (
                strategy.explained_errors(),
                torch.random.fork_rng(devices=[]),
                saved_storages(strategy) as sizes,
                session.autocast(),
            ):
                method.encode_batch(part)
            return sum(sizes.values())

        if not encoding.recompute:
            return encoded_bytes(recompute=False)
        block_bytes = [0]

        def measured(forward: Callable[..., Any]) -> Callable[..., Any]:
            def measured_forward(*inputs: Any, **options: Any) -> Any:
                with saved_storages(strategy) as sizes:
                    output = forward(*inputs, **options)
                block_bytes.append(sum(sizes.values()))
                return output

            return measured_forward

        blocks = blocks_of(method.encoders)
        with replaced_forwards({block: measured(block.forward) for block in blocks}):
            encoded_bytes(recompute=False)
        return encoded_bytes(recompute=True) + max(block_bytes)

    method.train()
    try:
        fewer, more = stored_bytes(FEWER_INSTANCES), stored_bytes(PROBED_INSTANCES)
    finally:
        method.train(mode)
        method.encoding = encoding
    return max(1, (more - fewer) // (PROBED_INSTANCES - FEWER_INSTANCES))


@contextmanager
def saved_storages(strategy: Strategy = SINGLE) -> Iterator[dict[int, int]]:
    """Inside, collects the bytes of every storage that autograd saves, by address."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = strategy.local_tensor(tensor).untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def size_of(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Needs:
    """Bytes: memory of the process, a checkpoint at most, and what is free of both (None: unknown)."""

    memory: int
    memory_free: int | None
    checkpoint: int
    disk_free: int

    def sentence(self, keep: int) -> str:
        available = "" if self.memory_free is None else f" ({in_units(self.memory_free)} available)"
        return (
            f"estimated memory {in_units(self.memory)}{available}; up to {keep + 1} checkpoints of "
            f"{in_units(self.checkpoint)} ({in_units(self.disk_free)} free on disk)"
        )


def estimate_needs(session: Session, sample: Batch, folder: Path) -> Needs:
    """Memory for the state, gradients, batches, scores and the backward pass; disk for checkpoints."""
    settings = session.settings
    count = settings.batch_size // session.strategy.world
    pixels = size_of(tree_leaves(sample.views)) * count // max(1, len(sample.index))
    measurable = len(sample.index) >= PROBED_INSTANCES
    size = ceil(WORKSPACE * bytes_per_instance(session, sample)) if measurable else 0
    at_once = min(count, session.method.encoding.chunk or count)
    batches = (settings.workers + 3) * pixels
    expected = TRAINING_COPIES * _trainable_bytes(session) + batches + size * at_once + LOADED
    expected += _session_score_bytes(session)
    available = memory_free(session.device)
    return Needs(memory_held() + expected, available, checkpoint_size(session), disk_free(folder))


def checkpoint_size(session: Session) -> int:
    """Bytes of a checkpoint after the first step, at most."""
    step_counts = 8 * len(list(session.method.parameters()))
    weights = size_of(list(session.method.state_dict().values()))
    return weights + CHECKPOINT_MOMENTS * _trainable_bytes(session) + step_counts


def check_disk(session: Session, folder: Path) -> None:
    """Refuses to start if the checkpoints that the run keeps, and the next one, do not fit together."""
    if session.step >= session.steps:
        return
    size, available = checkpoint_size(session), disk_free(folder)
    existing = len(checkpoints.steps(RunFolder(folder).checkpoints))
    count = 1 + max(0, session.settings.keep - existing)
    if available < count * size:
        raise UserError(
            f"--out {folder}: the run writes {counted(count, 'checkpoints')} of {in_units(size)}, but only "
            f"{in_units(available)} are free on its disk; free some space, lower keep, or choose another --out"
        )


def disk_free(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _trainable_bytes(session: Session) -> int:
    local = session.strategy.local_tensor
    return size_of([local(weight) for weight in session.method.parameters() if weight.requires_grad])
