"""DDP over two processes, and the same gradient as in one.

    python examples/two_ranks.py        (10 s; gloo, CPU)

    largest difference of a weight after 3 steps: 4e-08

Each rank has half of every batch. `gather_distributed=True` lets its anchors meet the keys of both, with
gradient; the average that DDP takes is then the gradient of the whole batch."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from digits import network, pictures, view
from torch.nn.parallel import DistributedDataParallel

from nearfar.losses import NTXentLoss

RANKS, STEPS, BATCH = 2, 3, 64


def train(rank: int, ranks: int, folder: str) -> None:
    """Three steps; the first rank leaves its weights in `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{ranks}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    images, encoder = pictures()[0], network()
    model = DistributedDataParallel(encoder)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    loss_of = NTXentLoss(temperature=0.2, gather_distributed=True)
    for step in range(STEPS):
        torch.manual_seed(step)  # the same views everywhere; each rank takes its part of them
        batch = images[step * BATCH : (step + 1) * BATCH]
        mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        views = torch.cat([view(batch)[mine], view(batch)[mine]])
        loss = loss_of(*model(views).chunk(2))  # one forward pass for both views, as DDP wants it
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save(encoder.state_dict(), Path(folder) / f"{ranks}.pt")
    dist.destroy_process_group()


def main() -> float:
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, RANKS):
            # from a fork server a process ends at once: DDP keeps gloo's threads, which must not meet an
            # interpreter that is shutting down
            mp.start_processes(train, (ranks, folder), nprocs=ranks, start_method="forkserver")
        one, two = (torch.load(Path(folder) / f"{ranks}.pt", weights_only=True) for ranks in (1, RANKS))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(f"largest difference of a weight after {STEPS} steps: {main():.0e}")
