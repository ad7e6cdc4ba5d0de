"""p-values of independence where it holds: how often they fall below 1, 5 and 10 %.

    python benchmarks/null_p_values.py [FILE.jsonl] [--repeats 5] [--rows 60] [--seconds S]

Eight kinds of marginals, x and y drawn apart. A p-value may be below alpha in at most alpha of the samples.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from generators.problem import Array
from records import Record, run_recorded, share

import nearfar as nf

LEVELS = (0.01, 0.05, 0.1)
MARGINALS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "log-normal": lambda rng, n: np.exp(1.5 * rng.normal(size=n)),
    "zeros and amounts": lambda rng, n: np.where(rng.random(n) < 0.6, 0.0, rng.exponential(size=n)),
    "counts": lambda rng, n: rng.poisson(3.0, n),
    "rare event": lambda rng, n: (rng.random(n) < 0.08).astype(int),
    "categories": lambda rng, n: rng.integers(0, 8, n),
    "five columns": lambda rng, n: rng.normal(size=(n, 5)),
}


def measure(key: str, rows: int) -> Record:
    kind, seed = key.rsplit(" ", 1)
    rng = np.random.default_rng([int(seed), 99])
    try:
        result = nf.estimate_mi(MARGINALS[kind](rng, rows), MARGINALS[kind](rng, rows), baselines=False)
    except nf.UserError as problem:
        return {"kind": kind, "refused": str(problem)}
    return {"kind": kind, "p": result.p_value, "nats": result.nats, "at_least": float(result.at_least)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", default=Path("runs/benchmarks/p_values.jsonl"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    keys = [f"{kind} {seed}" for seed in range(args.repeats) for kind in MARGINALS]
    records = run_recorded(args.file, keys, lambda key: measure(key, args.rows), args.seconds)
    print(
        "| marginals | refused | "
        + " | ".join(f"p < {level:g}" for level in LEVELS)
        + " | at_least above 0 |"
    )
    print("|---|---|" + "---|" * (len(LEVELS) + 1))
    for kind in (*MARGINALS, "all"):
        group = [record for record in records if kind in (record["kind"], "all")]
        values = [record for record in group if "p" in record]
        if values:
            cells = " | ".join(share(record["p"] < level for record in values) for level in LEVELS)
            above = share(record["at_least"] > 0 for record in values)
            print(f"| {kind} | {len(group) - len(values)} | {cells} | {above} |")


if __name__ == "__main__":
    main()
