"""A `Method` under `torch.compile`.

    python examples/compiled.py [BACKEND]        (a minute on one core, nearly all of it inductor's compiling)

    the same loss, eager and compiled: 4.8017, 4.8017

`forward` is pure, so it compiles as it is; `advance`, which mutates, stays outside.
"""

import sys

import torch
from digits import network, pictures, view

import nearfar as nf


def main(backend: str) -> tuple[float, float]:
    torch.manual_seed(0)
    images, _ = pictures()
    method = nf.Method(nf.Shared(network()), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    batch = nf.Batch((view(images[:64]), view(images[:64])), torch.arange(64))
    compiled = torch.compile(method, backend=backend)
    outcome = compiled(batch)
    outcome.loss.backward()
    method.advance(outcome)
    return float(method(batch).loss.detach()), float(outcome.loss.detach())


if __name__ == "__main__":
    eager, compiled = main(sys.argv[1] if len(sys.argv) > 1 else "inductor")
    print(f"the same loss, eager and compiled: {eager:.4f}, {compiled:.4f}")
