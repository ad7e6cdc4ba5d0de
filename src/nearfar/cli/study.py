"""`nearfar study`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.core.tables import text_table
from nearfar.errors import UserError


def add(commands: Any) -> None:
    study = commands.add_parser(
        "study",
        help="repeat an experiment of a paper and compare the figures",
        usage="nearfar study [NAME] [--long] [--out DIR] [--seed N] [--json] [key=value ...] | --papers",
        description="Runs one of the papers' experiments, draws its figure and prints the paper's figures beside ours. "
        "Without NAME, lists the studies and their options.",
    )
    study.add_argument(
        "words",
        nargs="*",
        metavar="NAME key=value",
        help="a study and its options; `nearfar study` lists them",
    )
    study.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for result.json and figures (default: runs/study-NAME)",
    )
    study.add_argument(
        "--long", action="store_true", help="the long version (hours): family --long is family-long"
    )
    study.add_argument("--seed", type=int, help="random seed (the same as seed=N)")
    study.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    study.add_argument(
        "--papers",
        action="store_true",
        help="print every numbered claim of the five papers with its command and status, as Markdown",
    )
    study.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.studies.run import catalogue, find_study, run_study

    if args.papers:
        return _papers(args)
    if not args.words:
        print(json.dumps(catalogue()) if args.json else _listed(catalogue()))
        return DONE
    name, *words = args.words
    name += "-long" if args.long else ""
    study = find_study(name)
    words += [] if args.seed is None else [f"seed={args.seed}"]
    record = run_study(study, args.out or Path("runs") / f"study-{name}", words)
    print(json.dumps(record.result.as_json()) if args.json else record.text())
    return DONE


def _papers(args: argparse.Namespace) -> int:
    from nearfar.studies.mapped import PAPERS, entries, page

    if args.words:
        raise UserError(f"{args.words[0]!r} cannot be combined with --papers")
    rows = {paper: [asdict(entry) for entry in entries(paper)] for paper in PAPERS}
    print(json.dumps(rows) if args.json else page(), end="\n" if args.json else "")
    return DONE


def _listed(lines: dict[str, str]) -> str:
    return "\n".join(text_table(list(lines.items())))
