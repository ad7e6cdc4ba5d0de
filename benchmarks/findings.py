"""Problems on which an earlier estimator (one network) failed: truth, its value and KSG's, and the value now.

    python benchmarks/findings.py [WORD]        rows with WORD in their name; about 2 CPU-minutes for all

An independent reviewer chose the problems; "then" is the mean in that review, of one or five samples.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from problems import (
    Blobs,
    Rng,
    Sample,
    codes,
    codes_truth,
    curve,
    curve_truth,
    flip_truth,
    gaussian,
    mixed_gaussian,
    sign_product,
    spiral,
    spiral_truth,
    square,
    student,
    student_truth,
    uniform_noise,
)

import nearfar as nf
from nearfar.estimate.baselines import ksg_information

CROSSED = Blobs(np.zeros((2, 2)), np.array([[[1, 0.84], [0.84, 1]], [[1, -0.84], [-0.84, 1]]]))


@dataclass(frozen=True)
class Finding:
    name: str
    n: int
    make: Callable[[Rng, int], Sample]
    truth: float
    earlier: str
    seeds: int = 3
    discrete: Literal["auto", "x"] = "auto"


FINDINGS = (
    Finding("x + U(±0.05)", 2000, partial(uniform_noise, a=0.05), 0.05 - math.log(0.1), "2.001 of 2.353"),
    Finding(
        "x + U(±0.05)", 10_000, partial(uniform_noise, a=0.05), 0.05 - math.log(0.1), "2.164 of 2.353", 1
    ),
    *(
        Finding(
            "100 codes to a number",
            n,
            partial(codes, levels=100, spread=2.8),
            codes_truth(100, 2.8),
            earlier,
            s,
            "x",
        )
        for n, earlier, s in (
            (500, "0.04 of 1.121", 3),
            (2000, "0.04 of 1.121", 3),
            (10_000, "0.264 of 1.121", 1),
        )
    ),
    Finding("two Gaussians crossed", 500, CROSSED, CROSSED.truth(), "0.149 of 0.260", 5),
    Finding(
        "sign of a product",
        2000,
        partial(sign_product, factors=2, flip=0.011),
        flip_truth(0.011),
        "0.522 of 0.633",
    ),
    Finding("spiral", 2000, partial(spiral, noise=1.2), spiral_truth(1.2), "2.437 of 2.544"),
    Finding(
        "x² + noise",
        10_000,
        partial(curve, shape=square, noise="normal", scale=0.3),
        curve_truth(square, "normal", 0.3),
        "1.119 of 1.141",
        1,
    ),
    Finding(
        "Student, 1 degree",
        500,
        partial(student, d=1, nu=1, rho=0.5),
        student_truth(1, 1, 0.5),
        "0.283 of 0.368",
        5,
    ),
    Finding("Gaussian 10-d", 2000, partial(gaussian, d=10, nats=8.0), 8.0, "7.71, 8.06 of 8"),
    Finding("Gaussian 10-d, bent and mixed", 2000, partial(mixed_gaussian, d=10, nats=8.0), 8.0, "5.12 of 8"),
)


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    print(f"{'problem':<32}{'n':>6}{'truth':>8}{'ours':>8}{'KSG':>8}   then")
    for one in FINDINGS:
        if word not in one.name:
            continue
        ours, ksg, low, high, began = [], [], [], [], time.process_time()
        for seed in range(one.seeds):
            x, y = one.make(np.random.default_rng(seed), one.n)
            estimate = nf.estimate_mi(x, y, seed=seed, baselines=False, discrete=one.discrete)
            ours.append(estimate.nats)
            low.append(estimate.interval[0])
            high.append(estimate.interval[1])
        seconds = (time.process_time() - began) / one.seeds
        for seed in range(one.seeds):
            sides = [
                np.asarray(z, float).reshape(one.n, -1) for z in one.make(np.random.default_rng(seed), one.n)
            ]
            ksg.append(ksg_information(sides[0], sides[1]))
        print(
            f"{one.name:<32}{one.n:>6}{one.truth:>8.3f}{np.mean(ours):>8.3f}{np.mean(ksg):>8.3f}   "
            f"{one.earlier:<18}"
            f" [{np.mean(low):.3f}, {np.mean(high):.3f}], {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
