"""`nearfar evaluate`."""

import argparse
import json
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import NotSaved


def add(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="measure the frozen features with kNN and linear probes, beside baselines"
    )
    evaluate.add_argument("run", type=Path, metavar="RUN", help="run folder")
    evaluate.add_argument("--train", metavar="A", help="labelled data to fit on (default: the run's data)")
    evaluate.add_argument(
        "--data",
        metavar="B",
        help="labelled data to test on; without it a fifth of what is fitted on is held out",
    )
    evaluate.add_argument(
        "--same-labels",
        action="store_true",
        help="A and B number their classes alike; only needed where the classes have no names",
    )
    evaluate.add_argument(
        "--protocol", default="knn,linear", help="knn, linear, nearest, separated by commas"
    )
    evaluate.add_argument("--k", type=int, default=20, help="neighbours of knn (default 20)")
    evaluate.add_argument("--temperature", type=float, default=0.07, help="of knn's votes (default 0.07)")
    evaluate.add_argument(
        "--no-baselines",
        action="store_true",
        help="leave out the baselines: raw input and the untrained encoder",
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    evaluate.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.evaluate import evaluate_run, table
    from nearfar.run.trained import Run

    unsaved: NotSaved | None = None
    try:
        result = evaluate_run(
            Run.open(given.run),
            given.data,
            protocols=[name.strip() for name in given.protocol.split(",")],
            baselines=not given.no_baselines,
            k=given.k,
            temperature=given.temperature,
            train=given.train,
            same_labels=given.same_labels,
        )
    except NotSaved as problem:  # figures that took an hour are shown, wherever they cannot be kept
        result, unsaved = problem.result, problem
    print(json.dumps(result) if given.json else table(result))
    if unsaved is not None:
        raise unsaved
    return DONE
