"""Runs of several processes: `Replicated` weights on every rank, or `Sharded` parts of them (FSDP2).

    each rank encodes its slice of the global batch
    keys and identities are gathered once, with gradient
    each rank scores its own anchors against the keys of all ranks
    the few numbers per anchor that a bound reads are gathered, with gradient, and every rank computes the
    same loss

`join` returns the strategy of this process. Nothing is pickled: ranks exchange tensors and JSON.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.distributed import sharding
from nearfar.distributed.batch_norm import synchronised_batch_norm
from nearfar.distributed.gather import RankRows, rank_rows
from nearfar.errors import UserError

TIMEOUT = timedelta(minutes=30)  # how long ranks wait for one another
KEEP_ALIVE = timedelta(minutes=1)  # how often rank 0 reports that it is still working
REPORT_TIMEOUT = timedelta(seconds=10)  # a busy machine may be slow to reach the same error on every rank
# keys of the store: the exit code that rank 0 reported, and the number of ranks that have read it
_REPORTED, _ACKNOWLEDGED = "nearfar/reported", "nearfar/acknowledged"
_store: dist.Store | None = None
_cpu_groups: MutableMapping[Any, dist.ProcessGroup] = WeakKeyDictionary()


class Replicated(Strategy):
    """Every rank has all weights. Gradients are averaged once per step.

    `cpu_group`: the group for CPU tensors, which all messages are. None: the default group.
    """

    def __init__(
        self, rank: int, world: int, local_rank: int = 0, cpu_group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.world, self.local_rank, self.cpu_group = rank, world, local_rank, cpu_group
        self._end_work: Callable[[], None] | None = None

    def rows(self, count: int, total: int | None = None) -> RankRows:
        if total is None:
            return rank_rows(count, cpu_group=self.cpu_group)
        ends = [total * rank // self.world for rank in range(self.world + 1)]  # as in `share`
        sizes = tuple(b - a for a, b in pairwise(ends))
        if sizes[self.rank] != count:
            raise ValueError(f"{count} rows on rank {self.rank}; its share of {total} is {sizes[self.rank]}")
        return RankRows(sizes, self.rank, self.cpu_group)

    def _group(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self.cpu_group if tensor.device.type == "cpu" else None

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """One exchange for each dtype and device."""
        kinds = {(tensor.dtype, tensor.device): None for tensor in tensors}
        for kind in kinds:
            group = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            dist.all_reduce(flat, group=self._group(flat))
            flat /= self.world
            for tensor, mean in zip(group, flat.split([t.numel() for t in group]), strict=True):
                tensor.copy_(mean.view(tensor.shape))

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Tensor], *numbers: Tensor) -> None:
        """One exchange. A weight that has no gradient on any rank gets none."""
        weights = [weight for weight in parameters if weight.requires_grad and not self.is_sharded(weight)]
        missing = [weight.grad is None for weight in weights]
        # the share of ranks that lack a weight's gradient, in the gradients' dtype: they travel together
        kind = torch.promote_types(weights[0].dtype if weights else torch.float32, torch.float32)
        lacking = torch.zeros(len(weights), dtype=kind, device=weights[0].device if weights else "cpu")
        for k, weight in enumerate(weights):
            if weight.grad is None:
                weight.grad, lacking[k] = torch.zeros_like(weight), 1.0
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        self.average([*gradients, lacking, *numbers])
        if not any(missing):  # a rank that has all gradients need not wait for the numbers
            return
        for weight, share in zip(weights, lacking.tolist(), strict=True):
            if share == 1.0:
                weight.grad = None

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            message = tensor.contiguous()
            dist.broadcast(message, src=0, group=self._group(message))
            tensor.copy_(message)

    @torch.no_grad()
    def broadcast_buffers(self, part: object) -> None:
        for owner in part.modules() if isinstance(part, nn.Module) else ():
            for name, buffer in list(owner.named_buffers(recurse=False)):
                shape = self.broadcast_json(list(buffer.shape))
                if list(buffer.shape) != shape:
                    setattr(owner, name, buffer.new_empty(shape))
                self.broadcast([getattr(owner, name)])

    def broadcast_json(self, value: Any) -> Any:
        if self._end_work is not None:
            self._end_work()
        message = self._message(value)
        size = torch.tensor([len(message)])
        dist.broadcast(size, src=0, group=self.cpu_group)
        while not int(size):  # rank 0 is still working
            dist.broadcast(size, src=0, group=self.cpu_group)
        message = message if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(message, src=0, group=self.cpu_group)
        return json.loads(bytes(message.tolist()))

    @contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Rank 0 signals every minute that it is still working, so that no exchange times out."""
        if not self.is_first:
            yield
            return
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(KEEP_ALIVE.total_seconds()):
                try:
                    dist.broadcast(torch.tensor([0]), src=0, group=self.cpu_group)
                except RuntimeError:  # a rank is gone: the next exchange explains it
                    return

        thread = threading.Thread(target=report, name="nearfar-alive", daemon=True)

        def end_work() -> None:
            ended.set()
            thread.join()
            self._end_work = None

        self._end_work = end_work
        thread.start()
        try:
            yield
        finally:
            if self._end_work is not None:
                self._end_work()

    @torch.no_grad()
    def all_gather_json(self, value: Any) -> list[Any]:
        message = self._message(value)
        rows = self.rows(len(message))
        parts = rows.all_gather(message).split(list(rows.sizes))
        return [json.loads(bytes(part.tolist())) for part in parts]

    def _message(self, value: Any) -> Tensor:
        return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)

    def first_reasons(self, reasons: Sequence[str | None]) -> list[str | None]:
        """One exchange if no rank has a reason."""
        order = torch.tensor([0 if reason is None else self.world - self.rank for reason in reasons])
        dist.all_reduce(order, op=dist.ReduceOp.MAX, group=self.cpu_group)
        return [
            self._reason_of(self.world - place, reason) if place else None
            for place, reason in zip(order.tolist(), reasons, strict=True)
        ]

    def _reason_of(self, rank: int, reason: str | None) -> str:
        text = (reason or "").encode()[:200].ljust(200)
        message = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        dist.broadcast(message, src=rank, group=self.cpu_group)
        return bytes(message.tolist()).decode(errors="ignore").strip()

    @contextmanager
    def rank_randomness(self) -> Iterator[None]:
        gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if gpu else []):
            entropy = [torch.initial_seed() % 2**64, self.rank]
            words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
            torch.manual_seed(int(words[0] >> 1))
            yield

    def synchronised_batch_norm(self) -> AbstractContextManager[None]:
        return synchronised_batch_norm(self.cpu_group)


class Sharded(Replicated):
    """Every rank holds a part of each weight of the encoders and of its moments (`sharding=fsdp`)."""

    def place_weights(self, encoders: nn.Module, device: torch.device) -> None:
        self.broadcast(list(encoders.state_dict().values()))  # ranks must start from equal weights
        sharding.shard(encoders, self.world, device)

    def is_sharded(self, tensor: Tensor) -> bool:
        return sharding.is_sharded(tensor)

    def full_tensor(self, tensor: Any) -> Tensor:
        return tensor.full_tensor() if sharding.is_sharded(tensor) else tensor

    def local_tensor(self, tensor: Any) -> Tensor:
        return tensor.to_local() if sharding.is_sharded(tensor) else tensor

    def full_state(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """One tensor at a time, so that no rank but the first holds more than one full tensor."""

        def gather(tensor: Tensor) -> Tensor:
            full = self.full_tensor(tensor)
            return full.cpu() if self.is_first else self.local_tensor(tensor)

        return {name: gather(tensor) for name, tensor in tensors.items()}

    def shard_like(self, reference: Tensor, value: Tensor) -> Tensor:
        return sharding.shard_like(reference, value)

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        gradients = list(gradients)
        groups = [
            [gradient for gradient in gradients if sharding.is_sharded(gradient) is sharded]
            for sharded in (True, False)
        ]
        norms = [self.full_tensor(nn.utils.get_total_norm(group)) for group in groups if group]
        return norms[0] if len(norms) == 1 and not groups[0] else nn.utils.get_total_norm(norms)

    def agree_on_failure(self, failed: bool) -> bool:
        return self.first_reason("failed" if failed else None) is not None

    def full_weights(self, module: nn.Module) -> AbstractContextManager[None]:
        return sharding.full_weights(module)

    def explained_errors(self) -> AbstractContextManager[None]:
        return sharding.explained_errors()


def launched() -> tuple[int, int]:
    """(rank, world) as a launcher sets them (torchrun, or with the same variables); else (0, 1)."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    valid = rank.isdigit() and world.isdigit() and "MASTER_ADDR" in os.environ
    return (int(rank), int(world)) if valid and int(rank) < int(world) else (0, 1)


def join(sharding: str = "none") -> Strategy:
    """The strategy of this process: with the existing process group, or one for the launched processes."""
    rank, world = launched()
    if dist.is_available() and not dist.is_initialized() and world > 1:
        _start(rank, world)
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return SINGLE
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    kind = Sharded if sharding == "fsdp" else Replicated
    return kind(dist.get_rank(), dist.get_world_size(), local_rank, _cpu_group())


def _cpu_group() -> dist.ProcessGroup | None:
    """A gloo group in addition to a process group without CPU tensors (one with NCCL alone, as Ray Train makes
    it); None if the default group takes them."""
    default = dist.group.WORLD
    if "cpu" in dist.get_backend_config():
        return None
    if default not in _cpu_groups:
        _cpu_groups[default] = dist.new_group(backend="gloo", timeout=TIMEOUT)  # type: ignore[assignment]
    return _cpu_groups[default]


def _start(rank: int, world: int) -> None:
    """Creates the process group: NCCL between GPUs, gloo between CPUs.

    torchrun restarts ranks with the store of the previous attempt, which still holds the addresses of the
    dead ranks. So each attempt has its own keys (elsewhere this is what TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    is for).
    """
    global _store
    host, port = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", "")
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"MASTER_PORT was {port!r}; expected a port number, as torchrun sets it")
    serves = rank == 0 and not _launcher_has_store()
    try:
        server = dist.TCPStore(host, int(port), world, is_master=serves, timeout=TIMEOUT, multi_tenant=True)
    except dist.DistNetworkError:
        if not serves:
            raise
        raise UserError(
            f"MASTER_PORT was {port}, where this process cannot listen; choose one that is free"
        ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _store = dist.PrefixStore(f"nearfar/{attempt}", server)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=_store, rank=rank, world_size=world, timeout=TIMEOUT)


def leave() -> None:
    """Ends the process group if `join` created it."""
    global _store
    if _store is not None and dist.is_initialized():
        dist.destroy_process_group()  # ends the exchange of ranks that wait for this one
    _wait_for_acknowledgements()
    _store = None


def report_once(code: int) -> int | None:
    """None if this rank should print the error: rank 0, or another rank if rank 0 has no error. Otherwise the
    exit code of rank 0, which all ranks return."""
    first = launched()[0] == 0
    if _store is None:
        return None if first else code
    if first:
        _store.set(_REPORTED, str(code))
        return None
    try:
        _store.wait([_REPORTED], REPORT_TIMEOUT)
        first_code = int(_store.get(_REPORTED))
    except (RuntimeError, dist.DistError):
        return None
    with suppress(RuntimeError, dist.DistError):
        _store.add(_ACKNOWLEDGED, 1)  # the last use: rank 0 may end now, and the store with it
    return first_code


def _wait_for_acknowledgements() -> None:
    """The store may end with rank 0, so rank 0 waits until all ranks have read its exit code."""
    rank, world = launched()
    if _store is None or _launcher_has_store() or rank or not _store.check([_REPORTED]):
        return
    end = time.monotonic() + REPORT_TIMEOUT.total_seconds()
    while _store.add(_ACKNOWLEDGED, 0) < world - 1 and time.monotonic() < end:
        time.sleep(0.02)


def _launcher_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
