"""Accuracy, coverage and cost of `nf.estimate_mi` on 60 problems of known information (problems.py), beside KSG, scikit-learn and a network alone.

    python benchmarks/mutual_information.py [N,N,...] [SEEDS] [FILE.jsonl]      1000 by default: about 1.5 CPU-minutes per seed

Each row of FILE is one estimate; a file that holds some already goes on from there. `--first 3` begins at seed 3, `--random 2` takes 40 problems drawn
at random with seed 2 (random_problems.py) in place of the 60, `--hard` those of hard_problems.py, with their own numbers of rows. `--network` adds a network
fitted by InfoNCE alone, `--only WORD` takes problems with WORD in their name or family.
"""

import argparse
import json
import math
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from hard_problems import hard_problems
from problems import Problem, Sample, problems
from random_problems import random_problems
from scipy.stats import beta

import nearfar as nf

STRENGTHS = ((0.0, 0.0), (1e-9, 0.05), (0.05, 0.5), (0.5, 1.5), (1.5, 10.0))
ROUNDING = 1e-9


def sample(problem: Problem, n: int, seed: int) -> Sample:
    """Draws of its own for every problem: problems that shared theirs would all err the same way."""
    return problem.make(np.random.default_rng([seed, zlib.crc32(problem.name.encode())]), n)


def measured(problem: Problem, n: int, seed: int, network: bool) -> dict[str, Any]:
    x, y = sample(problem, n, seed)
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


def numbers(side: np.ndarray) -> np.ndarray:
    """The other estimators take words as codes."""
    codes = np.unique(side, return_inverse=True)[1] if side.dtype.kind == "U" else side
    return np.asarray(codes, float).reshape(len(side), -1)


def ksg(x: np.ndarray, y: np.ndarray) -> float:
    from nearfar.estimate.baselines import ksg_information

    return ksg_information(numbers(x), numbers(y))


def scikit_learn(x: np.ndarray, y: np.ndarray, problem: Problem) -> float | None:
    """Its estimator for one column against one."""
    from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

    first, second = numbers(x), numbers(y)
    if first.shape[1] > 1 or second.shape[1] > 1:
        return None
    category = [
        problem.options.get("discrete") in ("all", s) or len(np.unique(z)) <= 32
        for s, z in (("x", first), ("y", second))
    ]
    function = mutual_info_classif if category[1] else mutual_info_regression
    return float(function(first, second.ravel(), discrete_features=[category[0]], random_state=0)[0])


def share(held: list[bool]) -> str:
    """How many of how many, with the 95 % limits of Clopper and Pearson (1934)."""
    k, n = sum(held), len(held)
    low, high = (
        float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0,
        float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0,
    )
    return f"{k} of {n} ({k / n:.0%}; {low:.0%} to {high:.0%})"


def error_of(row: dict[str, Any], who: str = "nats") -> float:
    return abs(row[who] - row["truth"])


def beside_others(rows: list[dict[str, Any]]) -> None:
    for others in (("ksg",), ("sklearn",), ("network",), ("ksg", "network")):
        both = [
            (error_of(row), min(error_of(row, other) for other in others))
            for row in rows
            if all(row.get(other) is not None for other in others)
        ]
        if both:
            ours, theirs = np.array(both).T
            print(
                f"  {' or '.join(others):<16} mean absolute error {theirs.mean():.4f} (ours there {ours.mean():.4f}); ours nearer in "
                f"{(ours < theirs).mean():.0%} of {len(both)}, at most 0.01 nats farther in {(ours < theirs + 0.01).mean():.0%}"
            )


def summary(rows: list[dict[str, Any]]) -> None:
    for n in sorted({row["n"] for row in rows}):
        here = [row for row in rows if row["n"] == n]
        error = np.array([error_of(row) for row in here])
        seconds = np.array([row["seconds"] for row in here])
        print(f"\nn = {n}: {len(here)} estimates of {len({row['problem'] for row in here})} problems")
        print(
            f"  mean absolute error {error.mean():.4f}, median {np.median(error):.4f}; within 0.05: {(error < 0.05).mean():.0%}"
        )
        beside_others(here)
        print(
            f"  CPU-seconds: median {np.median(seconds):.1f}, largest {seconds.max():.1f}; at most 2 in {(seconds <= 2).mean():.0%}, "
            f"at most 20 in {(seconds <= 20).mean():.0%}"
        )
        for low, high in STRENGTHS:
            some = [row for row in here if low <= row["truth"] < high or row["truth"] == low == high]
            if some:
                held = [row["low"] <= row["truth"] + ROUNDING and row["truth"] <= row["high"] for row in some]
                over = sum(row["at_least"] > row["truth"] + ROUNDING for row in some)
                said = "nothing" if low == high else f"{low:g} to {high:g} nats"
                print(f"  {said}: the interval holds the truth in {share(held)}; at_least above it in {over}")
    print("\nat_least above the truth, by family:")
    for family in sorted({row["family"] for row in rows}):
        print(
            f"  {family}: {share([r['at_least'] > r['truth'] + ROUNDING for r in rows if r['family'] == family])}"
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
    parser.add_argument("--hard", action="store_true")
    given = parser.parse_args()
    rows = (
        [json.loads(line) for line in given.file.read_text().splitlines()]
        if given.file and given.file.exists()
        else []
    )
    sizes = [int(size) for size in given.sizes.split(",")]
    drawn = problems() if given.random is None else random_problems(40, given.random)
    asked = hard_problems() if given.hard else [(problem, n) for n in sizes for problem in drawn]
    done = {(row["problem"], row["n"], row["seed"]) for row in rows}
    for seed in range(given.first, given.first + given.seeds):
        for problem, n in asked:
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
