"""Calibrates the interval on random problems (generators/calibration.py); writes calibration.json.

    python benchmarks/calibrate_interval.py FILE.jsonl [--samples 300:200,1000:50] [--seconds S] [--write]

`--samples` lists numbers of rows, and of problems for each.

Each line of FILE is one sample: what the folds showed (`FoldSummary`). Truths are kept in FILE.truths, for any number
of rows and version of the estimator. The same command continues. From them follow, in this order,


1. the signs that `above` may use: those with the smallest mean interval score (Gneiting & Raftery 2007) over five
   folds of problems,
2. `below` and `above`: coefficients of the signs of what may be missing, for quantiles of the error on either side, by
   quantile regression (Koenker & Bassett 1978), none negative, that of the sampling error at least 1,
3. `factors`: for each confidence the factor of both at which that share of the problems is covered (conformalised
   quantile regression, Romano et al. 2019).

Factors are those of problems under coefficients that did not see them (five folds of problems). Prints coverage and
width by another such cross-validation around all of it, the choice of the signs included. `--write` stores the result
in the package.
"""

import argparse
import json
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from generators import calibration
from records import Record, run_recorded, share
from scipy import sparse
from scipy.optimize import linprog

from nearfar.estimate import interval
from nearfar.estimate.crossfit import cross_fit
from nearfar.estimate.interval import Calibration, FoldSummary, Signs, estimate_from
from nearfar.estimate.samples import check_pair, drop_shared_columns

SERIES = 9  # seed of the series of problems; ablation uses another
TARGET = Path(interval.__file__).with_name("calibration.json")
BELOW = ("error", "learning", "share")
QUANTILE_BELOW = 0.95  # of errors that `below` follows: few estimates are too high
SIGNS_ABOVE = (
    ("error", "learning"),
    ("error", "learning", "ksg"),
    ("error", "learning", "ksg", "width"),
    ("error", "learning", "share", "ksg", "width"),
    ("error", "learning", "fit", "share", "ksg", "rows", "width"),
)
QUANTILE_ABOVE = 0.8
MIN_TRUTH = 0.25  # nats: interval scores of weaker dependence are divided by this
FOLDS = 5
CONFIDENCES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
MIN_ERROR = 0.02  # nats, added to every standard error
STATEMENT = (
    "Of {problems} samples of {rows} rows from the random problems of benchmarks/generators/calibration.py, the interval "
    "of confidence c contains the truth in a share c. It is a statement about such "
    "problems, not about each of them; the claim that holds for every problem is at_least."
)


def measure(key: str) -> Record:
    index, rows = key.split()
    problem = calibration.random_problem(SERIES, int(index))
    sample = problem.sample(int(rows), 1)
    pair = drop_shared_columns(check_pair(sample.x, sample.y))
    return {
        **asdict(interval.summarise(cross_fit(pair, 5, 0))),
        "problem": problem.name,
        "kind": problem.kind,
        "width": problem.width,
        "oracle": float(sample.log_ratio.mean()),
    }


def measure_truth(key: str) -> Record:
    return {"truth": calibration.random_problem(SERIES, int(key)).truth}


def quantile_regression(signs: np.ndarray, target: np.ndarray, quantile: float) -> np.ndarray:
    """Coefficients that minimise quantile |e|+ + (1 - quantile) |e|-, e = target - signs @ c.

    None is negative, and the first, of the sampling error, is at least 1.
    """
    rows, count = signs.shape
    cost = np.r_[np.full(count, 1e-9), np.full(rows, quantile), np.full(rows, 1 - quantile)]
    equal = sparse.hstack([sparse.csc_array(signs), sparse.eye_array(rows), -sparse.eye_array(rows)])
    bounds = [(1.0, None)] + [(0.0, None)] * (len(cost) - 1)
    return linprog(cost, A_eq=equal, b_eq=target, bounds=bounds, method="highs").x[:count]


def table(signs: list[Signs], names: tuple[str, ...]) -> np.ndarray:
    return np.array([[asdict(sign)[name] for name in names] for sign in signs])


def fit_coefficients(records: list[Record], signs_above: tuple[str, ...]) -> Calibration:
    summaries = [FoldSummary.from_json(record) for record in records]
    signs = [Signs.of(summary) for summary in summaries]
    truth = np.array([record["truth"] for record in records])
    held_out = np.array([summary.held_out for summary in summaries])
    # errors count in standard errors, so that problems that can be solved decide
    weight = 1 / (MIN_ERROR + np.array([summary.error for summary in summaries]))

    def regress(names: tuple[str, ...], target: np.ndarray, quantile: float) -> dict[str, float]:
        values = quantile_regression(table(signs, names) * weight[:, None], target * weight, quantile)
        return {
            name: round(float(value), 4) for name, value in zip(names, values, strict=True) if value > 5e-5
        }

    error = truth - np.maximum(0.0, held_out + table(signs, ("learning",))[:, 0])
    below, above = regress(BELOW, -error, QUANTILE_BELOW), regress(signs_above, error, QUANTILE_ABOVE)
    return Calibration(below, above, CONFIDENCES, ())


def score(record: Record, coefficients: Calibration) -> float:
    """The factor at which the interval just reaches the truth."""
    unit_factor = replace(coefficients, confidences=(0.9,), factors=(1.0,))
    result = estimate_from(FoldSummary.from_json(record), 0.9, unit_factor)
    down, up = result.half_widths
    distance = record["truth"] - result.nats
    return distance / up if distance > 0 else -distance / down


def problem_folds(records: list[Record]) -> list[tuple[list[Record], list[Record]]]:
    """Records to learn from, and the others; all samples of a problem are on one side."""
    problems = sorted({record["problem"] for record in records})
    folds = []
    for k in range(FOLDS):
        rest = set(problems[k::FOLDS])
        folds.append(
            (
                [record for record in records if record["problem"] not in rest],
                [record for record in records if record["problem"] in rest],
            )
        )
    return folds


def calibrate(records: list[Record], signs_above: tuple[str, ...]) -> Calibration:
    scores: list[float] = []
    for train, rest in problem_folds(records):
        coefficients = fit_coefficients(train, signs_above)
        scores += [score(record, coefficients) for record in rest]
    ranks = [min(len(scores), int(np.ceil((len(scores) + 1) * c))) for c in CONFIDENCES]
    factors = tuple(round(float(np.sort(scores)[rank - 1]), 3) for rank in ranks)
    return replace(fit_coefficients(records, signs_above), factors=factors)


def interval_score(record: Record, fitted: Calibration) -> float:
    """Width of the 90 % interval, plus 2 / 0.1 of the distance to a truth outside it, relative to the truth."""
    low, high = estimate_from(FoldSummary.from_json(record), 0.9, fitted).interval
    truth = record["truth"]
    missed = max(0.0, low - truth, truth - high)
    high = min(high, 2 * np.log(record["units"]))  # an interval without an end says no more than this
    return float((high - low + 20 * missed) / max(truth, MIN_TRUTH))


def choose_signs(records: list[Record]) -> tuple[str, ...]:
    folds = problem_folds(records)

    def mean_score(signs_above: tuple[str, ...]) -> float:
        parts = [(calibrate(train, signs_above), rest) for train, rest in folds]
        return float(np.mean([interval_score(record, fitted) for fitted, rest in parts for record in rest]))

    return min(SIGNS_ABOVE, key=mean_score)


def report(records: list[Record]) -> None:
    """Coverage and width of intervals calibrated on four fifths of the problems, on the last fifth."""
    results = []
    for train, rest in problem_folds(records):
        fitted = calibrate(train, choose_signs(train))
        results += [(record, estimate_from(FoldSummary.from_json(record), 0.9, fitted)) for record in rest]
    groups = {("all", ""): results}
    for record, result in results:
        groups.setdefault((record["kind"], record["width"]), []).append((record, result))
        groups.setdefault((f"{record['units']} rows", ""), []).append((record, result))
    print("kind, width: covered; median width; median error, of the held-out mean, of the oracle")
    for (kind, width), group in sorted(groups.items()):
        covered = [r.interval[0] <= record["truth"] <= r.interval[1] for record, r in group]
        widths = [r.interval[1] - r.interval[0] for _, r in group]
        errors = [abs(r.nats - record["truth"]) for record, r in group]
        held_out = [abs(max(0.0, record["held_out"]) - record["truth"]) for record, _ in group]
        oracle = [abs(record["oracle"] - record["truth"]) for record, _ in group]
        print(
            f"{kind:<8} {width:<11} {share(covered):<32} {np.median(widths):.3f}  {np.median(errors):.3f}  "
            f"{np.median(held_out):.3f}  {np.median(oracle):.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--samples", default="300:200,1000:50")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    sizes = [pair.split(":") for pair in args.samples.split(",")]
    keys = [f"{index} {rows}" for rows, problems in sizes for index in range(int(problems))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = run_recorded(args.file, keys, measure, args.seconds)
    problems = dict.fromkeys(record["key"].split()[0] for record in samples)
    truths = run_recorded(args.file.with_suffix(".truths"), problems, measure_truth)
    truth = {record["key"]: record["truth"] for record in truths}
    records = [{**record, "truth": truth[record["key"].split()[0]]} for record in samples if record["fitted"]]
    report(records)
    fitted = calibrate(records, choose_signs(records))
    rows = " and ".join(rows for rows, _ in sizes)
    stored = {
        "command": f"python benchmarks/calibrate_interval.py FILE --samples {args.samples} --write",
        "statement": STATEMENT.format(problems=len(records), rows=rows),
        **asdict(fitted),
    }
    print(json.dumps(stored, indent=1))
    if args.write:
        TARGET.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
