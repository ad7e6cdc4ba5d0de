"""`mi_matrix` beside `estimate_mi`: time, rank correlation, memory.

    python benchmarks/matrix.py                         46 columns (1,035 pairs) of 1,000 rows
    python benchmarks/matrix.py --columns 500 --rows 10000 --full 0

The columns are a random graph: each is a random function (linear, quadratic, sine, threshold, product) of up to two
earlier ones and noise, some cut into categories, some with gaps.
"""

import argparse
import resource
import time

import numpy as np
from scipy.stats import spearmanr

import nearfar as nf
from nearfar.estimate import MiMatrix
from nearfar.estimate.settings import REFINED

FUNCTIONS = (
    lambda a, b: a,
    lambda a, b: a**2 - 1,
    lambda a, b: np.sin(2 * a),
    lambda a, b: np.sign(a),
    lambda a, b: a * b,
    lambda a, b: (a + b) / 2**0.5,
)


def random_table(columns: int, rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    table: dict[str, np.ndarray] = {}
    latent: list[np.ndarray] = []
    for number in range(columns):
        noise = random.normal(size=rows)
        if number < 4 or random.uniform() < 0.1:
            value = noise
        else:
            a, b = (latent[k] for k in random.integers(0, min(number, 5), 2))
            signal = FUNCTIONS[random.integers(len(FUNCTIONS))](a, b)
            weight = random.uniform(0.5, 0.99)
            value = weight * signal / max(signal.std(), 1e-9) + (1 - weight**2) ** 0.5 * noise
        latent.append((value - value.mean()) / value.std())
        kind = random.uniform()
        shown = latent[-1]
        if kind < 0.2:
            shown = np.digitize(shown, np.quantile(shown, [0.2, 0.5, 0.8])).astype(float)
        elif kind < 0.3:
            shown = np.exp(shown)
        elif kind < 0.35:
            shown = np.where(random.uniform(size=rows) < 0.05, np.nan, shown)
        table[f"c{number}"] = shown
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=46)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--full", type=int, default=100, help="pairs of each kind that estimate_mi estimates")
    parser.add_argument("--workers", type=int, help="processes; with 1 the CPU time is of all the work")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = random_table(options.columns, options.rows, options.seed)
    nf.mi_matrix({name: column[:50] for name, column in list(table.items())[:3]}, refine=0)  # imports
    results = []
    for refine in (0, REFINED):
        start = time.perf_counter(), time.process_time()
        results.append(nf.mi_matrix(table, refine=refine, workers=options.workers))
        seconds, cpu_seconds = time.perf_counter() - start[0], time.process_time() - start[1]
        print(
            f"{len(results[-1]):,} pairs of {options.rows:,} rows, {results[-1].refined.sum()} refined: {seconds:.1f} s, "
            f"{cpu_seconds:.1f} CPU-s of this process"
        )
    screened, pairs = results
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")
    if options.full:
        compare(table, screened, pairs, options.full)


def compare(table: dict[str, np.ndarray], screened: MiMatrix, pairs: MiMatrix, count: int) -> None:
    """Prints rank correlations with `estimate_mi`: of `count` pairs at equal distances in the order of their nats, so that
    all strengths occur, and of `count` pairs drawn at random."""
    dependent = np.flatnonzero(pairs.nats > 0)
    ordered = dependent[np.linspace(0, len(dependent) - 1, min(count, len(dependent))).astype(int)]
    drawn = np.random.default_rng(1).permutation(len(pairs))[:count]
    start, full = time.process_time(), {}
    for k in {*ordered.tolist(), *drawn.tolist()}:
        estimate = nf.estimate_mi(table[pairs.x[k]], table[pairs.y[k]], baselines=False)
        full[k] = estimate.nats, estimate.p_value is not None and estimate.p_value < 0.05
    print(f"estimate_mi: {(time.process_time() - start) / len(full):.2f} CPU-s a pair")
    known = dict(zip(zip(screened.x, screened.y, strict=True), screened.nats, strict=True))
    screening = np.array([known[pair] for pair in zip(pairs.x, pairs.y, strict=True)])
    strong = [k for k in ordered if full[k][0] > 0.02]
    selections = {"of all strengths": ordered, "of these above 0.02 nats": strong, "drawn at random": drawn}
    for name, selection in selections.items():
        nats, is_dependent = map(np.array, zip(*(full[k] for k in selection), strict=True))
        for ties, values in (("", nats), (", ties at 0 where p >= 0.05", np.where(is_dependent, nats, 0.0))):
            first, second = (spearmanr(values, x[selection])[0] for x in (screening, pairs.nats))
            print(f"{len(nats)} {name}{ties}: rank correlation {first:.3f} screened, {second:.3f} refined")
        says = pairs.nats[selection] > 0
        print(
            f"    both dependent {(says & is_dependent).sum()}, neither {(~says & ~is_dependent).sum()}, ",
            end="",
        )
        print(
            f"only mi_matrix {(says & ~is_dependent).sum()}, only estimate_mi {(~says & is_dependent).sum()}"
        )


if __name__ == "__main__":
    main()
