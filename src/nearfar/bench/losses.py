"""Losses as arms: at embeddings of 128 numbers, with cached gradients, and gathered by two ranks."""

import multiprocessing
import shutil
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from nearfar import losses
from nearfar.bench.peers import Step, peer
from nearfar.core.adapters import adapt
from nearfar.core.buffers import apply
from nearfar.core.encoding import Encoding
from nearfar.core.networks import to_channels_last
from nearfar.core.types import Batch
from nearfar.parts.encoders import backbone

CHUNK, SCALE = 32, 20.0  # sentence-transformers' defaults
WORLD = 2
DIM = 128


def differentiated(loss: Callable[[Tensor, Tensor], Tensor], n: int) -> Step:
    anchors, keys = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))

    def step() -> None:
        anchors.grad = keys.grad = None
        loss(anchors, keys).backward()

    return step


def scaled(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    unit, scale = functional.normalize, torch.tensor(10.0)
    return lambda anchors, keys: loss(unit(anchors), unit(keys), scale)


def ranking_step(n: int) -> Step:
    module = peer("sentence_transformers.sentence_transformer.losses.multiple_negatives_ranking")
    ranking = module.MultipleNegativesRankingLoss(model=None)
    return differentiated(lambda a, k: ranking.compute_loss_from_embeddings([a, k], None), n)


class _Embedder(nn.Sequential):
    """A network as sentence-transformers calls one."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self[0](features["pixel_values"])}


def _pictures(batch: int) -> tuple[nn.Module, list[Tensor]]:
    layout = torch.channels_last
    network = to_channels_last(backbone("resnet8-w16"))
    return network, [torch.randn(batch, 3, 32, 32).contiguous(memory_format=layout) for _ in range(2)]


def our_cached_step(batch: int, chunk: int | None = CHUNK) -> Step:
    """Each picture of one set contrasted with all of the other, encoded `chunk` at a time."""
    network, pictures = _pictures(batch)
    encoders, encoding = adapt("encoders", network), Encoding(chunk=chunk)
    batch_of_views, loss = (
        Batch(tuple(pictures), torch.arange(batch)),
        losses.MultipleNegativesRankingLoss(scale=SCALE),
    )

    def step() -> None:
        network.zero_grad()
        encoded, moved = encoding.encode(encoders, batch_of_views, (0,), (1,))
        loss(encoded.anchors[0], encoded.keys[1]).backward()
        apply(moved)

    return step


def their_cached_step(batch: int) -> Step:
    module = peer("sentence_transformers.sentence_transformer.losses.cached_multiple_negatives_ranking")
    network, pictures = _pictures(batch)
    loss = module.CachedMultipleNegativesRankingLoss(_Embedder(network), scale=SCALE, mini_batch_size=CHUNK)
    columns = [{"pixel_values": images} for images in pictures]

    def step() -> None:
        network.zero_grad()
        loss(columns, torch.empty(0)).backward()

    return step


def by_two_ranks(ours: bool, n: int) -> Step:
    """The step of two processes that gather each other's embeddings over gloo, one thread each."""
    if not ours:
        peer("open_clip.loss")
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(kind)
    folder = tempfile.mkdtemp(prefix="nearfar-bench-")
    pipes = [context.Pipe() for _ in range(WORLD)]
    for rank, (_, child_end) in enumerate(pipes):
        context.Process(target=as_rank, args=(rank, folder, ours, n, child_end), daemon=True).start()
    lines = [parent_end for parent_end, _ in pipes]
    for line in lines:
        line.recv()  # ready
    shutil.rmtree(folder, ignore_errors=True)

    def step() -> None:
        for line in lines:
            line.send(True)
        for line in lines:
            line.recv()

    return step


def as_rank(rank: int, folder: str, ours: bool, n: int, line: Connection, world: int = WORLD) -> None:
    """Runs one step on this rank's part of the `n` rows per message, until the pipe closes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # deprecation warnings of peers are not ours to print
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    step = differentiated(scaled(gathered_loss(ours, rank, world)), n // world)
    step()
    try:
        line.send(True)
        while line.recv():
            step()
            line.send(True)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    dist.destroy_process_group()


def gathered_loss(ours: bool, rank: int, world: int) -> Callable[..., Tensor]:
    if ours:
        return losses.ClipLoss(gather_distributed=True)
    clip_loss = peer("open_clip.loss").ClipLoss
    return clip_loss(local_loss=True, gather_with_grad=True, rank=rank, world_size=world)
