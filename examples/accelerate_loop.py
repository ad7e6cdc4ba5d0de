"""A `Method` inside accelerate: BYOL, which has no negatives.

python examples/accelerate_loop.py [EPOCHS]        (20 s on one core)

kNN before 0.93, after 0.95
"""

import sys

import torch
from accelerate import Accelerator
from digits import network, pictures, score, view
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nearfar as nf


def main(epochs: int) -> tuple[float, float]:
    torch.manual_seed(0)
    images, _ = pictures()
    predictor = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
    encoders = nf.Momentum(network(), momentum=nf.cosine(0.98, 1.0), predictor=predictor)
    method = nf.Method(encoders, nf.Cosine(1.0), nf.NoNegatives(), nf.Everyone(), nf.Agreement())
    before = score(encoders.network)
    accelerator = Accelerator(cpu=True)
    data = DataLoader(TensorDataset(images, torch.arange(len(images))), 256, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(
        method, torch.optim.AdamW(method.parameters(), lr=2e-3), data
    )
    steps, step = epochs * len(batches), 0
    for _ in range(epochs):
        for pictures_, ids in batches:
            progress = nf.Progress(step, steps, len(batches))
            outcome = model(nf.Batch((view(pictures_), view(pictures_)), ids), progress)
            optimizer.zero_grad()
            accelerator.backward(outcome.loss)
            optimizer.step()
            accelerator.unwrap_model(model).advance(outcome, progress)
            step += 1
    return before, score(encoders.network)


if __name__ == "__main__":
    before, after = main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
    print(f"kNN before {before:.2f}, after {after:.2f}")
