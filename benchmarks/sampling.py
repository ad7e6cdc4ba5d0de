"""Ring, then sample, beside plain sampling: what choosing negatives as Wu et al. 2021 does costs.

    python benchmarks/sampling.py [BANK ANCHORS SAMPLE]      default 50000 256 4096, 128 dimensions, float32, CPU

Every arm is the whole of a step beside the encoder: scores of the anchors, selection, InfoNCE and its gradient, with a memory bank. `plain,
shared` draws rows once for the batch (negatives.sample), and so never scores the bank; `plain, per anchor` draws for each anchor
(Ring(0, 1, sample)), as the paper does; `ring` keeps the tenth from 0.89 to 0.99 and draws from it. `all` scores and keeps the whole bank.
`step` adds forward and backward passes of a resnet18 on pictures of 32 x 32, of which everything above is a part. Arms are interleaved; medians of CPU-seconds.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

import nearfar as nf
from nearfar.core.abstract import AbstractSelection
from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.parts.negatives import Bank

ROUNDS, DIM, TENTH = 3, 128, (0.89, 0.99)


def method(network: nn.Module, size: int, selection: AbstractSelection, sample: int | None = None) -> Method:
    bank = Bank(size, sample=sample, dim=DIM)
    bank.rows = F.normalize(torch.randn(bank.rows.shape, generator=torch.Generator().manual_seed(0)), dim=2)
    bank.index = torch.arange(size)
    return Method(network, nf.Cosine(0.07), bank, selection, nf.InfoNCE(), symmetric=False)


def arms(size: int, anchors: int, sample: int) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    index = torch.randperm(size)[:anchors]
    shown = torch.randn(anchors, DIM, requires_grad=True)
    pictures = torch.randn(anchors, 3, 32, 32)
    trained = resnet18(num_classes=DIM)

    def step(
        network: nn.Module, seen: torch.Tensor, selection: AbstractSelection, few: int | None
    ) -> Callable[[], object]:
        whole = method(network, size, selection, few)
        return lambda: whole(Batch((seen,), index)).loss.backward()

    choices: dict[str, tuple[AbstractSelection, int | None]] = {
        "plain, shared": (nf.Everyone(), sample),
        "plain, per anchor": (nf.Ring(0.0, 1.0, sample), None),
        "ring": (nf.Ring(*TENTH, sample), None),
        "all": (nf.Everyone(), None),
    }
    scored = {name: step(nn.Identity(), shown, *choice) for name, choice in choices.items()}
    whole = {f"step, {name}": step(trained, pictures, *choices[name]) for name in ("plain, shared", "ring")}
    return {**scored, **whole}


def main() -> None:
    size, anchors, sample = (int(word) for word in sys.argv[1:4] or ("50000", "256", "4096"))
    named = arms(size, anchors, sample)
    times: dict[str, list[float]] = {name: [] for name in named}
    for round_ in range(ROUNDS + 1):
        for name, arm in named.items():
            begun = time.process_time()
            arm()
            if round_:  # the first round warms up
                times[name].append(time.process_time() - begun)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        plain = medians["step, plain, shared" if name.startswith("step") else "plain, per anchor"]
        print(f"{name:<22} {seconds:8.3f} CPU s   {seconds / plain:.2f} of plain sampling")


if __name__ == "__main__":
    main()
