"""Accuracy, coverage and cost of `nf.estimate_mi` on 54 problems of known information (problems.py), beside KSG, scikit-learn and a network alone.

    python benchmarks/mutual_information.py [N,N,...] [SEEDS] [FILE.jsonl]      1000 by default: about 1.5 CPU-minutes per seed

Each row of FILE is one estimate; a file that holds some already goes on from there. `--first 3` begins at seed 3, `--random 2` takes 40 problems drawn
at random with seed 2 (random_problems.py) in place of the 54. `--network` adds a network fitted by InfoNCE alone, `--only WORD` takes problems with WORD in
their name or family.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from problems import Problem, problems  # type: ignore[import-not-found]
from random_problems import random_problems  # type: ignore[import-not-found]

import nearfar as nf

STRENGTHS = ((0.0, 0.05), (0.05, 0.5), (0.5, 1.5), (1.5, 10.0))


def measured(problem: Problem, n: int, seed: int, network: bool) -> dict[str, Any]:
    x, y = problem.make(np.random.default_rng(seed), n)
    began = time.process_time()
    found = nf.estimate_mi(x, y, seed=seed, baselines=False, **problem.options)
    seconds = time.process_time() - began
    row = {
        "problem": problem.name,
        "family": problem.family,
        "n": n,
        "seed": seed,
        "truth": problem.truth,
        "nats": found.nats,
        "low": found.interval[0],
        "high": found.interval[1],
        "at_least": float(found.at_least),
        "p": found.p_value,
        "seconds": seconds,
        "critic": found.critic,
        "ksg": ksg(x, y),
        "sklearn": scikit_learn(x, y, problem),
    }
    if network:
        began = time.process_time()
        row["network"] = nf.estimate_mi(
            x, y, "infonce", "separable", seed=seed, baselines=False, **problem.options
        ).nats
        row["network_seconds"] = time.process_time() - began
    return row


def ksg(x: np.ndarray, y: np.ndarray) -> float:
    from nearfar.estimate.baselines import ksg_information

    sides = [np.asarray(side, float).reshape(len(side), -1) for side in (x, y)]
    return ksg_information(sides[0], sides[1])


def scikit_learn(x: np.ndarray, y: np.ndarray, problem: Problem) -> float | None:
    """Its estimator for one column against one."""
    from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

    first, second = (np.asarray(side, float).reshape(len(side), -1) for side in (x, y))
    if first.shape[1] > 1 or second.shape[1] > 1:
        return None
    category = [
        problem.options.get("discrete") in ("all", s) or len(np.unique(z)) <= 32
        for s, z in (("x", first), ("y", second))
    ]
    function = mutual_info_classif if category[1] else mutual_info_regression
    return float(function(first, second.ravel(), discrete_features=[category[0]], random_state=0)[0])


def summary(rows: list[dict[str, Any]]) -> None:
    for n in sorted({row["n"] for row in rows}):
        here = [row for row in rows if row["n"] == n]
        error = np.array([abs(row["nats"] - row["truth"]) for row in here])
        seconds = np.array([row["seconds"] for row in here])
        print(f"\nn = {n}: {len(here)} estimates of {len({row['problem'] for row in here})} problems")
        print(
            f"  mean absolute error {error.mean():.4f}, median {np.median(error):.4f}; within 0.05: {(error < 0.05).mean():.0%}"
        )
        for other in ("ksg", "sklearn", "network"):
            both = [
                (abs(r["nats"] - r["truth"]), abs(r[other] - r["truth"]))
                for r in here
                if r.get(other) is not None
            ]
            if both:
                ours, theirs = np.array(both).T
                print(
                    f"  {other:<8} mean absolute error {theirs.mean():.4f} (ours there {ours.mean():.4f}); ours nearer in {(ours < theirs).mean():.0%}"
                )
        print(f"  CPU-seconds: median {np.median(seconds):.1f}, largest {seconds.max():.1f}")
        for low, high in STRENGTHS:
            some = [r for r in here if low <= r["truth"] < high]
            if some:
                held = np.mean([r["low"] <= r["truth"] <= r["high"] for r in some])
                over = np.mean([r["at_least"] > r["truth"] for r in some])
                print(
                    f"  {low:g} to {high:g} nats: interval holds the truth in {held:.0%} of {len(some)}; at_least above it in {over:.0%}"
                )
    families = sorted({row["family"] for row in rows})
    worst = {f: np.mean([r["at_least"] > r["truth"] for r in rows if r["family"] == f]) for f in families}
    print(
        "\nat_least above the truth, by family:",
        ", ".join(f"{f} {v:.0%}" for f, v in worst.items() if v) or "never",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="?", default="1000")
    parser.add_argument("seeds", nargs="?", type=int, default=1)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--random", type=int)
    given = parser.parse_args()
    rows = (
        [json.loads(line) for line in given.file.read_text().splitlines()]
        if given.file and given.file.exists()
        else []
    )
    everything = problems() if given.random is None else random_problems(40, given.random)
    done = {(row["problem"], row["n"], row["seed"]) for row in rows}
    for seed in range(given.first, given.first + given.seeds):
        for n in (int(size) for size in given.sizes.split(",")):
            for problem in everything:
                if given.only not in problem.name + problem.family or (problem.name, n, seed) in done:
                    continue
                row = measured(problem, n, seed, given.network)
                rows.append(row)
                if given.file:
                    with given.file.open("a") as out:
                        print(json.dumps(row), file=out)
                other = "".join(
                    f"  {k} {row[k]:.3f}" for k in ("ksg", "sklearn", "network") if row.get(k) is not None
                )
                print(
                    f"{problem.name:<34}{n:>6}{problem.truth:>8.3f}{row['nats']:>8.3f}  [{row['low']:.3f}, {row['high']:.3f}]"
                    f"  at least {row['at_least']:.3f}{other}  {row['seconds']:.1f} s",
                    flush=True,
                )
    summary(rows)
    if not all(math.isfinite(row["nats"]) for row in rows):
        raise SystemExit("some estimate is not finite")


if __name__ == "__main__":
    main()
