"""Which candidate ratios of the estimator earn their place? Backward elimination over calibration problems.

    python benchmarks/ablation.py FOLDER [--samples 300:60,1000:24] [--named 3] [--remove NAME,NAME]

Every candidate is fitted once per problem, between all columns and between every block of columns: log ratios of
rows left out of the fit give the weights, log ratios of fresh rows the value. Both are stored in FOLDER, and a
second run continues. Stacks without a candidate are then made from the stored numbers alone. The loss of a stack is
the mean exact log ratio of fresh rows less its own, divided by max(truth, 0.25). A round removes the candidates
whose removal raises the mean loss by at most one standard error over problems and by at most MAX_RISE, the most
useless first. Candidates that differ in which side they predict stand or fall together.
"""

import argparse
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from generators import calibration
from hard_problems import hard_problems
from problems import Problem, problems
from random_problems import random_problems
from scipy.special import logsumexp

from nearfar.errors import UserError
from nearfar.estimate.ratios import SideMap
from nearfar.estimate.ratios.blocks import find_blocks
from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.ratios.stack import (
    CANDIDATES,
    UnseenRows,
    _clip,
    _compete,
    _split_halves,
    mixture_weights,
)
from nearfar.estimate.samples import check_pair, drop_shared_columns
from nearfar.estimate.settings import MIN_WEIGHT
from nearfar.system.hardware import one_thread

SERIES = 5  # of calibration problems; intervals are calibrated on another
FRESH_ROWS = 2000
MIN_TRUTH = 0.25  # nats: losses of weaker dependence are divided by this
IDLE_WEIGHT = 1e-3  # removing a candidate of less weight changes nothing
MAX_RISE = 0.0015  # of the mean relative loss, by one removal
MAX_REMOVED = 0.15  # share of the candidates per round
BLOCKS = "blocks of columns"

Sides = tuple[SideRows, SideRows]


@dataclass(frozen=True)
class Part:
    """All columns, or a block of them: log ratios of each candidate."""

    names: list[str]
    unseen: np.ndarray  # (row left out, candidate)
    fresh: np.ndarray  # (fresh row, candidate)
    seconds: np.ndarray

    def mixture(self, candidates: set[str]) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Log ratios of rows left out and of fresh rows under the stack of these candidates, and its weights."""
        chosen = [k for k, name in enumerate(self.names) if name in candidates]
        if not chosen:
            return np.zeros(len(self.unseen)), np.zeros(len(self.fresh)), {}
        unseen = np.column_stack([np.zeros(len(self.unseen)), self.unseen[:, chosen]])
        fresh = np.column_stack([np.zeros(len(self.fresh)), self.fresh[:, chosen]])
        weights = mixture_weights(unseen)
        by_name = {self.names[k]: float(w) for k, w in zip(chosen, weights[1:], strict=True)}
        weights[1:] *= weights[1:] >= MIN_WEIGHT
        weights[0] = max(weights[0], 3 / (3 + len(unseen)))
        if weights[1:].sum() == 0:
            return np.zeros(len(unseen)), np.zeros(len(fresh)), by_name
        weights[1:] *= (1 - weights[0]) / weights[1:].sum()
        with np.errstate(divide="ignore"):
            values = [logsumexp(table + np.log(weights), axis=1) for table in (unseen, fresh)]
        return values[0], values[1], by_name


@dataclass(frozen=True)
class Fitted:
    """A problem: all columns first, then every block."""

    parts: list[Part]
    oracle: float

    def value(self, candidates: set[str]) -> tuple[float, set[str]]:
        """Mean log ratio of fresh rows under the whole stack, and which candidates have weight in it."""
        whole, *blocks = self.parts
        used: set[str] = set()
        if blocks:
            mixtures = [block.mixture(candidates) for block in blocks]
            unseen = np.sum([m[0] for m in mixtures], axis=0)
            fresh = np.sum([m[1] for m in mixtures], axis=0)
            used |= {name for m in mixtures for name, w in m[2].items() if w >= IDLE_WEIGHT}
            whole = Part(
                [*whole.names, BLOCKS],
                np.column_stack([whole.unseen, unseen]),
                np.column_stack([whole.fresh, fresh]),
                whole.seconds,
            )
        _, fresh, weights = whole.mixture(candidates | {BLOCKS})
        return float(fresh.mean()), used | {name for name, w in weights.items() if w >= IDLE_WEIGHT}


def fit_part(train: Sides, fresh: Sides, halves: tuple[np.ndarray, np.ndarray]) -> Part:
    sides = [(train[0][rows], train[1][rows]) for rows in halves]
    unseen = [UnseenRows.of(*train, rows) for rows in halves[::-1]]
    names, unseen_values, fresh_values, seconds = [], [], [], []
    for name, fit in CANDIDATES.items():
        start = time.process_time()
        entry = _compete(fit, train, sides, unseen, 0, np.full(len(unseen[0]), -1e9))
        ratio = None if entry is None else entry.refit()
        if entry is not None and ratio is not None:
            names.append(name)
            unseen_values.append(entry.values)
            seconds.append(time.process_time() - start)
            fresh_values.append(_clip(ratio.pairs(*fresh)) - entry.excess)
    empty = np.empty((len(train[0]), 0)), np.empty((len(fresh[0]), 0))
    return Part(
        names,
        np.column_stack([empty[0], *unseen_values]),
        np.column_stack([empty[1], *fresh_values]),
        np.array(seconds),
    )


@cache
def named_problems() -> dict[str, Problem]:
    """The problems of earlier benchmarks, mostly of one or two columns a side."""
    every = [*problems(), *random_problems(20, 1), *(problem for problem, _ in hard_problems())]
    return {problem.name: problem for problem in every}


def fit_problem(name: str, rows: int) -> Fitted:
    """Every candidate fitted to 4/5 of the rows, as in a fold of the estimator."""
    train = 4 * rows // 5
    if name.isdigit():
        sample = calibration.random_problem(SERIES, int(name)).sample(train + FRESH_ROWS, 1)
        pair, oracle = check_pair(sample.x, sample.y), float(sample.log_ratio[train:].mean())
    else:
        problem = named_problems()[name]
        rng = np.random.default_rng([rows, zlib.crc32(name.encode())])
        x, y = problem.make(rng, train + FRESH_ROWS)
        pair, oracle = check_pair(x, y, problem.options.get("discrete", "auto")), problem.truth
    pair = drop_shared_columns(pair)
    maps = [SideMap.fit(side[:train], kind) for side, kind in zip((pair.x, pair.y), pair.kinds, strict=True)]
    fitted, fresh = (
        (maps[0](pair.x[part]), maps[1](pair.y[part])) for part in (slice(0, train), slice(train, None))
    )
    halves = _split_halves(np.arange(train), 0)
    parts = [fit_part(fitted, fresh, halves)]
    for block in find_blocks(*fitted):
        parts.append(fit_part(block.select(*fitted), block.select(*fresh), halves))
    return Fitted(parts, oracle)


def load_or_fit(name: str, rows: int, folder: Path) -> Fitted:
    file = (
        folder / f"{zlib.crc32(name.encode()):08x}-{rows}-{zlib.crc32(' '.join(CANDIDATES).encode()):08x}.npz"
    )
    if not file.exists():
        with one_thread():
            fitted = fit_problem(name, rows)
        arrays = {"oracle": np.array(fitted.oracle)}
        for k, part in enumerate(fitted.parts):
            arrays |= {
                f"names{k}": np.array(part.names, dtype=str),
                f"unseen{k}": part.unseen.astype("f4"),
                f"fresh{k}": part.fresh.astype("f4"),
                f"seconds{k}": part.seconds,
            }
        np.savez(file, allow_pickle=False, **arrays)
    with np.load(file) as stored:
        count = sum(name.startswith("names") for name in stored)
        parts = [
            Part(
                [str(name) for name in stored[f"names{k}"]],
                stored[f"unseen{k}"].astype(float),
                stored[f"fresh{k}"].astype(float),
                stored[f"seconds{k}"],
            )
            for k in range(count)
        ]
        return Fitted(parts, float(stored["oracle"]))


def unit(name: str) -> str:
    """Candidates that are each other's mirror image are one unit."""
    return (
        name.replace("x of y", "y of x")
        .replace("of x round y", "of y round x")
        .replace("classes of x", "classes of y")
    )


def eliminate(problems: list[Fitted], candidates: set[str]) -> None:
    oracle = np.array([problem.oracle for problem in problems])
    scale = np.maximum(oracle, MIN_TRUTH)
    seconds: dict[str, float] = {}
    for problem in problems:
        for part in problem.parts:
            for name, spent in zip(part.names, part.seconds, strict=True):
                seconds[unit(name)] = seconds.get(unit(name), 0.0) + float(spent) / len(problems)
    remaining = set(candidates)
    while True:
        base = [problem.value(remaining) for problem in problems]
        units = sorted({unit(name) for name in remaining})
        change = {}
        for candidate in units:
            members = {name for name in remaining if unit(name) == candidate}
            loss = np.array(
                [
                    value - problem.value(remaining - members)[0] if used & members else 0.0
                    for problem, (value, used) in zip(problems, base, strict=True)
                ]
            )
            loss /= scale
            change[candidate] = (
                float(loss.mean()),
                float(loss.std(ddof=1) / np.sqrt(len(loss))),
                float(loss.max()),
            )
        error = (oracle - np.array([value for value, _ in base])) / scale
        total = sum(seconds.get(name, 0.0) for name in units)
        print(
            f"\n{len(units)} candidates: mean relative loss {error.mean():.4f}, median {np.median(error):.4f}, "
            f"{total:.3f} CPU-seconds"
        )
        for candidate, (mean, spread, largest) in sorted(change.items(), key=lambda item: -item[1][0]):
            print(
                f"  without {candidate:<34}{mean:+.5f} ± {spread:.5f}  most {largest:+.3f}  "
                f"{1000 * seconds.get(candidate, 0.0):.1f} ms"
            )
        removable = sorted(
            (name for name in units if change[name][0] <= min(change[name][1], MAX_RISE)),
            key=lambda name: change[name][0] - 1e-4 * seconds.get(name, 0.0),
        )
        if not removable:
            return
        dropped = removable[: max(1, int(len(units) * MAX_REMOVED))]
        print("removed:", ", ".join(dropped), flush=True)
        remaining = {name for name in remaining if unit(name) not in dropped}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", default="300:60,1000:24", help="rows:number of random problems, ...")
    parser.add_argument(
        "--named",
        type=int,
        default=3,
        help="also every so many of the named ones, with the first rows; 0 for none",
    )
    parser.add_argument("--remove", default="", help="candidates that are left out from the start")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = [tuple(map(int, pair.split(":"))) for pair in options.samples.split(",")]
    tasks = [(str(index), rows) for rows, count in sizes for index in range(count)]
    if options.named:
        tasks += [(name, sizes[0][0]) for name in list(named_problems())[:: options.named]]
    fitted = []
    for name, rows in tasks:
        try:
            fitted.append(load_or_fit(name, rows, options.folder))
        except UserError as error:
            print(f"{name}, {rows} rows: {error}")
    eliminate(fitted, {name for name in CANDIDATES if name not in options.remove.split(",")})


if __name__ == "__main__":
    main()
