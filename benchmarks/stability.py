"""How far an estimate moves when nothing about the question changes.

    python benchmarks/stability.py [FILE.jsonl] [--problems 2] [--rows 300] [--seconds S]

Random problems (generators/reporting.py). Changes: another seed, rows in another order, sides swapped, units
of numbers changed, a column twice, five columns of noise more. Prints the median and largest move in nats and
in half-widths of the 90 % interval.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from generators import reporting
from generators.problem import Array, Problem, Table
from records import Record, run_recorded

import nearfar as nf

SERIES = 31_031
MIN_TRUTH = 0.1  # nats: an estimate of nothing stays at zero
Pair = tuple[Table, Table]


def each_column(side: Table, change: Callable[[Array], Array]) -> Table:
    if isinstance(side, dict):
        return {name: change(column) for name, column in side.items()}
    return np.stack([change(column) for column in side.T], axis=1)


def with_columns(side: Table, columns: list[Array]) -> Table:
    if isinstance(side, dict):
        return {**side, **{f"more{k}": column for k, column in enumerate(columns)}}
    return np.column_stack([side, *columns])


def in_other_units(column: Array) -> Array:
    """Numbers times 1,000 plus 5; codes, counts and words stay."""
    whole = column.dtype.kind == "U" or bool((column == np.round(column)).all())
    return column if whole else 1000 * column + 5


def changed(x: Table, y: Table, change: str, rows: int) -> Pair:
    rng = np.random.default_rng(5)
    if change == "row order":
        order = rng.permutation(rows)
        return each_column(x, lambda c: c[order]), each_column(y, lambda c: c[order])
    if change == "swapped sides":
        return y, x
    if change == "units":
        return each_column(x, in_other_units), each_column(y, in_other_units)
    if change == "a column twice":
        first = next(iter(x.values())) if isinstance(x, dict) else x[:, 0]
        return with_columns(x, [first]), y
    if change == "five noise columns":
        return with_columns(x, list(rng.normal(size=(5, rows)))), y
    return x, y


CHANGES = ("seed 1", "seed 2", "row order", "swapped sides", "units", "a column twice", "five noise columns")


def problems(count: int) -> list[tuple[int, Problem]]:
    """The first problems with at most nine columns a side and at least 0.1 nats."""
    chosen: list[tuple[int, Problem]] = []
    for index in itertools.count():
        problem = reporting.random_problem(SERIES, index)
        if max(problem.columns) <= 9 and problem.truth >= MIN_TRUTH:
            chosen.append((index, problem))
        if len(chosen) == count:
            break
    return chosen


def measure(key: str) -> Record:
    index, rows = map(int, key.split())
    problem = reporting.random_problem(SERIES, index)
    sample = problem.sample(rows, 1)
    plain = nf.estimate_mi(sample.x, sample.y, baselines=False)
    moves = {}
    for change in CHANGES:
        seed = int(change.removeprefix("seed ")) if change.startswith("seed") else 0
        x, y = changed(sample.x, sample.y, change, rows)
        moves[change] = nf.estimate_mi(x, y, baselines=False, seed=seed).nats - plain.nats
    return {
        "problem": problem.name,
        "truth": problem.truth,
        "nats": plain.nats,
        "interval": plain.interval,
        "moves": moves,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", default=Path("runs/benchmarks/stability.jsonl"))
    parser.add_argument("--problems", type=int, default=2)
    parser.add_argument("--rows", default="300")
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    chosen = problems(args.problems)
    for rows in args.rows.split(","):
        keys = [f"{index} {rows}" for index, _ in chosen]
        records = run_recorded(args.file, keys, measure, args.seconds)
        half = np.array([(r["interval"][1] - r["interval"][0]) / 2 for r in records])
        print(f"\n{rows} rows, {len(records)} problems\n")
        print("| change | median move, nats | largest | median, half-widths | largest |")
        print("|---|---|---|---|---|")
        for change in CHANGES:
            move = np.abs([record["moves"][change] for record in records])
            relative = move / half
            print(
                f"| {change} | {np.median(move):.4f} | {move.max():.3f} | {np.median(relative):.2f} | "
                f"{relative.max():.2f} |"
            )


if __name__ == "__main__":
    main()
