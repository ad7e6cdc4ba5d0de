"""Ring with sampling against uniform sampling: the cost of choosing negatives as in Wu et al. 2021.

    python benchmarks/sampling.py [BANK ANCHORS SAMPLE]      default 50000 256 4096, 128 dimensions, float32,
    CPU

Every arm is a whole step without the encoder: scores of the anchors, selection, InfoNCE and its gradient,
with a memory bank. `plain, shared` draws rows once per batch (negatives.sample) and never scores the bank.
`plain, per anchor` draws per anchor (Ring(0, 1, sample)), as in the paper. `ring` keeps the tenth from 0.89
to 0.99 and draws from it. `all` scores and keeps the whole bank. `step` adds forward and backward passes of a
resnet18 on pictures of 32 x 32. Arms are interleaved; figures are medians of CPU-seconds."""

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
    inputs = torch.randn(anchors, DIM, requires_grad=True)
    pictures = torch.randn(anchors, 3, 32, 32)
    trained = resnet18(num_classes=DIM)

    def step(
        network: nn.Module, inputs_of_step: torch.Tensor, selection: AbstractSelection, few: int | None
    ) -> Callable[[], object]:
        full_method = method(network, size, selection, few)
        return lambda: full_method(Batch((inputs_of_step,), index)).loss.backward()

    choices: dict[str, tuple[AbstractSelection, int | None]] = {
        "plain, shared": (nf.Everyone(), sample),
        "plain, per anchor": (nf.Ring(0.0, 1.0, sample), None),
        "ring": (nf.Ring(*TENTH, sample), None),
        "all": (nf.Everyone(), None),
    }
    scored = {name: step(nn.Identity(), inputs, *choice) for name, choice in choices.items()}
    full_steps = {
        f"step, {name}": step(trained, pictures, *choices[name]) for name in ("plain, shared", "ring")
    }
    return {**scored, **full_steps}


def main() -> None:
    size, anchors, sample = (int(word) for word in sys.argv[1:4] or ("50000", "256", "4096"))
    arms_by_name = arms(size, anchors, sample)
    times: dict[str, list[float]] = {name: [] for name in arms_by_name}
    for round_ in range(ROUNDS + 1):
        for name, arm in arms_by_name.items():
            start = time.process_time()
            arm()
            if round_:  # the first round warms up
                times[name].append(time.process_time() - start)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        baseline = medians["step, plain, shared" if name.startswith("step") else "plain, per anchor"]
        print(f"{name:<22} {seconds:8.3f} CPU s   {seconds / baseline:.2f} of plain sampling")


if __name__ == "__main__":
    main()
