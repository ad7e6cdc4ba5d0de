"""`nearfar mi`: how much one sample tells about another, from files."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    mi = commands.add_parser(
        "mi",
        help="mutual information of two samples, with interval, ceiling and what is proven",
        description="Mutual information between two samples: row i of X belongs to row i of Y. Files are .npy, .npz, "
        ".csv or .parquet; FILE:NAME takes one array or column, FILE:a,b several.",
    )
    mi.add_argument("x", metavar="X", help="file of one sample")
    mi.add_argument("y", metavar="Y", help="file of the other")
    mi.add_argument(
        "--bound", default="auto", help="auto, infonce, ml-cpc, alpha-cpc, nwj, tuba, dv, smile, uba"
    )
    mi.add_argument("--alpha", type=float, help="of ml-cpc (default: the smallest proven) and alpha-cpc")
    mi.add_argument("--critic", default="separable", help="separable, joint, bilinear (default separable)")
    mi.add_argument(
        "--negatives", default="batch", help="batch, or independent, which proves more (default batch)"
    )
    mi.add_argument("--scaling", default="rank", help="rank, standard, none (default rank)")
    mi.add_argument(
        "--discrete", default="auto", help="which columns are categories: auto, all, none (default auto)"
    )
    mi.add_argument(
        "--groups", metavar="FILE:NAME", help="a label per row: rows of one label belong together"
    )
    mi.add_argument("--folds", type=int, default=5, help="parts that are held out in turn (default 5)")
    mi.add_argument("--confidence", type=float, default=0.9, help="of the interval (default 0.9)")
    mi.add_argument("--seed", type=int, default=0, help="of the split and the critic (default 0)")
    mi.add_argument("--no-baselines", action="store_true", help="leave out the KSG and Gaussian estimates")
    mi.add_argument(
        "--check", action="store_true", help="check the estimator's laws on these data instead (7 estimates)"
    )
    mi.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    mi.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.estimate.choose import named_bound
    from nearfar.estimate.consistency import check_mi
    from nearfar.estimate.mi import estimate_mi
    from nearfar.estimate.read import read_pair, read_sample

    x, y, said = read_pair(given.x, given.y)
    options = {
        "bound": named_bound(given.bound, given.alpha),
        "critic": given.critic,
        "negatives": given.negatives,
        "scaling": given.scaling,
        "discrete": given.discrete,
        "groups": None if given.groups is None else read_sample(given.groups).squeeze(1),
        "folds": given.folds,
        "confidence": given.confidence,
        "seed": given.seed,
    }
    if given.check:
        checks = check_mi(x, y, **options)
        if given.json:
            print(json.dumps({check.law: asdict(check) for check in checks}))
        else:
            for check in checks:
                verdict = "holds" if check.holds else "FAILS"
                print(f"{check.law}: {check.found:.4f}, {verdict} ({check.allowed})")
        return DONE
    estimate = estimate_mi(x, y, baselines=not given.no_baselines, **options)
    if given.json:
        answer = estimate.as_json()
        print(json.dumps({**answer, "warnings": [*said, *answer["warnings"]]}))
    else:
        print(estimate, *(f"note: {sentence}" for sentence in said), sep="\n")
    return DONE
