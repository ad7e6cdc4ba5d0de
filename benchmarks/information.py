"""Accuracy of `nf.estimate_mi` on problems of known mutual information, 10,000 samples each, and its CPU time.

    python benchmarks/information.py [SEEDS]        about 40 CPU-seconds per problem and seed

The problems are those on which the bmi benchmark publishes other estimators (its figures stand beside ours).
"""

import math
import sys
import time

import numpy as np

import nearfar as nf

SAMPLES = 10_000
Sample = tuple[np.ndarray, np.ndarray]


def sparse_gaussian(rng: np.random.Generator) -> Sample:
    x, y = rng.normal(size=(2, SAMPLES, 25))
    y[:, :2] = 0.8 * x[:, :2] + 0.6 * y[:, :2]
    return x, y


def asinh_student(rng: np.random.Generator) -> Sample:
    both = rng.normal(size=(SAMPLES, 10)) / np.sqrt(rng.chisquare(2, size=(SAMPLES, 1)) / 2)
    return np.arcsinh(both[:, :5]), np.arcsinh(both[:, 5:])


def one_gaussian(rng: np.random.Generator) -> Sample:
    x, noise = rng.normal(size=(2, SAMPLES, 1))
    return x, 0.75 * x + math.sqrt(1 - 0.75**2) * noise


def independent(rng: np.random.Generator) -> Sample:
    x, y = rng.normal(size=(2, SAMPLES, 50))
    return x, y


# name: maker, truth, what bmi publishes
PROBLEMS = {
    "Gaussian 25x25, 2 pairs": (sparse_gaussian, -math.log(1 - 0.8**2), "InfoNCE 0.87, KSG 0.20"),
    "asinh-Student 5x5, 2 df": (asinh_student, 0.448, "InfoNCE 0.33, NWJ 0.04, KSG 0.24"),
    "Gaussian 1x1, 0.75": (one_gaussian, -math.log(1 - 0.75**2) / 2, ""),
    "independent 50x50": (independent, 0.0, ""),
}


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print(
        f"{'problem':<26}{'seed':>5}{'truth':>8}{'ours':>8}  {'90 % interval':<18}{'KSG':>7}{'Gauss':>7}{'CPU s':>7}  bmi"
    )
    for name, (make, truth, others) in PROBLEMS.items():
        for seed in range(seeds):
            x, y = make(np.random.default_rng(seed))
            began = time.process_time()
            found = nf.estimate_mi(x, y)
            seconds = time.process_time() - began
            interval = "{:.3f} to {:.3f}".format(*found.interval)
            ksg, gaussian = found.baselines["ksg"], found.baselines["gaussian"]
            print(
                f"{name:<26}{seed:>5}{truth:>8.4f}{found.nats:>8.4f}  {interval:<18}{ksg:>7.3f}{gaussian:>7.3f}{seconds:>7.1f}  {others}",
                flush=True,
            )


if __name__ == "__main__":
    main()
