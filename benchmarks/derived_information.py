"""Conditional information, divergence, lags and rows against closed forms.

    python benchmarks/derived_information.py [ROWS] [SEEDS] [FIRST SEED]      500 rows, 20 seeds: about 4
    CPU-minutes

Prints the error, the coverage of the 90 % interval, and how often at_least exceeded the truth.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import nearfar as nf

Rng = np.random.Generator


def gaussian_information(rho: float) -> float:
    return -0.5 * math.log(1 - rho**2)


def common_cause(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and y both follow z and nothing else joins them: I(x; y | z) = 0, I(x; y) = 0.14."""
    z = rng.normal(size=n)
    return z + rng.normal(size=n), z + rng.normal(size=n), z


def two_causes(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y = x + z + noise: given z, y is x and noise of equal size."""
    x, z = rng.normal(size=(2, n))
    return x, x + z + rng.normal(size=n), z


def gate(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y = x xor z, one in ten wrong: x alone tells nothing."""
    x, z = rng.integers(0, 2, size=(2, n))
    return x, x ^ z ^ (rng.random(n) < 0.1), z


def conditional(make: Callable[[Rng, int], tuple]) -> Callable[[int, int], Any]:
    return lambda seed, n: nf.estimate_cmi(*make(np.random.default_rng(seed), n), seed=seed)


def divergence(
    p: Callable[[Rng, int], np.ndarray], q: Callable[[Rng, int], np.ndarray]
) -> Callable[[int, int], Any]:
    def estimate(seed: int, n: int) -> Any:
        rng = np.random.default_rng(seed)
        return nf.estimate_kl(p(rng, n), q(rng, n), seed=seed)

    return estimate


def normal(mean: float = 0.0, spread: float = 1.0, columns: int = 1) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: mean + spread * rng.normal(size=(n, columns))


def die(weights: list[float]) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: rng.choice(len(weights), p=np.array(weights) / sum(weights), size=n)


def lagged(lag: int, memory: float = 0.5) -> Callable[[int, int], Any]:
    """x an autoregression, y the x of two steps before plus noise; the question is about y `lag` steps after
    x."""

    def estimate(seed: int, n: int) -> Any:
        rng = np.random.default_rng(seed)
        x = np.zeros(4 * n)
        for t in range(1, len(x)):
            x[t] = memory * x[t - 1] + math.sqrt(1 - memory**2) * rng.normal()
        y = np.roll(x, 2) + rng.normal(size=len(x))
        return nf.mi_over_lags(x[2:], y[2:], [lag], seed=seed)[lag]

    return estimate


def kl_of_dice(p: list[float], q: list[float]) -> float:
    return float(nf.info.kl(np.array(p) / sum(p), np.array(q) / sum(q)))


@dataclass(frozen=True)
class Question:
    name: str
    truth: float
    estimate: Callable[[int, int], Any]


def questions() -> list[Question]:
    fair, loaded = [1.0] * 6, [1.0, 1, 1, 1, 2, 3]
    root = math.sqrt(0.5)
    return [
        Question("I(x; y | z), common cause", 0.0, conditional(common_cause)),
        Question("I(x; y | z), two causes", gaussian_information(root), conditional(two_causes)),
        Question(
            "I(x; y | z), xor", math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9), conditional(gate)
        ),
        Question("KL, means 0.5 apart", 0.125, divergence(normal(0.5), normal())),
        Question("KL, spread 0.5 of 1", math.log(2) + 0.125 - 0.5, divergence(normal(spread=0.5), normal())),
        Question("KL, 3 columns, 1 apart each", 1.5, divergence(normal(1.0, columns=3), normal(columns=3))),
        Question("KL, the same", 0.0, divergence(normal(), normal())),
        Question("KL, loaded die of fair", kl_of_dice(loaded, fair), divergence(die(loaded), die(fair))),
        Question("lag 2, where y follows x", gaussian_information(root), lagged(2)),
        Question("lag 0, by x's own memory", gaussian_information(0.25 * root), lagged(0)),
    ]


def rows_told(n: int, seeds: range) -> None:
    """log p(x, y) / p(x) p(y) of every row against its closed form."""
    rho, error, likeness = 0.8, [], []
    for seed in seeds:
        x, noise = np.random.default_rng(seed).normal(size=(2, n))
        y = rho * x + math.sqrt(1 - rho**2) * noise
        truth = gaussian_information(rho) - (rho**2 * (x**2 + y**2) - 2 * rho * x * y) / (2 * (1 - rho**2))
        rows = nf.pointwise_mi(x, y, seed=seed)
        error.append(float(np.abs(rows - truth).mean()))
        likeness.append(float(np.corrcoef(rows, truth)[0, 1]))
    print(
        f"rows of a Gaussian, correlation {rho}: mean absolute error {np.mean(error):.3f}, correlation "
        f"{np.mean(likeness):.3f}"
    )


def main() -> None:
    n, seeds, first = [int(a) for a in sys.argv[1:]] + [500, 20, 0][len(sys.argv) - 1 :]
    coverage = []
    for question in questions():
        estimates = [question.estimate(seed, n) for seed in range(first, first + seeds)]
        nats = np.array([one.nats for one in estimates])
        inside = np.array([one.interval[0] <= question.truth <= one.interval[1] for one in estimates])
        exceeding = [
            float(one.at_least) > question.truth + 1e-9 for one in estimates if hasattr(one, "at_least")
        ]
        coverage += inside.tolist()
        print(
            f"{question.name:<30}{question.truth:>7.3f}  mean {nats.mean():.3f} ± {nats.std():.3f}  "
            f"interval holds it in {inside.mean():.0%}"
            + (f"  at_least above in {np.mean(exceeding):.0%}" if exceeding else ""),
            flush=True,
        )
    print(f"all: the 90 % interval holds the truth in {np.mean(coverage):.0%} of {len(coverage)}")
    rows_told(n, range(first, first + min(5, seeds)))


if __name__ == "__main__":
    main()
