"""A `Method` inside accelerate: SimCLR with the harder half of the negatives.

python examples/accelerate_loop.py [EPOCHS]        (20 s on one core)

kNN before 0.95, after 0.97
"""

import sys

import torch
from accelerate import Accelerator
from digits import network, pictures, score, view
from torch.utils.data import DataLoader, TensorDataset

import nearfar as nf


def main(epochs: int) -> tuple[float, float]:
    torch.manual_seed(0)
    images, _ = pictures()
    encoder = network()
    method = nf.Method(
        nf.Shared(encoder), nf.Cosine(0.2), nf.InBatch(), nf.Ball(lower=nf.linear(0.0, 0.5)), nf.InfoNCE()
    )
    untrained = score(encoder)
    accelerator = Accelerator(cpu=True)
    data = DataLoader(TensorDataset(images, torch.arange(len(images))), 256, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(
        method, torch.optim.AdamW(method.parameters(), lr=2e-3), data
    )
    steps, step = epochs * len(batches), 0
    for _ in range(epochs):
        for views, ids in batches:
            progress = nf.Progress(step, steps, len(batches))
            outcome = model(nf.Batch((view(views), view(views)), ids), progress)
            optimizer.zero_grad()
            accelerator.backward(outcome.loss)
            optimizer.step()
            accelerator.unwrap_model(model).advance(outcome, progress)
            step += 1
    return untrained, score(encoder)


if __name__ == "__main__":
    untrained, trained = main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
    print(f"kNN before {untrained:.2f}, after {trained:.2f}")
