"""A whole `Method` under DDP: MoCo over two processes equals MoCo in one.

    python examples/method_ddp.py        (10 s; gloo, CPU)

    largest difference of a weight between the ranks: 0e+00; from one process with the whole batch: 3e-08

Each rank is given its half of the batch. With `encoding=nf.Encoding(nf.join())` keys are gathered, with
gradient, every rank computes the loss of the whole batch, batch norm and queue are those of all, and DDP,
which averages gradients, does the rest. `broadcast_buffers=False`: buffers are equal as they are; `advance`,
which does every mutation, is called on the method itself."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from digits import network, pictures, view
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import nearfar as nf

RANKS, STEPS, BATCH = 2, 3, 64


def moco(encoding: nf.Encoding) -> nf.Method:
    torch.manual_seed(0)
    return nf.Method(
        nf.Momentum(network(), 0.9),
        nf.Cosine(0.2),
        nf.Queue(128),
        nf.Everyone(),
        nf.InfoNCE(),
        symmetric=False,
        encoding=encoding,
    )


def full_batch(step: int) -> nf.Batch:
    """A step's pictures, in two views."""
    torch.manual_seed(step)
    rows = slice(step * BATCH, (step + 1) * BATCH)
    images = pictures()[0][rows]
    return nf.Batch((view(images), view(images)), torch.arange(rows.start, rows.stop))


def train(rank: int, folder: str) -> None:
    """Three steps; every rank leaves its weights in `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    method = moco(nf.Encoding(nf.join()))
    model = DistributedDataParallel(method, broadcast_buffers=False)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        half = slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)
        outcome = model(full_batch(step).rows(half))
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        method.advance(outcome)
    torch.save({name: w.detach() for name, w in method.named_parameters()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def train_single() -> dict[str, Tensor]:
    """The same steps in one process."""
    method = moco(nf.Encoding())
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        outcome = method(full_batch(step))
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        method.advance(outcome)
    return {name: weight.detach() for name, weight in method.named_parameters()}


def main() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        # from a fork server a process ends at once: DDP keeps gloo's threads, which must not meet an
        # interpreter that is shutting down
        mp.start_processes(train, (folder,), nprocs=RANKS, start_method="forkserver")
        first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(RANKS))
    one = train_single()
    largest_difference = lambda other: max(float((first[name] - other[name]).abs().max()) for name in first)
    return largest_difference(second), largest_difference(one)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    ranks, single = main()
    print(
        f"largest difference of a weight between the ranks: {ranks:.0e}; from one process with the whole "
        f"batch: {single:.0e}"
    )
