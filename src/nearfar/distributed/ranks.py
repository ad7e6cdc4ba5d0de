"""Several processes that work as one: who they are, and how they exchange numbers.

    each rank encodes its slice of the global batch
    keys and identities are gathered once, with gradient
    each rank scores its own anchors against everyone's keys
    the few numbers per anchor that a bound reads are gathered, with gradient, and every rank computes the same loss

The gradient that reaches a gathered row is summed over ranks: every rank used it. So what a weight's copies receive adds up to the
gradient of the sum of all ranks' losses, which are equal, and its average over ranks (`Ranks.average`, once a step) is the
gradient of one. Nothing is pickled: ranks exchange tensors and JSON.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nearfar.errors import UserError

PATIENCE = timedelta(minutes=30)  # how long ranks wait for one that measures or saves
# where rank 0 leaves word that it has told the user what is wrong, and others that they know; a busy machine may be slow to come to
# the same end
_SAID, _HEARD, _SOON = "nearfar/said", "nearfar/heard", timedelta(seconds=10)
_store: dist.Store | None = None


@dataclass(frozen=True)
class Rows:
    """How many rows each rank holds; one rank alone when nothing is gathered."""

    sizes: tuple[int, ...]
    rank: int = 0

    @staticmethod
    def of(rows: int, device: torch.device, gather: bool) -> "Rows":
        if not gather:
            return Rows((rows,))
        if not (dist.is_available() and dist.is_initialized()):
            raise UserError(
                "gather_distributed was True without a process group; call torch.distributed.init_process_group "
                "first, or leave it False for one process"
            )
        mine = torch.tensor([rows], device=device)
        sizes = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, mine)
        return Rows(tuple(int(size) for size in sizes), dist.get_rank())

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def start(self) -> int:
        """The number of this rank's first row among all."""
        return sum(self.sizes[: self.rank])

    @property
    def part(self) -> slice:
        """Where this rank's rows are among all."""
        return slice(self.start, self.start + self.sizes[self.rank])

    def own(self, device: torch.device) -> Int[Tensor, "own"]:
        """Numbers of this rank's rows among all."""
        return torch.arange(self.part.start, self.part.stop, device=device)

    def everyones(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, one after the other."""
        return rows if len(self.sizes) == 1 else _Gather.apply(rows, self)

    def _one_after_the_other(self, rows: Tensor) -> Tensor:
        # ranks exchange blocks of one size: shorter ones are filled up with zeros that nobody reads
        block = rows.new_zeros((max(self.sizes), *rows.shape[1:]))
        block[: len(rows)] = rows
        blocks = [torch.empty_like(block) for _ in self.sizes]
        dist.all_gather(blocks, block)
        return torch.cat([block[:size] for block, size in zip(blocks, self.sizes, strict=True)])

    @property
    def share(self) -> float:
        """Of a sum over own rows, what makes it this rank's share of the mean over all rows."""
        return len(self.sizes) / self.total

    def mean(self, values: Float[Tensor, "own"]) -> Float[Tensor, ""]:
        """This rank's share, whose average over ranks is the mean over all rows."""
        return values.sum() * self.share


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, layout: Rows) -> Tensor:
        return layout._one_after_the_other(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.layout = inputs[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, layout: Rows) -> tuple[Tensor, int]:
        """Bounds of drawn scores are asked many times at once; all the answers go in one exchange, side by side."""
        return _Gather.apply(rows.movedim(in_dims[0] or 0, -1), layout), -1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        layout, summed = ctx.layout, above.contiguous()
        if summed is above:  # somebody else may still read it
            summed = above.clone()
        dist.all_reduce(summed)
        return summed[layout.part], None


@dataclass(frozen=True)
class Ranks:
    """This process among those that work as one."""

    rank: int = 0
    world: int = 1
    local: int = 0  # its number on this machine: which GPU is its own
    # where messages that are no embeddings lie: gloo takes those of a CPU, NCCL alone does not
    messages: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """The one that writes, prints and decides."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of so many pieces of work are this rank's: a run of them, so that the ranks' results stand in order."""
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    @property
    def several(self) -> bool:
        return self.world > 1

    def rows(self, count: int, device: torch.device) -> Rows:
        return Rows.of(count, device, gather=True) if self.several else Rows((count,))

    def everyones(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, one after the other, with gradient; ranks may have different numbers of them."""
        return self.rows(len(rows), rows.device).everyones(rows)

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Each becomes its mean over ranks, in place: one exchange for each kind of number."""
        if not self.several:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.all_reduce(flat)
            flat /= self.world
            for tensor, mean in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
                tensor.copy_(mean.view(tensor.shape))

    @torch.no_grad()
    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Each becomes what it is on rank 0."""
        for tensor in tensors if self.several else ():
            held = tensor.contiguous().to(self.messages if tensor.device.type == "cpu" else tensor.device)
            dist.broadcast(held, src=0)
            tensor.copy_(held)

    @torch.no_grad()
    def copy_first_buffers(self, part: Any) -> None:
        """A module's buffers become what they are on rank 0, in whatever shape."""
        for owner in part.modules() if self.several and isinstance(part, nn.Module) else ():
            for name, held in list(owner.named_buffers(recurse=False)):
                shape = self.told(list(held.shape))
                if list(held.shape) != shape:
                    setattr(owner, name, held.new_empty(shape))
                self.copy_first([getattr(owner, name)])

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Tensor], *numbers: Tensor) -> None:
        """Gradients, and numbers beside them, become their means over ranks, in one exchange. A weight that no rank has a
        gradient of is left without."""
        if not self.several:
            return
        weights = [weight for weight in parameters if weight.requires_grad]
        home = weights[0].device if weights else self.messages
        some = torch.tensor([float(weight.grad is not None) for weight in weights], device=home)
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        self.average([*(weight.grad for weight in weights if weight.grad is not None), some, *numbers])
        for weight, has in zip(weights, some.tolist(), strict=True):
            if not has:
                weight.grad = None

    def told(self, value: Any) -> Any:
        """What rank 0 has to say, as plain JSON."""
        if not self.several:
            return value
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(text)], device=self.messages)
        dist.broadcast(size, src=0)
        sent = text.to(self.messages) if self.first else torch.empty(int(size), dtype=torch.uint8)
        sent = sent.to(self.messages)
        dist.broadcast(sent, src=0)
        return json.loads(bytes(sent.cpu().tolist()))

    @torch.no_grad()
    def each(self, value: Any) -> list[Any]:
        """What every rank has to say, as plain JSON, in the order of ranks."""
        if not self.several:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.messages)
        rows = self.rows(len(text), self.messages)
        said = rows.everyones(text).cpu().split(list(rows.sizes))
        return [json.loads(bytes(part.tolist())) for part in said]

    def from_first(self, function: Callable[[], Any]) -> Any:
        """What rank 0 finds, as plain JSON; nobody else looks."""
        return self.told(function() if self.first else None)

    def agreed(self, reason: str | None) -> str | None:
        """The reason of the first rank that has one, on all of them at once."""
        if not self.several:
            return reason
        some = torch.tensor([0 if reason is None else self.world - self.rank], device=self.messages)
        dist.all_reduce(some, op=dist.ReduceOp.MAX)
        if not int(some):
            return None
        asks = self.world - int(some)
        text = (reason or "").encode()[:200].ljust(200)
        said = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.messages)
        dist.broadcast(said, src=asks)
        return bytes(said.cpu().tolist()).decode(errors="ignore").strip()

    def wait(self) -> None:
        """Until all are here."""
        self.agreed(None)

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Inside, each rank draws its own numbers (its instances' dropout); after it all draw the same, as one process would
        that drew nothing meanwhile."""
        if not self.several:
            yield
            return
        gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if gpu else []):
            words = np.random.SeedSequence([torch.initial_seed() % 2**64, self.rank]).generate_state(
                1, np.uint64
            )
            torch.manual_seed(int(words[0] >> 1))
            yield


ALONE = Ranks()


def launched() -> tuple[int, int]:
    """(rank, world) as a launcher says it (torchrun, or whatever sets the same variables); (0, 1) without one."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    known = rank.isdigit() and world.isdigit() and "MASTER_ADDR" in os.environ
    return (int(rank), int(world)) if known and int(rank) < int(world) else (0, 1)


def join() -> Ranks:
    """This process among its peers: those of the process group there is, or those that a launcher started with it."""
    rank, world = launched()
    if dist.is_available() and not dist.is_initialized() and world > 1:
        _start(rank, world)
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    alone_nccl = dist.get_backend() == "nccl"
    local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    messages = torch.device("cuda", local % torch.cuda.device_count()) if alone_nccl else torch.device("cpu")
    return Ranks(dist.get_rank(), dist.get_world_size(), local, messages)


def _start(rank: int, world: int) -> None:
    """Meets the others: NCCL between GPUs, gloo between CPUs.

    torchrun restarts ranks against the store of the attempt before, in which the dead ranks' addresses still stand: each attempt
    has keys of its own here (what TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is for elsewhere).
    """
    global _store
    host, port = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", "")
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"MASTER_PORT was {port!r}; expected the number of a port, as torchrun sets it")
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        served = dist.TCPStore(host, int(port), world, is_master=serves, timeout=PATIENCE, multi_tenant=True)
    except dist.DistNetworkError:
        if not serves:
            raise
        raise UserError(
            f"MASTER_PORT was {port}, where this process cannot listen; choose one that is free"
        ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _store = dist.PrefixStore(f"nearfar/{attempt}", served)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=_store, rank=rank, world_size=world, timeout=PATIENCE)


def leave() -> None:
    """Ends the process group, if there is one that `join` made."""
    global _store
    if _store is not None and dist.is_initialized():
        dist.destroy_process_group()  # whoever waits for this rank in an exchange hears of it by that
    _until_heard()
    _store = None


def spoken(code: int) -> int | None:
    """None if this rank tells the user what went wrong: rank 0 does, and another one only where rank 0 has nothing to say. Else the exit
    code of rank 0, which is that of all."""
    first = launched()[0] == 0
    if _store is None:
        return None if first else code
    if first:
        _store.set(_SAID, str(code))
        return None
    try:
        _store.wait([_SAID], _SOON)
        _store.add(_HEARD, 1)
        return int(_store.get(_SAID))
    except (RuntimeError, dist.DistError):
        return None


def _until_heard() -> None:
    """Where no launcher keeps the store, it ends with rank 0. So if that one has spoken, it stays until the others know."""
    rank, world = launched()
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if _store is None or kept or rank or not _store.check([_SAID]):
        return
    end = time.monotonic() + _SOON.total_seconds()
    while _store.add(_HEARD, 0) < world - 1 and time.monotonic() < end:
        time.sleep(0.02)
