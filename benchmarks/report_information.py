"""Coverage and accuracy of `nf.estimate_mi` on random problems that nothing was calibrated on
(generators/reporting.py).

    python benchmarks/report_information.py [FILE.jsonl] [--problems 10] [--rows 300] [--seconds S]

Each line of FILE is one sample: what the folds showed. The same command continues. Estimates and intervals are made of
it when the table is printed, so that another calibration needs no other fit. `--seconds` ends early; what is there is
reported. Truths are the dear part: they are kept in FILE.truths (or `--truths`), for any number of rows and
version of the estimator. `--generator calibration` takes the other generator. Prints coverage overall and by
kind × width, the share of problems nearer to the truth than KSG and than the best of KSG, CCA and plug-in,
and the median error beside the oracle's.
"""

import argparse
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
from generators import calibration, reporting
from generators.problem import Array, Problem, numbers
from records import Record, run_recorded, share

import nearfar as nf
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.crossfit import cross_fit, independence_p_value
from nearfar.estimate.interval import FoldSummary, estimate_from, summarise
from nearfar.estimate.mi import infonce_limit
from nearfar.estimate.samples import check_pair, drop_shared_columns

SERIES = 20_270  # seed of the reported series; no other program uses it
MAX_LEVELS = 32  # of a column that the plug-in takes as it is
ROUNDING = 1e-9


def plug_in(x: Array, y: Array) -> float:
    """Information of the joint table; columns of many values in n^(1/3) bins of equal frequency."""
    codes = []
    for side in (x, y):
        columns = []
        for column in side.T:
            if len(np.unique(column)) > MAX_LEVELS:
                edges = np.quantile(column, np.linspace(0, 1, round(len(column) ** (1 / 3)) + 1)[1:-1])
                column = np.digitize(column, edges)
            columns.append(column)
        codes.append(np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].ravel())

    def entropy(labels: Array) -> float:
        share = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(-(share * np.log(share)).sum())

    return entropy(codes[0]) + entropy(codes[1]) - entropy(codes[0] * (codes[1].max() + 1) + codes[1])


def random_problem(generator: str, index: str) -> Problem:
    module = {"reporting": reporting, "calibration": calibration}[generator]
    return module.random_problem(SERIES, int(index))


def measure_truth(key: str) -> Record:
    problem = random_problem(*key.split())
    return {"truth": problem.truth, "truth_error": problem.truth_error}


def measure(key: str, truths: dict[str, float]) -> Record:
    generator, index, rows = key.split()
    problem = random_problem(generator, index)
    sample = problem.sample(int(rows), 1)
    start = time.process_time()
    try:
        pair = drop_shared_columns(check_pair(sample.x, sample.y))
    except nf.UserError as refusal:
        return {"problem": problem.name, "rows": int(rows), "refused": str(refusal)}
    fit = cross_fit(pair, 5, 0)
    summary, limit = summarise(fit), infonce_limit(fit.folds, 0.95)
    seconds = time.process_time() - start
    x, y = numbers(sample.x), numbers(sample.y)
    varying = [side[:, np.ptp(side, axis=0) > 0] for side in (x, y)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ksg = ksg_information(varying[0], varying[1])
        cca = gaussian_information(varying[0], varying[1])
    return {
        "problem": problem.name,
        "kind": problem.kind,
        "width": problem.width,
        "columns": problem.columns,
        "rows": int(rows),
        "truth": truths[f"{generator} {index}"],
        "oracle": float(sample.log_ratio.mean()),
        "summary": asdict(summary),
        "at_least": limit,
        "p": independence_p_value(fit.folds),
        "ksg": ksg,
        "cca": cca,
        "plug-in": plug_in(x, y),
        "seconds": seconds,
    }


def with_estimate(record: Record) -> Record:
    """Adds the estimate and its 90 % interval, by the calibration in the package."""
    if "refused" in record:
        return record
    result = estimate_from(FoldSummary.from_json(record["summary"]), 0.9)
    return {**record, "nats": result.nats, "low": result.interval[0], "high": result.interval[1]}


def error(record: Record, name: str = "nats") -> float:
    return abs(record[name] - record["truth"])


def covered(record: Record) -> bool:
    return bool(record["low"] <= record["truth"] + ROUNDING and record["truth"] <= record["high"] + ROUNDING)


def report(every_record: list[Record]) -> None:
    records = [record for record in every_record if "refused" not in record]
    for record in every_record:
        if "refused" in record:
            print(f"refused: {record['problem']}, {record['rows']} rows: {record['refused']}")
    for rows in sorted({record["rows"] for record in records}):
        group = [record for record in records if record["rows"] == rows]
        errors = np.array([error(record) for record in group])
        oracle = np.array([error(record, "oracle") for record in group])
        rivals = np.array([[error(record, name) for name in ("ksg", "cca", "plug-in")] for record in group])
        print(f"\n{rows} rows, {len(group)} problems")
        print(f"  90 % interval contains the truth: {share(covered(record) for record in group)}")
        misses = [record for record in group if not covered(record)]
        low = sum(record["high"] < record["truth"] for record in misses)
        print(f"  of {len(misses)} misses {low} end below the truth")
        print(f"  at_least above the truth: {share(r['at_least'] > r['truth'] + ROUNDING for r in group)}")
        print(f"  nearer than KSG: {share(errors < rivals[:, 0])}")
        print(f"  nearer than the best of KSG, CCA and plug-in: {share(errors < np.nanmin(rivals, axis=1))}")
        print(
            f"  median error {np.median(errors):.4f}, of the oracle {np.median(oracle):.4f} "
            f"({np.median(errors) / max(np.median(oracle), 1e-9):.2f} ×), of KSG {np.median(rivals[:, 0]):.4f}"
        )
        print(
            f"  mean error {errors.mean():.4f}, of the oracle {oracle.mean():.4f}, of KSG "
            f"{np.nanmean(rivals[:, 0]):.4f}; CPU-seconds: median {np.median([r['seconds'] for r in group]):.1f}, "
            f"largest {max(r['seconds'] for r in group):.1f}"
        )
        widths = np.array([record["high"] - record["low"] for record in group])
        print(f"  median width of the interval {np.median(widths):.3f}")
        print(
            "  | kind | width | contains the truth | nearer than KSG | median error | oracle's | interval |"
        )
        print("  |---|---|---|---|---|---|---|")
        for kind, width in sorted({(record["kind"], record["width"]) for record in group}):
            chosen = [k for k, r in enumerate(group) if (r["kind"], r["width"]) == (kind, width)]
            inside = share(covered(group[k]) for k in chosen)
            nearer = share(bool(errors[k] < rivals[k, 0]) for k in chosen).split(" (")[0]
            print(
                f"  | {kind} | {width} | {inside} | {nearer} | {np.median(errors[chosen]):.3f} | "
                f"{np.median(oracle[chosen]):.3f} | {np.median(widths[chosen]):.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", default=Path("runs/benchmarks/report.jsonl"))
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--rows", default="300")
    parser.add_argument("--truths", type=Path)
    parser.add_argument("--generator", choices=("reporting", "calibration"), default="reporting")
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    truth_keys = [f"{args.generator} {k}" for k in range(args.problems)]
    truths = {
        record["key"]: record["truth"]
        for record in run_recorded(args.truths or args.file.with_suffix(".truths"), truth_keys, measure_truth)
    }
    keys = [f"{key} {rows}" for rows in args.rows.split(",") if rows for key in truth_keys]
    records = run_recorded(args.file, keys, lambda key: measure(key, truths), args.seconds)
    report([with_estimate(record) for record in records])


if __name__ == "__main__":
    main()
