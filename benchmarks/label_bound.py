"""How often a lower bound on I(x; label) exceeds the truth: ours, and the mean minus standard errors.

Two classes, flips of 1 - right, the true posterior as critic. The hard case is a classifier that is nearly
always right: its rare large losses may not be among the rows.

    python benchmarks/label_bound.py [SAMPLES]
"""

import math
import sys

import numpy as np
import torch
from scipy.stats import t as student

from nearfar.estimate.label_information import label_information

CONFIDENCE = 0.95


def main(samples: int = 200) -> None:
    print(
        "| right | rows | truth | `at_least`, mean | above the truth | mean less 1.68 standard errors: "
        "above the truth |"
    )
    print("|---|---|---|---|---|---|")
    for right in (0.9, 0.99):
        for rows in (50, 200, 1_000):
            truth = math.log(2) + right * math.log(right) + (1 - right) * math.log(1 - right)
            rng = np.random.default_rng(11)
            proven, normal = [], []
            for _ in range(samples):
                y = rng.integers(0, 2, rows)
                x = np.where(rng.random(rows) < 1 - right, 1 - y, y)
                scores = np.log(np.where(np.arange(2)[None] == x[:, None], right, 1 - right))
                estimate = label_information(
                    torch.from_numpy(scores), torch.from_numpy(y), confidence=CONFIDENCE
                )
                proven.append(estimate["at_least"]["nats"])
                normal.append(estimate["nats"] - float(student.ppf(CONFIDENCE, 49)) * estimate["error"])
            exceeding = [sum(value > truth for value in values) for values in (proven, normal)]
            print(
                f"| {right:.0%} | {rows:,} | {truth:.3f} | {np.mean(proven):.3f} | {exceeding[0]} of "
                f"{samples} | {exceeding[1]} of {samples} |",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
