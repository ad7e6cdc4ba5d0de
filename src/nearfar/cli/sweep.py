"""`nearfar sweep`."""

import argparse
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.urls import ALLOW_URLS, check_urls
from nearfar.errors import UserError

EPILOG = """\
what is varied:
  temperature=0.1,0.25,0.5            an axis: every combination with the other axes is trained
  selection.lower=0,'linear(0,0.9)'   brackets keep their commas
  seed=0,1,2   seed=0..4              repetitions: mean and standard deviation are reported
  lr=1e-4..1e-1:log                   a range, for --search tpe; whole numbers where both ends are
  epochs=20                           a setting of all cells

DIR contains sweep.json, sweep.csv, figure.svg, figure.png, log.jsonl and every run in cells/*/. The same command resumes
after a kill. Started several times at once, also on machines that share a file system, the processes share the cells. See docs/sweeps.md.
"""


def add(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="try settings, select on a validation split, report the best on test data; resumable",
        usage="nearfar sweep RECIPE DATA key=a,b,c ... --out DIR [--data TEST] [options]",
        description="Trains every combination of the listed values (or what a search proposes) on four fifths of DATA, selects on the held-out "
        "fifth, and reports the best on TEST.",
        epilog=EPILOG,
    )
    sweep.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE DATA key=a,b,c",
        help="with --command train: DATA; distill: TEACHER DATA; mi: X Y",
    )
    sweep.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep")
    sweep.add_argument(
        "--command",
        default="pretrain",
        dest="what",
        metavar="NAME",
        help="pretrain (default), train, distill or mi",
    )
    sweep.add_argument("--data", metavar="TEST", help="test data, used only for the selected setting")
    sweep.add_argument(
        "--same-labels", action="store_true", help="the class numbers of DATA and TEST mean the same"
    )
    sweep.add_argument(
        "--metric",
        help="linear (default), knn, accuracy (of the classifier of train and distill, and their default), rankme or lidar (without labels); of mi "
        "at_least (default) or nats",
    )
    sweep.add_argument(
        "--validation",
        type=float,
        metavar="SHARE",
        help="share of DATA to select on (default 0.2; with mi, share to report on, 0.5)",
    )
    sweep.add_argument(
        "--search", metavar="METHOD", help="tpe or random: proposes the points (pip install 'nearfar[sweep]')"
    )
    sweep.add_argument("--trials", type=int, metavar="N", help="number of trials of the search (default 20)")
    sweep.add_argument(
        "--no-prune", action="store_true", help="let every trial of the search train to its end"
    )
    sweep.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes at once, of one thread each (default: one for each core; with a GPU 1)",
    )
    sweep.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file of settings; lists are axes; words override it"
    )
    sweep.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    sweep.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    sweep.add_argument("--quiet", action="store_true", help="no progress")
    sweep.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.config.reading import load_file
    from nearfar.sweeps.request import SweepRequest, split_subjects
    from nearfar.sweeps.run import run_sweep
    from nearfar.sweeps.space import read_space

    subjects, words = split_subjects(args.words, args.what)
    if args.out is None:
        raise UserError("--out is missing; name the folder of the sweep, for instance --out sweeps/first")
    config = load_file(args.config) if args.config else {}
    check_urls(config, args.config, args.words, args.allow_urls)
    request = SweepRequest(
        args.what,
        subjects,
        read_space(words, config),
        args.out,
        args.metric,
        args.data,
        args.validation,
        args.same_labels,
        args.search,
        args.trials,
        not args.no_prune,
        args.quiet,
    )
    result = run_sweep(request, _cores() if args.jobs is None else args.jobs)
    print(result.as_text() if args.json else result, end="" if args.json else "\n")
    if result.best is None:
        raise UserError(f"no cell of the sweep ended with a value; the first: {result.rows[0].reason}")
    return DONE


def _cores() -> int:
    """Returns the number of parallel processes: one with a GPU, else one per core."""
    from nearfar.system.hardware import pick_device
    from nearfar.system.machine import cores

    if pick_device("auto").type != "cpu":
        return 1
    return cores()
