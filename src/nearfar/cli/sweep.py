"""`nearfar sweep`."""

import argparse
import os
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.urls import ALLOW_URLS, check_urls
from nearfar.errors import UserError

EPILOG = """\
what is varied:
  temperature=0.1,0.25,0.5            an axis: every value with every value of the others
  selection.lower=0,'linear(0,0.9)'   brackets keep their commas
  seed=0,1,2   seed=0..4              repetitions: mean and deviation are told, no seed is chosen
  lr=1e-4..1e-1:log                   a range, for --search tpe; whole numbers where both ends are
  epochs=20                           a setting, for all

DIR holds sweep.json, sweep.csv, figure.svg, figure.png, log.jsonl and every run, cells/*/. The same command goes on after a kill; given twice at
once, in one terminal or on two machines with one file system, it shares the cells. See docs/sweeps.md.
"""


def add(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="try settings, choose by validation, say what the best does on test data; resumable, shared by processes",
        usage="nearfar sweep RECIPE DATA key=a,b,c ... --out DIR [--data TEST] [options]",
        description="Trains every combination of the listed values (or what a search proposes) on four fifths of DATA, judges each on the fifth that "
        "it did not see, and says of the best by that what it does on TEST.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE DATA key=a,b,c",
        help="with --command train: DATA; distill: TEACHER DATA; mi: X Y",
    )
    sweep.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep")
    sweep.add_argument(
        "--command", default="pretrain", dest="what", help="pretrain (default), train, distill or mi"
    )
    sweep.add_argument("--data", metavar="TEST", help="test data for the best, which no choice looks at")
    sweep.add_argument("--same-labels", action="store_true", help="DATA and TEST number their classes alike")
    sweep.add_argument(
        "--metric",
        help="linear (default), knn, accuracy (of the own classifier of train and distill: their default), rankme or lidar (without labels); of mi "
        "at_least (default) or nats",
    )
    sweep.add_argument(
        "--validation",
        type=float,
        metavar="SHARE",
        help="of DATA, kept for the choice (default 0.2; mi: 0.5 kept for the figure)",
    )
    sweep.add_argument(
        "--search", metavar="METHOD", help="tpe or random: proposes the points (pip install 'nearfar[sweep]')"
    )
    sweep.add_argument("--trials", type=int, metavar="N", help="of the search (default 20)")
    sweep.add_argument(
        "--no-prune", action="store_true", help="let every trial of the search train to its end"
    )
    sweep.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes at once, of one thread each (default: one for each core; with a GPU 1)",
    )
    sweep.add_argument("--config", type=Path, help="YAML file of settings, lists are axes; words go over it")
    sweep.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    sweep.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    sweep.add_argument("--quiet", action="store_true", help="no progress")
    sweep.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.config.reading import load_file
    from nearfar.sweeps.asked import Asked, subjects_of
    from nearfar.sweeps.run import run_sweep
    from nearfar.sweeps.space import read_space

    subjects, words = subjects_of(given.words, given.what)
    if given.out is None:
        raise UserError("--out is missing; name the folder of the sweep, for instance --out sweeps/first")
    config = load_file(given.config) if given.config else {}
    check_urls(config, given.config, given.words, given.allow_urls)
    asked = Asked(
        given.what,
        subjects,
        read_space(words, config),
        given.out,
        given.metric,
        given.data,
        given.validation,
        given.same_labels,
        given.search,
        given.trials,
        not given.no_prune,
        given.quiet,
    )
    found = run_sweep(asked, _cores() if given.jobs is None else given.jobs)
    print(found.as_text() if given.json else found, end="" if given.json else "\n")
    if found.best is None:
        raise UserError(f"no cell of the sweep ended with a value; the first: {found.rows[0].why}")
    return DONE


def _cores() -> int:
    """Processes at once: a GPU is for one, cores are for one each."""
    from nearfar.system.hardware import pick_device

    if pick_device("auto").type != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
