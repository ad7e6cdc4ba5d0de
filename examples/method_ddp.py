"""A whole `Method` under DDP: MoCo over two processes.

    python examples/method_ddp.py        (10 s; gloo, CPU)

    largest difference of a weight between the ranks: 0e+00; from one process that averages both losses: 3e-08

Each rank contrasts its half of the batch with its own queue, and DDP averages the gradients: the step of the mean of both losses.
(Negatives of all ranks together need keys that are gathered: `examples/two_ranks.py` shows it for a loss.) `broadcast_buffers=False`
leaves every rank its queue and batch statistics; `advance`, which does every mutation, is called on the method itself.
"""

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


def moco() -> nf.Method:
    torch.manual_seed(0)
    return nf.Method(
        nf.Momentum(network(), 0.9),
        nf.Cosine(0.2),
        nf.Queue(128),
        nf.Everyone(),
        nf.InfoNCE(),
        symmetric=False,
    )


def part(step: int, rank: int) -> nf.Batch:
    """The rank's half of a step's pictures, in two views."""
    torch.manual_seed(step)
    rows = slice(step * BATCH + rank * BATCH // RANKS, step * BATCH + (rank + 1) * BATCH // RANKS)
    images = pictures()[0][rows]
    return nf.Batch((view(images), view(images)), torch.arange(rows.start, rows.stop))


def train(rank: int, folder: str) -> None:
    """Three steps; every rank leaves its weights in `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    method = moco()
    model = DistributedDataParallel(method, broadcast_buffers=False)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        outcome = model(part(step, rank))
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        method.advance(outcome)
    torch.save({name: w.detach() for name, w in method.named_parameters()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def alone() -> dict[str, Tensor]:
    """The same steps in one process: two queues, one set of weights, the mean of both losses."""
    methods = [moco() for _ in range(RANKS)]
    for step in range(STEPS):
        outcomes = [method(part(step, rank)) for rank, method in enumerate(methods)]
        for method, outcome in zip(methods, outcomes, strict=True):
            method.zero_grad()
            outcome.loss.backward()
        for weights in zip(*(method.parameters() for method in methods), strict=True):
            if weights[0].requires_grad:
                mean = torch.stack([w.grad for w in weights if w.grad is not None]).mean(dim=0)
                for weight in weights:
                    weight.data -= 0.1 * mean
        for method, outcome in zip(methods, outcomes, strict=True):
            method.advance(outcome)
    return {name: weight.detach() for name, weight in methods[0].named_parameters()}


def main() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (folder,), nprocs=RANKS, start_method="spawn")
        first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(RANKS))
    one = alone()
    apart = lambda other: max(float((first[name] - other[name]).abs().max()) for name in first)
    return apart(second), apart(one)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    ranks, single = main()
    print(
        f"largest difference of a weight between the ranks: {ranks:.0e}; from one process that averages both losses: {single:.0e}"
    )
