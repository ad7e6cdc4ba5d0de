"""Drop-in losses, forward and backward, against the libraries they replace.

    python benchmarks/dropin.py [N]        N: rows per batch (default 2048), 128-d, 4 rows to a label,
    float32, CPU

Arms are interleaved and ratios of medians printed. Peak memory above the start is measured in one process per
arm. pytorch-metric-learning lists triplets and pairs of pairs one by one; those two are compared at an eighth
of N."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import lightly.loss
import open_clip.loss
import pytorch_metric_learning.losses as pml
import torch
from sentence_transformers.sentence_transformer.losses.multiple_negatives_ranking import (
    MultipleNegativesRankingLoss as TheirRanking,
)
from torch import Tensor

from nearfar import losses

DIM, ROUNDS, PER_LABEL = 128, 5, 4
Loss = Callable[[Tensor, Tensor], Tensor]


def labelled(loss: Any, share: int = 1) -> Loss:
    def call(rows: Tensor, reference: Tensor) -> Tensor:
        some = rows[: len(rows) // share]
        return loss(some, torch.arange(len(some)) // PER_LABEL)

    return call


def scaled(loss: Any) -> Loss:
    unit = torch.nn.functional.normalize
    return lambda a, k: loss(unit(a), unit(k), torch.tensor(10.0), torch.tensor(-10.0))


def arms() -> dict[str, tuple[Loss, Loss]]:
    ranking = TheirRanking(model=None)
    return {
        "NTXentLoss": (losses.NTXentLoss(0.1), lightly.loss.NTXentLoss(0.1)),
        "ClipLoss": (scaled(losses.ClipLoss()), scaled(open_clip.loss.ClipLoss())),
        "SigLipLoss": (scaled(losses.SigLipLoss()), scaled(open_clip.loss.SigLipLoss())),
        "MultipleNegativesRankingLoss": (
            losses.MultipleNegativesRankingLoss(),
            lambda a, k: ranking.compute_loss_from_embeddings([a, k], None),
        ),
        "SupConLoss": (labelled(losses.SupConLoss()), labelled(pml.SupConLoss())),
        "LabelledNTXentLoss": (labelled(losses.LabelledNTXentLoss(), 8), labelled(pml.NTXentLoss(), 8)),
        "TripletMarginLoss": (labelled(losses.TripletMarginLoss(), 8), labelled(pml.TripletMarginLoss(), 8)),
    }


def step(loss: Loss, n: int) -> float:
    a, k = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    start = time.perf_counter()
    loss(a, k).backward()
    return time.perf_counter() - start


def peak() -> float:
    """Peak memory of this process in MiB (Linux)."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def peak_mebibytes(name: str, arm: int, n: int) -> float:
    words = [sys.executable, __file__, str(n), name, str(arm)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    if len(sys.argv) > 2:
        loss = arms()[sys.argv[2]][int(sys.argv[3])]
        step(loss, 16)  # what is allocated once, whatever the batch
        previous = peak()
        step(loss, n)
        print(peak() - previous)
        return
    print(f"N = {n}, {DIM}-d, forward and backward, {torch.get_num_threads()} threads")
    for name, pair in arms().items():
        times: tuple[list[float], list[float]] = ([], [])
        for round_ in range(ROUNDS + 1):
            for arm, loss in enumerate(pair):
                seconds = step(loss, n)
                if round_:  # the first round warms up
                    times[arm].append(seconds)
        ours, theirs = (statistics.median(durations) for durations in times)
        memory = [peak_mebibytes(name, arm, n) for arm in (0, 1)]
        print(
            f"  {name:<29} {ours:7.3f} s, {theirs / ours:6.2f}x the peer's speed"
            f"  {memory[0]:6.0f} MiB against {memory[1]:6.0f}"
        )


if __name__ == "__main__":
    main()
