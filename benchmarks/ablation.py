"""Which candidate ratios of the estimator earn their place? Backward elimination over problems of known
information.

    python benchmarks/ablation.py [N,N] [--fit FOLDER] [--problems SET,SET]     about 1.5 CPU-seconds per
    problem at N = 300

Every candidate is fitted once per problem: log ratios on rows left out of the fit give the weights, log
ratios of fresh rows the value. Both are stored in FOLDER, and a second run continues. Stacks without a
candidate are then made from the stored numbers alone. The error of a stack is its loss, truth less mean log
ratio of fresh rows, a divergence that is never negative in expectation, divided by max(truth, 0.25). A round
removes the candidates whose removal raises the mean error by at most one standard error over problems, at
most a quarter of them at a time, the most useless first. Candidates that differ in which side they predict
stand or fall together."""

import argparse
import zlib
from pathlib import Path

import numpy as np
from hard_problems import hard_problems
from problems import Problem, problems
from random_problems import random_problems
from scipy.special import logsumexp

from nearfar.estimate.ratios import SideMap
from nearfar.estimate.ratios.stack import CANDIDATES, MIN_WEIGHT, _clip, _excess, _split_rows, mixture_weights
from nearfar.estimate.samples import check_pair
from nearfar.system.hardware import one_thread

FRESH_ROWS = 2000
MIN_TRUTH = 0.25  # nats: errors of weaker dependence are divided by this
IDLE_WEIGHT = 1e-3  # removing a candidate of less weight changes nothing
MAX_REMOVED = 0.25  # share of the removable candidates per round

Table = tuple[list[str], np.ndarray, np.ndarray]  # names; log ratios of rows left out, and of fresh rows


def problem_sets() -> dict[str, list[Problem]]:
    return {"problems": problems(), "random": random_problems(40, 1), "hard": [p for p, _ in hard_problems()]}


def fit_candidates(problem: Problem, n: int) -> Table:
    """Log ratios of every candidate that applies, fitted to 4/5 of n rows as a fold of the estimator is."""
    train = 4 * n // 5
    x, y = problem.make(np.random.default_rng([n, zlib.crc32(problem.name.encode())]), train + FRESH_ROWS)
    pair = check_pair(x, y, problem.options.get("discrete", "auto"))
    maps = [SideMap.fit(side[:train], kind) for side, kind in zip((pair.x, pair.y), pair.kinds, strict=True)]
    fitted, new_rows = (
        tuple(m(side[rows]) for m, side in zip(maps, (pair.x, pair.y), strict=True))
        for rows in (slice(0, train), slice(train, None))
    )
    splits = _split_rows(np.arange(train), 0)
    names, unseen_values, fresh_values = [], [], []
    for name, fit in CANDIDATES.items():
        values, excesses = [], []
        for rows, unseen in splits:
            ratio = fit(fitted[0][rows], fitted[1][rows], 0)
            if ratio is None:
                break
            sides = fitted[0][unseen], fitted[1][unseen]
            values.append(_clip(ratio.pairs(*sides)))
            excesses.append(_excess(ratio, *sides))
        ratio = fit(fitted[0], fitted[1], 0) if len(values) == len(splits) else None
        if ratio is not None:
            excess = float(np.mean(excesses))
            names.append(name)
            unseen_values.append(np.concatenate(values) - excess)
            fresh_values.append(_clip(ratio.pairs(*new_rows)) - excess)
    return names, np.column_stack(unseen_values), np.column_stack(fresh_values)


def load_or_fit(problem: Problem, n: int, folder: Path) -> Table:
    file = folder / f"{zlib.crc32(problem.name.encode()):08x}-{n}.npz"
    if not file.exists():
        with one_thread():
            names, unseen, new_rows = fit_candidates(problem, n)
        np.savez(file, names=np.array(names), unseen=unseen.astype("f4"), fresh=new_rows.astype("f4"))
    with np.load(file) as stored:
        return (
            [str(name) for name in stored["names"]],
            stored["unseen"].astype(float),
            stored["fresh"].astype(float),
        )


def stack_value(table: Table, candidates: set[str]) -> tuple[float, dict[str, float]]:
    """Mean log ratio of fresh rows under the stack of these candidates, and the weights on rows left out."""
    names, unseen, new_rows = table
    selected = [k for k, name in enumerate(names) if name in candidates]
    if not selected:
        return 0.0, {}
    weights = mixture_weights(np.column_stack([np.zeros(len(unseen)), unseen[:, selected]]))
    by_name = {names[k]: float(w) for k, w in zip(selected, weights[1:], strict=True)}
    heavy = np.r_[True, weights[1:] >= MIN_WEIGHT]
    if heavy.sum() == 1:
        return 0.0, by_name
    independence = max(weights[0], 3 / (3 + len(unseen)))
    share = np.r_[independence, weights[1:] * heavy[1:] * (1 - independence) / weights[1:][heavy[1:]].sum()]
    log_r = np.column_stack([np.zeros(len(new_rows)), new_rows[:, selected]])[:, heavy]
    return float(logsumexp(log_r + np.log(share[heavy]), axis=1).mean()), by_name


def unit(name: str) -> str:
    """Candidates that are each other's mirror image are one unit."""
    return (
        name.replace("x of y", "y of x")
        .replace("of x round y", "of y round x")
        .replace("classes of x", "classes of y")
    )


def eliminate(tables: list[Table], truths: np.ndarray, candidates: list[str]) -> None:
    scale = np.maximum(truths, MIN_TRUTH)
    remaining = set(candidates)
    while True:
        base = [stack_value(table, remaining) for table in tables]
        units = sorted({unit(name) for name in remaining})
        change = {}
        for candidate in units:
            members = {name for name in remaining if unit(name) == candidate}
            loss = np.array(
                [
                    0.0
                    if all(weights.get(name, 0.0) < IDLE_WEIGHT for name in members)
                    else value - stack_value(table, remaining - members)[0]
                    for table, (value, weights) in zip(tables, base, strict=True)
                ]
            )
            loss = loss / scale
            change[candidate] = (
                float(loss.mean()),
                float(loss.std(ddof=1) / np.sqrt(len(loss))),
                float(loss.max()),
            )
        error = (truths - np.array([value for value, _ in base])) / scale
        print(
            f"\n{len(units)} candidates: mean relative error {error.mean():.4f}, median "
            f"{np.median(error):.4f}"
        )
        for candidate, (mean, spread, largest) in sorted(change.items(), key=lambda item: -item[1][0]):
            print(f"  without {candidate:<40}{mean:+.5f} ± {spread:.5f}  most {largest:+.3f}")
        removable = sorted(
            (candidate for candidate in units if change[candidate][0] <= change[candidate][1]),
            key=lambda candidate: change[candidate][0] / (change[candidate][1] + 1e-12),
        )
        if not removable:
            return
        dropped = removable[: max(1, int(len(removable) * MAX_REMOVED))]
        print("removed:", ", ".join(dropped), flush=True)
        remaining = {name for name in remaining if unit(name) not in dropped}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="?", default="300")
    parser.add_argument("--fit", type=Path, default=Path("ablation"), help="folder of stored log ratios")
    parser.add_argument("--problems", default="problems,random,hard")
    options = parser.parse_args()
    options.fit.mkdir(parents=True, exist_ok=True)
    sets = problem_sets()
    tables, truths = [], []
    for n in map(int, options.sizes.split(",")):
        for problem in (problem for name in options.problems.split(",") for problem in sets[name]):
            try:
                tables.append(load_or_fit(problem, n, options.fit))
            except Exception as error:
                print(f"{problem.name} at {n}: {error}")
                continue
            truths.append(problem.truth)
    eliminate(tables, np.array(truths), list(CANDIDATES))


if __name__ == "__main__":
    main()
