"""Accuracy, coverage and cost of `nf.estimate_mi` on 60 problems of known information (problems.py).

    python benchmarks/mutual_information.py [N,N,...] [SEEDS] [FILE.jsonl]      1000: about 1.5 CPU-minutes
    per seed

KSG, scikit-learn and a network are compared. Each row of FILE is one estimate; an existing file is continued.
`--first 3` begins at seed 3. `--random 2` takes 40 problems drawn with seed 2 (random_problems.py) instead of
the 60, `--hard` those of hard_problems.py with their numbers of rows. `--network` adds a network fitted by
InfoNCE. `--only WORD` takes problems with WORD in their name or family."""

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
    estimate = nf.estimate_mi(x, y, seed=seed, baselines=False, **problem.options)
    seconds = time.process_time() - began
    row = {
        "problem": problem.name,
        "family": problem.family,
        "n": n,
        "seed": seed,
        "truth": problem.truth,
        "nats": estimate.nats,
        "low": estimate.interval[0],
        "high": estimate.interval[1],
        "at_least": float(estimate.at_least),
        "p": estimate.p_value,
        "seconds": seconds,
        "critic": estimate.critic,
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


def share(hits: list[bool]) -> str:
    """How many of how many, with the 95 % limits of Clopper and Pearson (1934)."""
    k, n = sum(hits), len(hits)
    low, high = (
        float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0,
        float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0,
    )
    return f"{k} of {n} ({k / n:.0%}; {low:.0%} to {high:.0%})"


def error_of(row: dict[str, Any], who: str = "nats") -> float:
    return abs(row[who] - row["truth"])


def beside_others(rows: list[dict[str, Any]]) -> None:
    for baselines in (("ksg",), ("sklearn",), ("network",), ("ksg", "network")):
        pairs = [
            (error_of(row), min(error_of(row, baseline) for baseline in baselines))
            for row in rows
            if all(row.get(baseline) is not None for baseline in baselines)
        ]
        if pairs:
            ours, theirs = np.array(pairs).T
            print(
                f"  {' or '.join(baselines):<16} mean absolute error {theirs.mean():.4f} (ours there "
                f"{ours.mean():.4f}); ours nearer in "
                f"{(ours < theirs).mean():.0%} of {len(pairs)}, at most 0.01 nats farther in "
                f"{(ours < theirs + 0.01).mean():.0%}"
            )


def summary(rows: list[dict[str, Any]]) -> None:
    for n in sorted({row["n"] for row in rows}):
        rows_of_n = [row for row in rows if row["n"] == n]
        error = np.array([error_of(row) for row in rows_of_n])
        seconds = np.array([row["seconds"] for row in rows_of_n])
        print(
            f"\nn = {n}: {len(rows_of_n)} estimates of {len({row['problem'] for row in rows_of_n})} problems"
        )
        print(
            f"  mean absolute error {error.mean():.4f}, median {np.median(error):.4f}; within 0.05: "
            f"{(error < 0.05).mean():.0%}"
        )
        beside_others(rows_of_n)
        print(
            f"  CPU-seconds: median {np.median(seconds):.1f}, largest {seconds.max():.1f}; at most 2 in "
            f"{(seconds <= 2).mean():.0%}, "
            f"at most 20 in {(seconds <= 20).mean():.0%}"
        )
        for low, high in STRENGTHS:
            some = [row for row in rows_of_n if low <= row["truth"] < high or row["truth"] == low == high]
            if some:
                covered = [
                    row["low"] <= row["truth"] + ROUNDING and row["truth"] <= row["high"] for row in some
                ]
                over = sum(row["at_least"] > row["truth"] + ROUNDING for row in some)
                interval = "nothing" if low == high else f"{low:g} to {high:g} nats"
                print(
                    f"  {interval}: the interval holds the truth in {share(covered)}; at_least above it "
                    f"in {over}"
                )
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
    arguments = parser.parse_args()
    rows = (
        [json.loads(line) for line in arguments.file.read_text().splitlines()]
        if arguments.file and arguments.file.exists()
        else []
    )
    sizes = [int(size) for size in arguments.sizes.split(",")]
    chosen_problems = problems() if arguments.random is None else random_problems(40, arguments.random)
    tasks = (
        hard_problems() if arguments.hard else [(problem, n) for n in sizes for problem in chosen_problems]
    )
    finished = {(row["problem"], row["n"], row["seed"]) for row in rows}
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for problem, n in tasks:
            if arguments.only not in problem.name + problem.family or (problem.name, n, seed) in finished:
                continue
            row = measured(problem, n, seed, arguments.network)
            rows.append(row)
            if arguments.file:
                with arguments.file.open("a") as out:
                    print(json.dumps(row), file=out)
            comparison = "".join(
                f"  {k} {row[k]:.3f}" for k in ("ksg", "sklearn", "network") if row.get(k) is not None
            )
            print(
                f"{problem.name:<34}{n:>6}{problem.truth:>8.3f}{row['nats']:>8.3f}  [{row['low']:.3f}, "
                f"{row['high']:.3f}]"
                f"  at least {row['at_least']:.3f}{comparison}  {row['seconds']:.1f} s",
                flush=True,
            )
    summary(rows)
    if not all(math.isfinite(row["nats"]) for row in rows):
        raise SystemExit("some estimate is not finite")


if __name__ == "__main__":
    main()
