"""`nearfar mi`: how much one sample tells about another, from files; or every column of a table about a target."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError
from nearfar.system.files import check_output


def add(commands: Any) -> None:
    mi = commands.add_parser(
        "mi",
        help="how much one sample tells about another: best estimate, interval, what is proven",
        usage="nearfar mi X Y [options] | nearfar mi TABLE --target COLUMN [options]",
        description="Mutual information between two samples: row i of X belongs to row i of Y. Files are .npy, .npz, "
        ".csv or .parquet; FILE:NAME takes one array or column, FILE:a,b several. With --target, every column of TABLE is "
        "ranked by what it tells about that one. Words are categories; rows with gaps are left out and said.",
    )
    mi.add_argument("x", metavar="X", help="file of one sample, or a table")
    mi.add_argument("y", metavar="Y", nargs="?", help="file of the other")
    mi.add_argument(
        "--target", metavar="COLUMN", help="rank the columns of X by what they tell about this one"
    )
    mi.add_argument("--given", metavar="FILE:NAME", help="what is known already: I(X; Y | it)")
    mi.add_argument("--lags", metavar="A:B", help="X and Y are series: I(x_t; y_(t+lag)) for lags A to B")
    mi.add_argument(
        "--bound",
        default="auto",
        help="auto (best estimate), infonce, ml-cpc, alpha-cpc, nwj, tuba, dv, mine, smile, uba, barber-agakov",
    )
    mi.add_argument("--alpha", type=float, help="of ml-cpc (default: the smallest proven) and alpha-cpc")
    mi.add_argument(
        "--critic",
        default="auto",
        help="auto (many compete), separable, joint, hybrid, bilinear (default auto)",
    )
    mi.add_argument(
        "--negatives", default="batch", help="batch, or independent, which proves more (default batch)"
    )
    mi.add_argument("--scaling", default="rank", help="of networks: rank, standard, none (default rank)")
    mi.add_argument(
        "--discrete",
        default="auto",
        help="which columns are categories: auto, all, none, x, y (default auto)",
    )
    mi.add_argument(
        "--groups", metavar="FILE:NAME", help="a label per row: rows of one label belong together"
    )
    mi.add_argument("--folds", type=int, help="parts that are held out in turn (default 5; 3 to rank)")
    mi.add_argument("--confidence", type=float, default=0.9, help="of the interval (default 0.9)")
    mi.add_argument("--seed", type=int, default=0, help="of the split and the critic (default 0)")
    mi.add_argument("--no-baselines", action="store_true", help="leave out the KSG and Gaussian estimates")
    mi.add_argument(
        "--check", action="store_true", help="check the estimator's laws on these data instead (7 estimates)"
    )
    mi.add_argument(
        "--rows",
        type=Path,
        metavar="FILE.csv",
        help="write log p(x, y) / p(x) p(y) of every row there instead",
    )
    mi.add_argument("--plot", type=Path, metavar="FILE", help="draw the answer (.svg, .png or .pdf)")
    mi.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    mi.set_defaults(command=run)


FITTED = ("bound", "alpha", "critic", "negatives", "scaling")
# what each question would leave unread: said, not ignored
QUESTIONS: dict[str, tuple[str, ...]] = {
    "target": ("y", "given", "lags", "check", "rows", "no_baselines"),
    "check": ("given", "lags", "rows", "plot", "no_baselines"),
    "given": (*FITTED, "lags", "rows", "plot", "no_baselines"),
    "lags": ("groups", "rows", "no_baselines"),
    "rows": (*FITTED, "confidence", "plot", "no_baselines"),
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


def _refuse_without_effect(given: argparse.Namespace, question: str) -> None:
    for name in QUESTIONS[question]:
        if getattr(given, name) != DEFAULTS.get(name):
            said = "Y" if name == "y" else f"--{name.replace('_', '-')}"
            raise UserError(f"{said} has no effect with --{question}; leave it out")


def run(given: argparse.Namespace) -> int:
    read = [side.partition(":")[0] for side in (given.x, given.y, given.given) if side]
    for option in ("rows", "plot"):
        if (target := getattr(given, option)) is not None:
            check_output(f"--{option}", target, read)
            if not target.parent.is_dir():
                raise UserError(
                    f"--{option} was {target}, but the folder {target.parent} was not found; make it first"
                )
    if given.plot is not None and given.plot.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"--plot was {given.plot}; it must end in .svg, .png or .pdf")
    question = next((name for name in QUESTIONS if getattr(given, name) not in (None, False)), None)
    if question is not None:
        _refuse_without_effect(given, question)
    if question == "target":
        return _rank(given)
    if given.y is None:
        raise UserError(
            "Y is missing; name a second file, or --target COLUMN to rank the columns of the first"
        )
    from nearfar.estimate.read import read_pair

    x, y, said = read_pair(given.x, given.y)
    if question is not None:
        return {"check": _check, "given": _conditional, "lags": _lags, "rows": _rows}[question](given, x, y)
    from nearfar.estimate.mi import estimate_mi

    estimate = estimate_mi(x, y, baselines=not given.no_baselines, **_options(given))
    if given.plot is not None:
        from nearfar.estimate.plot import draw_estimate

        draw_estimate(estimate, given.plot)
    if given.json:
        answer = estimate.as_json()
        print(json.dumps({**answer, "warnings": [*said, *answer["warnings"]]}))
    else:
        print(estimate, *(f"note: {sentence}" for sentence in said), sep="\n")
    return DONE


def _options(given: argparse.Namespace) -> dict[str, Any]:
    from nearfar.estimate.choose import named_bound

    return {
        "bound": named_bound(given.bound, given.alpha),
        "critic": given.critic,
        "negatives": given.negatives,
        "scaling": given.scaling,
        **_few_options(given),
    }


def _few_options(given: argparse.Namespace) -> dict[str, Any]:
    from nearfar.estimate.read import read_labels

    folds = {} if given.folds is None else {"folds": given.folds}
    groups = {} if given.groups is None else {"groups": read_labels(given.groups)}
    return {
        "discrete": given.discrete,
        "confidence": given.confidence,
        "seed": given.seed,
        **folds,
        **groups,
    }


def _rank(given: argparse.Namespace) -> int:
    from nearfar.estimate.read import read_table
    from nearfar.estimate.table import rank_columns

    table, empty = read_table(given.x, given.target)
    found = rank_columns(table, given.target, **_options(given))
    told = {given.target, *(one.column for one in found)}
    left_out = {"empty": empty, "the same in every row": [name for name in table if name not in told]}
    if given.plot is not None:
        from nearfar.estimate.plot import draw_ranking

        draw_ranking(found, given.target, given.plot)
    if given.json:
        said = {"target": given.target, "columns": [one.as_json() for one in found]}
        print(
            json.dumps({**said, "left_out": {name: why for why, names in left_out.items() for name in names}})
        )
        return DONE
    width = max(len(one.column) for one in found) + 2
    print(
        f"{'column':<{width}}{'nats':>8}  {f'{given.confidence:.0%} interval':<18}{'at least':>9}{'p, of all':>11}"
    )
    for one in found:
        print(
            f"{one.column:<{width}}{one.estimate.nats:>8.4f}  {one.estimate.interval_text():<18}"
            f"{float(one.estimate.at_least):>9.4f}{one.p_value:>11.2g}"
        )
    for why, names in left_out.items():
        if names:
            print(f"note: left out, {why}: {', '.join(names)}")
    # what is said of one column names it; what is said of all of them is said once
    about: dict[str, list[str]] = {}
    for one in found:
        for warning in one.estimate.warnings:
            about.setdefault(warning, []).append(one.column)
    for warning, columns in about.items():
        print(
            f"warning: {warning}"
            if len(columns) == len(found)
            else f"warning: {', '.join(columns)}: {warning}"
        )
    return DONE


def _check(given: argparse.Namespace, x: Any, y: Any) -> int:
    from nearfar.estimate.consistency import check_mi

    checks = check_mi(x, y, **_options(given))
    if given.json:
        print(json.dumps({check.law: asdict(check) for check in checks}))
        return DONE
    for check in checks:
        verdict = "FAILS" if not check.holds else "holds" if check.telling else "too few samples to tell"
        print(f"{check.law}: {check.found:.4f}, {verdict} ({check.allowed})")
    return DONE


def _conditional(given: argparse.Namespace, x: Any, y: Any) -> int:
    from nearfar.estimate.chain import estimate_cmi
    from nearfar.estimate.read import read_columns

    found = estimate_cmi(x, y, read_columns(given.given).columns, **_few_options(given))
    print(json.dumps(found.as_json()) if given.json else found)
    return DONE


def _lags(given: argparse.Namespace, x: Any, y: Any) -> int:
    from nearfar.estimate.table import mi_over_lags

    first, _, last = given.lags.partition(":")
    try:
        lags = range(int(first), int(last or first) + 1)
    except ValueError:
        raise UserError(f"--lags was {given.lags}; it must be two whole numbers, for instance 0:5") from None
    if not lags:
        raise UserError(f"--lags was {given.lags}; the first must not be above the second")
    found = mi_over_lags(x, y, lags, **_options(given))
    if given.plot is not None:
        from nearfar.estimate.plot import draw_lags

        draw_lags(found, given.plot)
    if given.json:
        print(json.dumps({str(lag): one.as_json() for lag, one in found.items()}))
        return DONE
    for lag, one in found.items():
        print(f"lag {lag:>3}  {one.nats:.4f} nats, {one.interval_text()}, at least {float(one.at_least):.4f}")
    return DONE


def _rows(given: argparse.Namespace, x: Any, y: Any) -> int:
    import numpy as np

    from nearfar.estimate.chain import pointwise_mi
    from nearfar.system.files import write_atomic

    if given.rows.suffix != ".csv":
        raise UserError(f"--rows was {given.rows}; it must end in .csv")
    options = _few_options(given)
    del options["confidence"]
    found = pointwise_mi(x, y, **options)
    lines = ["" if np.isnan(nats) else f"{nats:.6g}" for nats in found]
    write_atomic(given.rows, "\n".join(["nats", *lines]) + "\n")
    told = int((~np.isnan(found)).sum())
    if given.json:
        print(json.dumps({"rows": str(given.rows), "samples": told, "mean": float(np.nanmean(found))}))
    else:
        print(f"{told} rows, mean {np.nanmean(found):.4f} nats before what is missing; each in {given.rows}")
    return DONE
