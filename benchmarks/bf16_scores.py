"""Scores in bfloat16 against float32: error and CPU time of NT-Xent's log-sum-exp and its gradient.

    OMP_NUM_THREADS=1 python benchmarks/bf16_scores.py [--rows 4096] [--dim 128] [--temperature 0.1] [--turns 7]

Unit vectors of which row i of one side is near row i of the other. A product of bfloat16 matrices is accumulated in float32
by the hardware; "rounded" is what torch returns on a CPU, a score in bfloat16; "exact sum" multiplies the rounded vectors
in float32, as a kernel that keeps its float32 sums would. Errors are against float64. Arms take turns; times are medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor, Tensor], Tensor]
ARMS: dict[str, Scores] = {
    "float32": lambda u, v: u @ v.T,
    "bfloat16, rounded": lambda u, v: (u.bfloat16() @ v.bfloat16().T).float(),
    "bfloat16, exact sum": lambda u, v: u.bfloat16().float() @ v.bfloat16().float().T,
}


def value_and_gradient(scores: Scores, u: Tensor, v: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of each row, and the gradient of their sum; the factors of the gradient have the precision of
    the scores."""
    values = scores(u / temperature**0.5, v / temperature**0.5)
    total = values.logsumexp(dim=1)
    return total, scores((values - total[:, None]).exp_(), v.T) / temperature


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    u = torch.randn(options.rows, options.dim)
    v = u + torch.randn_like(u)
    u, v = (side / side.norm(dim=1, keepdim=True) for side in (u, v))
    exact, exact_gradient = value_and_gradient(
        lambda a, b: a @ b.T, u.double(), v.double(), options.temperature
    )
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    errors = {}
    for turn in range(options.turns + 1):
        for name, scores in ARMS.items():
            start = time.process_time()
            total, gradient = value_and_gradient(scores, u, v, options.temperature)
            if turn:  # the first fills caches
                times[name].append(1000 * (time.process_time() - start))
            errors[name] = (
                float((total - exact).abs().max()),
                float((gradient - exact_gradient).norm() / exact_gradient.norm()),
            )
    print("| scores | CPU ms | log-sum-exp, largest error | gradient, relative error |\n|---|---|---|---|")
    for name, (of_value, of_gradient) in errors.items():
        print(f"| {name} | {statistics.median(times[name]):.0f} | {of_value:.0e} | {of_gradient:.0e} |")


if __name__ == "__main__":
    main()
