"""How often `at_least` is above the truth on samples that are made to mislead it.

    python benchmarks/adversarial_bound.py [FILE.jsonl] [--samples 40] [--seconds S]

Eight families, from 50 to 300 rows: rare flips and rare events that a sample may not contain, heavy-tailed
log ratios (few rows carry all information, shared size without a mean), and imbalance (rare classes, many
levels, few rows in each). The limit is one-sided with 95 % confidence:
it may be above the truth in at most 5 % of samples.
"""

import argparse
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from generators.problem import Array
from records import Record, run_recorded, share
from scipy.special import digamma, gammaln
from scipy.stats import norm

import nearfar as nf

Pair = tuple[Array, Array]
TRUTH_ROWS = 1_000_000


def entropy(shares: Array | list[float]) -> float:
    p = np.asarray(shares, float)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def rare_flip(rng: np.random.Generator, n: int) -> Pair:
    """A bit copied, wrong once in 150 rows: most small samples show no error at all."""
    x = rng.integers(0, 2, n)
    return x, x ^ (rng.random(n) < 1 / 150)


def rare_event(rng: np.random.Generator, n: int) -> Pair:
    """One row in 40 is an event, and a number is 3 higher then."""
    y = (rng.random(n) < 1 / 40).astype(int)
    return rng.normal(size=n) + 3 * y, y


def rare_copies(rng: np.random.Generator, n: int) -> Pair:
    """One row in 12 is nearly a copy, the others are independent."""
    x, y, e = rng.normal(size=(3, n))
    copied = rng.random(n) < 1 / 12
    return x, np.where(copied, 0.9999 * x + math.sqrt(1 - 0.9999**2) * e, y)


def shared_size(rng: np.random.Generator, n: int) -> Pair:
    """Student's t of one degree of freedom, three columns a side, no correlation."""
    x, y = rng.normal(size=(2, n, 3))
    size = np.abs(rng.normal(size=(n, 1)))
    return x / size, y / size


def rare_class(rng: np.random.Generator, n: int) -> Pair:
    """Ten classes, shares as 1 / rank squared, each with its place on a line."""
    y = rng.choice(10, p=ZIPF, size=n)
    return 1.5 * y + rng.normal(size=n), y


def many_levels(rng: np.random.Generator, n: int) -> Pair:
    """Forty levels; y is x in three rows of ten."""
    x, y = rng.integers(0, 40, size=(2, n))
    return x, np.where(rng.random(n) < 0.3, x, y)


def near_copies(rng: np.random.Generator, n: int) -> Pair:
    x, e = rng.normal(size=(2, n))
    return x, x + 0.01 * e


def unequal_noise(rng: np.random.Generator, n: int) -> Pair:
    """y = x + e with noise that is 100 times smaller in one row of ten, as a third column tells."""
    x, e = rng.normal(size=(2, n))
    exact = rng.random(n) < 0.1
    return np.column_stack([x, exact]), x + np.where(exact, 0.05, 5.0) * e


ZIPF = (1 / np.arange(1, 11) ** 2) / (1 / np.arange(1, 11) ** 2).sum()
FAMILIES: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "rare flip": rare_flip,
    "rare event": rare_event,
    "rare copies": rare_copies,
    "shared size": shared_size,
    "rare class": rare_class,
    "many levels": many_levels,
    "near copies": near_copies,
    "unequal noise": unequal_noise,
}


@cache
def truth(family: str) -> float:
    """Nats: closed forms, or one-dimensional integrals on a grid of 400,001 places."""
    if family == "rare flip":
        return math.log(2) - entropy([1 / 150, 149 / 150])
    if family == "many levels":
        same = 0.3 + 0.7 / 40
        return math.log(40) - entropy([same, *[0.7 / 40] * 39])
    if family == "near copies":
        return 0.5 * math.log1p(1e4)
    if family == "shared size":

        def size(d: int) -> float:
            half = (1 + d) / 2
            return float(gammaln(0.5) - gammaln(half) + half * (digamma(half) - digamma(0.5)))

        return 2 * size(3) - size(6)
    grid = np.linspace(-40, 60, 400_001)
    if family in ("rare event", "rare class"):
        shares = np.array([39 / 40, 1 / 40]) if family == "rare event" else ZIPF
        step = 3.0 if family == "rare event" else 1.5
        return _mixture_entropy(grid, shares, step * np.arange(len(shares)), np.ones(len(shares))) - _normal(
            1
        )
    if family == "unequal noise":
        sizes = np.sqrt(1 + np.array([0.05, 5.0]) ** 2)
        total = _mixture_entropy(grid, np.array([0.1, 0.9]), np.zeros(2), sizes)
        return total - 0.1 * _normal(0.05) - 0.9 * _normal(5.0)
    return _rare_copies_truth()


def _normal(spread: float) -> float:
    return 0.5 * math.log(2 * math.pi * math.e * spread**2)


def _mixture_entropy(grid: Array, shares: Array, means: Array, spreads: Array) -> float:
    density = sum(p * norm.pdf(grid, m, s) for p, m, s in zip(shares, means, spreads, strict=True))
    return float(-np.trapezoid(density * np.log(np.maximum(density, 1e-300)), grid))


def _rare_copies_truth() -> float:
    """Mean of the exact log ratio over a million rows; its standard error is below 0.003."""
    x, y = rare_copies(np.random.default_rng(0), TRUTH_ROWS)
    rho = 0.9999
    log_r = -0.5 * math.log(1 - rho**2) - (rho**2 * (x**2 + y**2) - 2 * rho * x * y) / (2 * (1 - rho**2))
    return float(np.logaddexp(log_r - math.log(12), math.log(11 / 12)).mean())


def measure(key: str) -> Record:
    family, seed = key.rsplit(" ", 1)
    rng = np.random.default_rng([int(seed), 77])
    n = int(rng.integers(50, 301))
    x, y = FAMILIES[family](rng, n)
    try:
        result = nf.estimate_mi(x, y, baselines=False)
    except nf.UserError as problem:  # for instance a side without variation
        return {"family": family, "rows": n, "truth": truth(family), "refused": str(problem)}
    return {
        "family": family,
        "rows": n,
        "truth": truth(family),
        "at_least": float(result.at_least),
        "status": result.at_least.certificate.status,
        "low": result.interval[0],
        "high": result.interval[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", default=Path("runs/benchmarks/adversarial.jsonl"))
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    keys = [f"{family} {seed}" for seed in range(args.samples // len(FAMILIES)) for family in FAMILIES]
    records = run_recorded(args.file, keys, measure, args.seconds)
    answered = [record for record in records if "refused" not in record]
    print(
        "| family | truth | refused | at_least above the truth | mean at_least | 90 % interval contains it |"
    )
    print("|---|---|---|---|---|---|")
    for family in (*FAMILIES, "all"):
        group = [record for record in answered if family in (record["family"], "all")]
        refused = sum(family in (r["family"], "all") for r in records) - len(group)
        if group:
            value = "" if family == "all" else f"{truth(family):.3f}"
            mean = "" if family == "all" else f"{np.mean([r['at_least'] for r in group]):.3f}"
            print(
                f"| {family} | {value} | {refused} | {share(r['at_least'] > r['truth'] for r in group)} | {mean} | "
                f"{share(r['low'] <= r['truth'] <= r['high'] for r in group)} |"
            )


if __name__ == "__main__":
    main()
