"""What ranks exchange in a step: how many collectives, how much memory, and that nothing waits for a device.

torch's fake process group stands for any number of ranks: its collectives return at once and exchange nothing. So counts and
shapes are real here, values are not; that values are right is shown with real ranks (`tests/train/test_train_ranks.py`).
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import nearfar as nf
from nearfar.cli import main
from nearfar.core.encoding import Encoding
from nearfar.core.strategy import Strategy
from nearfar.distributed import strategy as strategies
from nearfar.distributed.gather import RankRows, gather_layout
from nearfar.losses import NTXentLoss

WORLDS = (2, 64, 4096)
ROWS, DIM = 4, 3


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[int]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


class DispatchRecorder(TorchDispatchMode):
    """Counts collectives, and the bytes of every tensor that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives: Counter[str] = Counter()
        self.allocated = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self.collectives[func.name().removeprefix("c10d::").removesuffix("_")] += 1
            return results
        inputs = {
            id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self.allocated += leaf.untyped_storage().nbytes()
        return results


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
        *(nn.Flatten(), nn.Linear(64, DIM)),
    )


def take_step(strategy: Strategy, total: int | None) -> Counter[str]:
    encoding = Encoding(strategy)
    method = nf.Method(
        nf.Shared(network()), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), encoding=encoding
    )
    batch = nf.Batch(tuple(torch.randn(ROWS, 1, 8, 8) for _ in range(2)), torch.arange(ROWS), total=total)
    with DispatchRecorder() as recorder:
        outcome = method(batch)
        outcome.loss.backward()
        strategy.average_gradients(method.parameters(), outcome.loss.detach().clone())
        method.advance(outcome)
    return recorder.collectives


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_step_waits_for_no_device_and_exchanges_the_same_for_any_number_of_ranks(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under fake tensors no number can be read, so a step that is computed there waits for no device. Two norms: one gather
    and one reduction each. Two views: a gather of keys each, one of ids; for each of two pairs its positive, log-sum-exp and
    count; what has a gradient goes back by reduce-scatter. Weights and running statistics are one reduction each."""
    monkeypatch.setattr(
        "nearfar.core.encoding._edge_bytes", lambda leaf: b""
    )  # which reads views on a CPU alone
    strategy = strategies.join()
    with FakeTensorMode():
        counts = take_step(strategy, ROWS * world)
    assert counts == {"_allgather_base": 2 + 3 + 6, "_reduce_scatter_base": 2 + 4, "allreduce": 2 + 1 + 1}


def test_numbers_of_rows_are_exchanged_only_where_they_are_not_known(world: int) -> None:
    strategy = strategies.join()
    known, unknown = (take_step(strategy, total)["_allgather_base"] for total in (ROWS * world, None))
    assert unknown == known + 1
    assert strategy.rows(ROWS, ROWS * world) == RankRows((ROWS,) * world, 1)


def test_shares_of_any_total_are_known_without_an_exchange(world: int) -> None:
    strategy = strategies.join()
    for total in (0, 1, world - 1, 3 * world + 1):
        share = strategy.share(total)
        rows = strategy.rows(share.stop - share.start, total)
        assert (rows.total, rows.part) == (total, share)


def test_gathering_holds_one_copy_and_its_gradient_none(world: int) -> None:
    """The gathered tensor is all that is allocated; backward allocates this rank's rows."""
    with FakeTensorMode():
        rows = torch.randn(ROWS, DIM, requires_grad=True)
        layout = strategies.join().rows(ROWS, ROWS * world)
        with DispatchRecorder() as forward:
            gathered = layout.all_gather(rows)
        gradient = torch.ones_like(gathered)
        with DispatchRecorder() as backward:
            torch.autograd.grad(gathered, rows, gradient)
    assert forward.allocated == world * ROWS * DIM * 4
    assert backward.allocated == ROWS * DIM * 4


def ring_method(**parts: Any) -> nf.Method:
    choices = {
        "critic": nf.Cosine(0.2),
        "negatives": nf.InBatch(),
        "selection": nf.Everyone(),
        "bound": nf.InfoNCE(),
    }
    encoding = Encoding(strategies.join(), exchange="ring")
    return nf.Method(nf.Shared(nn.Flatten()), **{**choices, **parts}, encoding=encoding)


def ring_batch(world: int, rows: int = ROWS) -> nf.Batch:
    views = tuple(torch.randn(rows, 1, 2, 2).requires_grad_() for _ in range(2))
    return nf.Batch(views, torch.arange(rows), total=rows * world)


def test_a_rotation_holds_a_few_blocks_whatever_the_number_of_ranks() -> None:
    """The largest tensor of a step has the keys of one rank; with one gather it has those of all."""
    largest = []
    for ranks in (4, 16):
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=ranks)
        with LargestTensor() as recorder:
            ring_method()(ring_batch(ranks, 64)).loss.backward()
        dist.destroy_process_group()
        largest.append(recorder.numbers)
    assert largest[0] == largest[1]


class LargestTensor(TorchDispatchMode):
    """The size of the largest tensor of floating-point rows."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.ndim > 1]
        self.numbers = max([self.numbers, *sizes])
        return results


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"negatives": nf.Queue(64)}, "needs negatives=in-batch"),
        ({"critic": nf.Distance()}, "needs critic="),
        ({"selection": nf.Ring(0.2, 0.8)}, "needs selection=everyone"),
        ({"bound": nf.Triplet()}, "log-sum-exp"),
        ({"bound": nf.Sum(nf.InfoNCE(), nf.NWJ())}, "log-sum-exp"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rotation_refuses_what_reads_more_than_log_sum_exp(
    parts: dict[str, Any], reason: str, ranks: int
) -> None:
    """On one rank too, whose run any number of ranks may continue."""
    if ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=ranks)
    try:
        with pytest.raises(nf.UserError, match=f"exchange was ring, .*{reason}"):
            ring_method(**parts)(ring_batch(ranks))
    finally:
        if ranks > 1:
            dist.destroy_process_group()


@pytest.mark.parametrize("word", ["bound=nwj", "bound=infonce+js", "negatives=queue", "selection=ring"])
def test_settings_of_a_rotation_are_refused_before_data_are_read(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "simclr", "digits", "exchange=ring", "--print-config"]
    assert main([*words, word]) == 2
    assert capsys.readouterr().err.startswith("nearfar: exchange was ring, which needs")
    assert main(words) == 0


def test_a_loss_exchanges_its_number_of_rows_once(world: int) -> None:
    with DispatchRecorder() as recorder:
        NTXentLoss(gather_distributed=True)(*torch.randn(2, ROWS, DIM))
    assert recorder.collectives == {"_allgather_base": 3}
    with DispatchRecorder() as recorder:
        gather_layout(ROWS, torch.device("cpu"), True)
    assert recorder.collectives == {"_allgather_base": 1}


def test_a_run_asks_all_ranks_once_a_step(world: int) -> None:
    with DispatchRecorder() as recorder:
        strategies.join().first_reasons([None, None, None, None])
    assert recorder.collectives == {"allreduce": 1}


def test_only_pinned_memory_is_copied_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    to = Tensor.to

    def record(tensor: Tensor, *arguments: Any, non_blocking: bool = False) -> Tensor:
        waits.append(not non_blocking)
        return to(tensor, *arguments)

    monkeypatch.setattr(Tensor, "to", record)
    batch = nf.Batch((torch.zeros(2, 3),), torch.arange(2), torch.arange(2), total=8)
    assert batch.to("cpu").total == 8
    assert waits == [True] * 3
    assert batch.rows(slice(0, 1)).total is None


# ----------------------------------------------------------------------------------------------- real ranks


def without_cpu_backend(rank: int, folder: str) -> None:
    """gloo for CUDA tensors alone, as a group of NCCL is: CPU tensors have no backend."""
    dist.init_process_group("cuda:gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    with pytest.raises(RuntimeError, match=r"[Nn]o backend"):
        dist.all_reduce(torch.ones(1))
    strategy = strategies.join()
    assert strategies.join().cpu_group is strategy.cpu_group  # type: ignore[attr-defined]
    rows = torch.full((rank + 1, 2), float(rank))
    assert strategy.all_gather(rows).tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert strategy.on_first(lambda: [1, "one"]) == [1, "one"]
    assert strategy.all_gather_json({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert strategy.first_reasons([None, "why" if rank else None]) == [None, "why"]
    numbers = torch.tensor([float(rank)])
    strategy.average([numbers])
    assert numbers.item() == 0.5
    strategy.broadcast([numbers.fill_(rank)])
    assert numbers.item() == 0.0
    assert set(take_step(strategy, 2 * ROWS)) == {"_allgather_base", "_reduce_scatter_base", "allreduce"}
    dist.destroy_process_group()


def test_a_process_group_without_cpu_backend_gets_one(tmp_path: Path) -> None:
    mp.start_processes(without_cpu_backend, (str(tmp_path),), nprocs=2, start_method="forkserver")


class SlowClusters(nn.Module):
    """A selection whose clusters take longer than any exchange may."""

    ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ids", torch.zeros(3))

    def refresh(self) -> None:
        time.sleep(3.0)
        self.ids += 7


def slow_first_rank(rank: int, folder: str) -> None:
    strategies.KEEP_ALIVE = timedelta(seconds=0.25)
    timeout = timedelta(seconds=1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timeout
    )
    strategy, part = strategies.join(), SlowClusters()
    strategy.on_first(part.refresh)
    strategy.broadcast_buffers(part)
    assert part.ids.tolist() == [7.0] * 3
    with strategy.keep_alive():  # ended by the first message, as when rank 0 opens data
        if rank == 0:
            time.sleep(2.0)
        assert strategy.broadcast_json("opened" if rank == 0 else None) == "opened"
        assert strategy.all_gather_json(rank) == [0, 1]
    assert not any(thread.name == "nearfar-alive" for thread in threading.enumerate())
    dist.destroy_process_group()


def test_a_long_computation_of_rank_0_does_not_end_the_others(tmp_path: Path) -> None:
    mp.start_processes(slow_first_rank, (str(tmp_path),), nprocs=2, start_method="forkserver")
