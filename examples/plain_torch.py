"""One line of a plain torch loop changed.

    python examples/plain_torch.py [EPOCHS]        (10 s on one core)

    kNN before 0.95, after 0.96

`from lightly.loss import NTXentLoss` would train the same weights: value and gradient are equal.
"""

import sys

import torch
from digits import network, pictures, score, view

from nearfar.losses import NTXentLoss


def main(epochs: int) -> tuple[float, float]:
    torch.manual_seed(0)
    images, _ = pictures()
    encoder = network()
    untrained = score(encoder)
    loss_of = NTXentLoss(temperature=0.2)  # the line
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(256):
            loss = loss_of(encoder(view(images[rows])), encoder(view(images[rows])))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return untrained, score(encoder)


if __name__ == "__main__":
    untrained, trained = main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
    print(f"kNN before {untrained:.2f}, after {trained:.2f}")
