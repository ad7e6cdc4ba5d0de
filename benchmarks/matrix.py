"""`mi_matrix` beside the full estimator: time, rank correlation, memory.

    python benchmarks/matrix.py                         46 columns (1,035 pairs) of 1,000 rows; full on 150 of the pairs
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
from nearfar.estimate.matrix import refined_nats

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
    parser.add_argument("--full", type=int, default=150, help="pairs estimated by the full estimator")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = random_table(options.columns, options.rows, options.seed)
    nf.mi_matrix({name: column[:50] for name, column in list(table.items())[:3]}, refine=0)  # imports
    start = time.perf_counter()
    screened = nf.mi_matrix(table, refine=0)
    middle = time.perf_counter()
    pairs = nf.mi_matrix(table)
    end = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(pairs):,} pairs of {options.rows:,} rows: screening {middle - start:.1f} s, with refinement {end - middle:.1f} s"
    )
    print(f"{pairs.refined.sum()} refined; peak memory of the process {memory:.2f} GB")
    if options.full:
        random = np.random.default_rng(1)
        draw = random.permutation(len(pairs))[: options.full]
        start = time.process_time()
        full = []
        for k in draw:
            x, y = table[pairs.x[k]], table[pairs.y[k]]
            kinds = np.array([len(np.unique(side)) <= 20 for side in (x, y)])
            full.append(refined_nats(x, y, kinds, {}))
        seconds = (time.process_time() - start) / len(draw)
        known = dict(zip(zip(screened.x, screened.y, strict=True), screened.nats, strict=True))
        screening = [known[pairs.x[k], pairs.y[k]] for k in draw]
        print(f"full estimator on {len(draw)} pairs: {seconds:.2f} CPU-s each")
        print(
            f"rank correlation with it: screening {spearmanr(full, screening)[0]:.3f}, refined {spearmanr(full, pairs.nats[draw])[0]:.3f}"
        )
        strong = np.array(full) > 0.02
        print(
            f"of the {strong.sum()} above 0.02 nats: {spearmanr(np.array(full)[strong], np.array(screening)[strong])[0]:.3f}, {spearmanr(np.array(full)[strong], pairs.nats[draw][strong])[0]:.3f}"
        )


if __name__ == "__main__":
    main()
