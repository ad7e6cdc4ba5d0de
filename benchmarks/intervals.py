"""How often the 90 % interval of `nf.estimate_mi` holds the truth, over many samplings of small problems.

    python benchmarks/intervals.py [SAMPLINGS]       about 4 CPU-seconds each, three problems

1,000 samples each: a Gaussian pair, four categories seen through noise, a category and a number.
"""

import math
import sys
from collections.abc import Callable

import numpy as np

import nearfar as nf

SAMPLES = 1_000
Sample = tuple[np.ndarray, np.ndarray]


def gaussian(rng: np.random.Generator) -> Sample:
    x, noise = rng.normal(size=(2, SAMPLES))
    return x, 0.75 * x + math.sqrt(1 - 0.75**2) * noise


def categories(rng: np.random.Generator) -> Sample:
    x, other = rng.integers(0, 4, size=(2, SAMPLES))
    return x, np.where(rng.random(SAMPLES) < 0.7, x, other)


def mixed(rng: np.random.Generator) -> Sample:
    y = rng.integers(0, 2, SAMPLES)
    return rng.normal(size=SAMPLES) + 2 * y - 1, y


def categories_truth() -> float:
    joint = np.full((4, 4), 0.3 / 16) + np.eye(4) * 0.7 / 4
    return nf.info.mutual_information(joint)


def mixed_truth() -> float:
    """h(x) - h(x | y): the entropy of two normals at distance 2, by quadrature, less that of one."""
    grid, step = np.linspace(-10, 10, 40_001, retstep=True)
    density = sum(np.exp(-((grid - mean) ** 2) / 2) / math.sqrt(8 * math.pi) for mean in (-1, 1))
    return float(-(density * np.log(density)).sum() * step - math.log(2 * math.pi * math.e) / 2)


PROBLEMS: dict[str, tuple[Callable[[np.random.Generator], Sample], float]] = {
    "Gaussian pair": (gaussian, -math.log(1 - 0.75**2) / 2),
    "four categories": (categories, categories_truth()),
    "category and number": (mixed, mixed_truth()),
}


def main() -> None:
    samplings = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print(f"{'problem':<22}{'truth':>8}{'mean':>8}{'sd':>8}{'half width':>12}{'covered':>9}")
    for name, (make, truth) in PROBLEMS.items():
        found = [
            nf.estimate_mi(*make(np.random.default_rng(seed)), baselines=False, seed=seed)
            for seed in range(samplings)
        ]
        nats = np.array([estimate.nats for estimate in found])
        low, high = np.array([estimate.interval for estimate in found]).T
        covered = ((low <= truth) & (truth <= high)).mean()
        print(
            f"{name:<22}{truth:>8.4f}{nats.mean():>8.4f}{nats.std():>8.4f}{(high - low).mean() / 2:>12.4f}{covered:>9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
