"""CPU-seconds and memory of `nf.estimate_mi` by number of rows.

    python benchmarks/many_rows.py [ROWS] [KIND]      1,000,000 by default

Numbers, columns and category each run in their own process.
"""

import math
import resource
import subprocess
import sys
import time

import numpy as np

KINDS = ("numbers", "columns", "category")


def measure(rows: int, kind: str) -> None:
    import nearfar as nf

    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(2, rows))
    truth = 0.5 * math.log(2)
    if kind == "columns":
        x, truth = rng.normal(size=(rows, 5)), 0.5 * math.log(2)
        y = x[:, 0] + e
    elif kind == "category":
        code = rng.integers(0, 20, rows)
        means = np.random.default_rng(1).normal(size=20)
        x, y = code, means[code] + e
        fine = np.linspace(-9, 9, 20_001)
        density = np.exp(-0.5 * (fine[:, None] - means) ** 2).mean(axis=1) / math.sqrt(2 * math.pi)
        truth = float(-np.trapezoid(density * np.log(density), fine)) - 0.5 * math.log(2 * math.pi * math.e)
    else:
        y = x + e
    previous = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    estimate = nf.estimate_mi(x, y)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{kind:<10}{rows:>9} rows  truth {truth:.4f}  {estimate.nats:.4f} [{estimate.interval[0]:.4f}, "
        f"{estimate.interval[1]:.4f}]  at least "
        f"{float(estimate.at_least):.4f}  {seconds:.0f} CPU-s  peak {peak:.0f} MiB ({previous:.0f} before)",
        flush=True,
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        measure(rows, sys.argv[2])
        return
    for kind in KINDS:
        subprocess.run([sys.executable, __file__, str(rows), kind], check=True)


if __name__ == "__main__":
    main()
