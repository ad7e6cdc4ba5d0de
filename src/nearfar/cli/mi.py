"""`nearfar mi`: mutual information of two samples from files, or of every column of a table about a
target."""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.core.tables import text_table
from nearfar.errors import UserError, counted
from nearfar.system.files import check_output


def add(commands: Any) -> None:
    mi = commands.add_parser(
        "mi",
        help="estimate mutual information: best estimate, interval, proven lower bound",
        usage="nearfar mi X Y [options] | nearfar mi TABLE --target COLUMN [options] | nearfar mi TABLE --matrix [options]",
        description="Mutual information of two samples: row i of X belongs to row i of Y. Files are .npy, "
        ".npz, .csv or .parquet; FILE:NAME takes one array or column, FILE:a,b several. With --target, "
        "every column of TABLE is ranked by its information about that column. Text is a category; rows "
        "with missing values are dropped, with a note.",
    )
    mi.add_argument("x", metavar="X", help="file of one sample, or a table")
    mi.add_argument("y", metavar="Y", nargs="?", help="file of the other sample")
    mi.add_argument(
        "--target", metavar="COLUMN", help="rank the columns of X by their information about this one"
    )
    mi.add_argument("--matrix", action="store_true", help="all pairs of columns of X")
    mi.add_argument("--given", metavar="FILE:NAME", help="condition on this sample: I(X; Y | GIVEN)")
    mi.add_argument("--lags", metavar="A:B", help="X and Y are series: I(x_t; y_(t+lag)) for lags A to B")
    mi.add_argument(
        "--bound",
        default="auto",
        help="auto (best estimate), infonce, ml-cpc, alpha-cpc, nwj, tuba, dv, mine, smile, uba, barber-agakov",
    )
    mi.add_argument(
        "--alpha", type=float, help="alpha of ml-cpc (default: the smallest proven) and alpha-cpc"
    )
    mi.add_argument(
        "--critic",
        default="auto",
        help="auto (a mixture of density ratios), separable, joint, hybrid, bilinear (default auto)",
    )
    mi.add_argument(
        "--negatives",
        default="batch",
        help="negatives of each row: batch, or independent (covered by more proofs) (default batch)",
    )
    mi.add_argument(
        "--scaling",
        default="rank",
        help="how columns are scaled for networks: rank, standard, none (default rank)",
    )
    mi.add_argument(
        "--discrete",
        default="auto",
        help="which columns are categories: auto, all, none, x, y (default auto)",
    )
    mi.add_argument(
        "--groups", metavar="FILE:NAME", help="a group per row; rows of one group may depend on one another"
    )
    mi.add_argument("--folds", type=int, help="cross-validation folds (default 5; 3 to rank)")
    mi.add_argument(
        "--splits",
        type=int,
        default=1,
        help="random splits into folds over which the estimate is averaged (1)",
    )
    mi.add_argument("--confidence", type=float, default=0.9, help="confidence of the interval (default 0.9)")
    mi.add_argument("--seed", type=int, default=0, help="random seed of splits and fits (default 0)")
    mi.add_argument("--no-baselines", action="store_true", help="leave out the KSG and Gaussian estimates")
    mi.add_argument(
        "--check",
        action="store_true",
        help="test laws of information, such as symmetry, on these data instead (7 estimates)",
    )
    mi.add_argument(
        "--rows",
        type=Path,
        metavar="FILE.csv",
        help="write log p(x, y) / p(x) p(y) of every row to this file instead",
    )
    mi.add_argument("--plot", type=Path, metavar="FILE", help="plot the result (.svg, .png or .pdf)")
    mi.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    mi.set_defaults(command=run)


MAX_PAIRS = 30  # printed
BOUND_OPTIONS = ("bound", "alpha", "critic", "negatives", "scaling")
# options without effect, per mode; the modes in order of precedence
UNUSED: dict[str, tuple[str, ...]] = {
    "matrix": (
        *BOUND_OPTIONS,
        *("y", "target", "given", "lags", "check", "rows", "groups", "confidence", "no_baselines"),
    ),
    "target": ("y", "given", "lags", "check", "rows", "no_baselines"),
    "check": ("given", "lags", "rows", "plot", "no_baselines"),
    "given": (*BOUND_OPTIONS, "lags", "rows", "plot", "no_baselines"),
    "lags": ("groups", "rows", "no_baselines"),
    "rows": (*BOUND_OPTIONS, "confidence", "plot", "no_baselines"),
}
DEFAULTS: dict[str, Any] = {
    "bound": "auto",
    "critic": "auto",
    "negatives": "batch",
    "scaling": "rank",
    "confidence": 0.9,
    "check": False,
    "no_baselines": False,
}


def run(options: argparse.Namespace) -> int:
    _check_outputs(options)
    values = vars(options)
    mode = next((name for name in UNUSED if values[name] not in (None, False)), None)
    for name in UNUSED[mode] if mode else ():
        if values[name] != DEFAULTS.get(name):
            option = "Y" if name == "y" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} has no effect with --{mode}; leave it out")
    if mode == "matrix":
        return _matrix(options)
    if mode == "target":
        return _rank(options)
    if options.y is None:
        raise UserError(
            "Y is missing; name a second file, or --target COLUMN to rank the columns of the first"
        )
    from nearfar.estimate.read import read_pair

    x, y, notes = read_pair(options.x, options.y)
    modes = {"check": _check, "given": _conditional, "lags": _lags, "rows": _rows, None: _estimate}
    return modes[mode](options, x, y, notes)


def _check_outputs(options: argparse.Namespace) -> None:
    inputs = [side.partition(":")[0] for side in (options.x, options.y, options.given) if side]
    for option, file in (("rows", options.rows), ("plot", options.plot)):
        if file is None:
            continue
        check_output(f"--{option}", file, inputs)
        if not file.parent.is_dir():
            raise UserError(
                f"--{option} was {file}, but the folder {file.parent} was not found; make it first"
            )
    if options.plot is not None and options.plot.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"--plot was {options.plot}; it must end in .svg, .png or .pdf")


def _estimate_options(options: argparse.Namespace) -> dict[str, Any]:
    from nearfar.estimate.bound_choice import named_bound

    return {
        "bound": named_bound(options.bound, options.alpha),
        "critic": options.critic,
        "negatives": options.negatives,
        "scaling": options.scaling,
        **_common_options(options),
    }


def _common_options(options: argparse.Namespace) -> dict[str, Any]:
    from nearfar.estimate.read import read_labels

    folds = {} if options.folds is None else {"folds": options.folds}
    groups = {} if options.groups is None else {"groups": read_labels(options.groups)}
    return {
        "discrete": options.discrete,
        "confidence": options.confidence,
        "seed": options.seed,
        "splits": options.splits,
        **folds,
        **groups,
    }


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}")


def _print_warnings(warnings: Mapping[str, tuple[str, ...]]) -> None:
    """Prints every distinct warning once, with the names it concerns unless it concerns all."""
    names_of: dict[str, list[str]] = {}
    for name, sentences in warnings.items():
        for sentence in sentences:
            names_of.setdefault(sentence, []).append(name)
    for sentence, names in names_of.items():
        prefix = "" if len(names) == len(warnings) else f"{', '.join(names)}: "
        print(f"warning: {prefix}{sentence}")


def _with_notes(answer: dict[str, Any], notes: list[str]) -> str:
    return json.dumps({**answer, "warnings": [*notes, *answer["warnings"]]})


def _estimate(options: argparse.Namespace, x: Any, y: Any, notes: list[str]) -> int:
    from nearfar.estimate.mi import estimate_mi

    estimate = estimate_mi(x, y, baselines=not options.no_baselines, **_estimate_options(options))
    if options.plot is not None:
        from nearfar.system.files import write_figure

        write_figure(estimate.plot(), options.plot)
    if options.json:
        print(_with_notes(estimate.as_json(), notes))
    else:
        print(estimate)
        _print_notes(notes)
    return DONE


def _rank(options: argparse.Namespace) -> int:
    from nearfar.estimate.read import read_table
    from nearfar.estimate.table import rank_columns

    table, empty = read_table(options.x, options.target)
    ranked = rank_columns(table, options.target, **_estimate_options(options))
    estimated = {options.target, *(column.column for column in ranked)}
    left_out = {"empty": empty, "the same in every row": [name for name in table if name not in estimated]}
    if options.plot is not None:
        from nearfar.estimate.plot import draw_ranking

        draw_ranking(ranked, options.target, options.plot)
    if options.json:
        reasons = {name: reason for reason, names in left_out.items() for name in names}
        columns = [column.as_json() for column in ranked]
        print(json.dumps({"target": options.target, "columns": columns, "left_out": reasons}))
        return DONE
    rows = [["column", "nats", f"{options.confidence:.0%} interval", "at least", "corrected p"]]
    for column in ranked:
        estimate, at_least = column.estimate, float(column.estimate.at_least)
        numbers = [
            f"{estimate.nats:.4f}",
            estimate.interval_text(),
            f"{at_least:.4f}",
            f"{column.p_value:.2g}",
        ]
        rows.append([column.column, *numbers])
    print(*text_table(rows, numbers=True), sep="\n")
    _print_notes(
        [
            f"p for independence, corrected for {counted(len(ranked), 'columns')}",
            *(f"left out, {reason}: {', '.join(names)}" for reason, names in left_out.items() if names),
        ]
    )
    _print_warnings({column.column: column.estimate.warnings for column in ranked})
    return DONE


def _matrix(options: argparse.Namespace) -> int:
    from nearfar.estimate.matrix import mi_matrix
    from nearfar.estimate.read import read_table

    table, empty = read_table(options.x)
    folds = {} if options.folds is None else {"folds": options.folds}
    pairs = mi_matrix(table, discrete=options.discrete, seed=options.seed, **folds)
    if options.plot is not None:
        from nearfar.system.files import write_figure

        write_figure(pairs.plot(), options.plot)
    left_out = {**dict.fromkeys(empty, "empty"), **pairs.left_out}
    if options.json:
        print(json.dumps({**pairs.as_json(), "left_out": left_out}))
        return DONE
    printed_pairs = min(len(pairs), MAX_PAIRS)
    rows = [["x", "y", "nats", "corrected p", "estimated by"]]
    for k in range(printed_pairs):
        estimator = "cross-fitted ratios" if pairs.refined[k] else "screening"
        rows.append([pairs.x[k], pairs.y[k], f"{pairs.nats[k]:.4f}", f"{pairs.p_value[k]:.2g}", estimator])
    print(*text_table(rows), sep="\n")
    if printed_pairs < len(pairs):
        print(f"{printed_pairs} of {len(pairs):,} pairs; --json prints all")
    _print_notes(
        [
            f"p for independence, corrected for {counted(len(pairs), 'pairs')}",
            *(f"left out, {reason}: {name}" for name, reason in left_out.items()),
        ]
    )
    return DONE


def _check(options: argparse.Namespace, x: Any, y: Any, notes: list[str]) -> int:
    from nearfar.estimate.laws import check_mi

    checks = check_mi(x, y, **_estimate_options(options))
    if options.json:
        print(json.dumps({check.law: asdict(check) for check in checks}))
        return DONE
    for check in checks:
        verdict = (
            "FAILS" if not check.holds else "holds" if check.conclusive else "inconclusive, too few samples"
        )
        print(f"{check.law}: {check.value:.4f}, {verdict} ({check.allowed})")
    _print_notes(notes)
    return DONE


def _conditional(options: argparse.Namespace, x: Any, y: Any, notes: list[str]) -> int:
    from nearfar.estimate.chain import estimate_cmi
    from nearfar.estimate.read import read_columns

    result = estimate_cmi(x, y, read_columns(options.given).columns, **_common_options(options))
    if options.json:
        print(_with_notes(result.as_json(), notes))
    else:
        print(result)
        _print_notes(notes)
    return DONE


def _lags(options: argparse.Namespace, x: Any, y: Any, notes: list[str]) -> int:
    from nearfar.estimate.table import mi_over_lags

    first, _, last = options.lags.partition(":")
    try:
        lags = range(int(first), int(last or first) + 1)
    except ValueError:
        raise UserError(
            f"--lags was {options.lags}; it must be two whole numbers, for instance 0:5"
        ) from None
    if not lags:
        raise UserError(f"--lags was {options.lags}; the first must not be above the second")
    estimates = mi_over_lags(x, y, lags, **_estimate_options(options))
    if options.plot is not None:
        from nearfar.estimate.plot import draw_lags

        draw_lags(estimates, options.plot)
    if options.json:
        print(json.dumps({str(lag): estimate.as_json() for lag, estimate in estimates.items()}))
        return DONE
    rows = [["lag", "nats", f"{options.confidence:.0%} interval", "at least"]]
    for lag, estimate in estimates.items():
        at_least = f"{float(estimate.at_least):.4f}"
        rows.append([f"lag {lag}", f"{estimate.nats:.4f}", estimate.interval_text(), at_least])
    print(*text_table(rows, numbers=True), sep="\n")
    _print_notes(notes)
    _print_warnings({f"lag {lag}": estimate.warnings for lag, estimate in estimates.items()})
    return DONE


def _rows(options: argparse.Namespace, x: Any, y: Any, notes: list[str]) -> int:
    import numpy as np

    from nearfar.estimate.chain import pointwise_mi
    from nearfar.system.files import write_atomic

    if options.rows.suffix != ".csv":
        raise UserError(f"--rows was {options.rows}; it must end in .csv")
    row_options = _common_options(options)
    del row_options["confidence"]
    values = pointwise_mi(x, y, **row_options)
    lines = ["" if np.isnan(nats) else f"{nats:.6g}" for nats in values]
    write_atomic(options.rows, "\n".join(["nats", *lines]) + "\n")
    complete, mean = int((~np.isnan(values)).sum()), float(np.nanmean(values))
    if options.json:
        print(json.dumps({"rows": str(options.rows), "samples": complete, "mean": mean}))
        return DONE
    print(f"{complete} rows, mean {mean:.4f} nats on unseen rows, uncorrected; written to {options.rows}")
    if complete < len(values):
        print(f"warning: {len(values) - complete} of {len(values)} rows have gaps and were left out")
    _print_notes(notes)
    return DONE
