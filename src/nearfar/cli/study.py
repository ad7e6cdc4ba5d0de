"""`nearfar study`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError


def add(commands: Any) -> None:
    study = commands.add_parser(
        "study",
        help="one of the papers' experiments: paper against ours",
        usage="nearfar study [NAME] [--long] [--out DIR] [--seed N] [--json] [key=value ...] | --papers",
        description="Runs one of the papers' experiments, draws its figure and prints the paper's figures beside ours. "
        "Without NAME, lists the studies and their options.",
    )
    study.add_argument("words", nargs="*", metavar="NAME key=value", help="see nearfar study")
    study.add_argument(
        "--out", type=Path, help="folder for result.json and figures (default: runs/study-NAME)"
    )
    study.add_argument(
        "--long", action="store_true", help="the study of hours of that name: family --long is family-long"
    )
    study.add_argument("--seed", type=int, help="the same as seed=N")
    study.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    study.add_argument(
        "--papers",
        action="store_true",
        help="print every numbered thing of the five papers with its command and its state (docs/papers.md)",
    )
    study.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.studies.run import catalogue, named, run_study

    if given.papers:
        return _papers(given)
    if not given.words:
        print(json.dumps(catalogue()) if given.json else _listed(catalogue()))
        return DONE
    name, *words = given.words
    name += "-long" if given.long else ""
    study = named(name)
    words += [] if given.seed is None else [f"seed={given.seed}"]
    record = run_study(study, given.out or Path("runs") / f"study-{name}", words)
    print(json.dumps(record.result.as_json()) if given.json else record.text())
    return DONE


def _papers(given: argparse.Namespace) -> int:
    from nearfar.studies.mapped import PAPERS, entries, page

    if given.words:
        raise UserError(
            f"{given.words[0]!r} was given with --papers, which is about all papers; leave it out"
        )
    held = {paper: [asdict(entry) for entry in entries(paper)] for paper in PAPERS}
    print(json.dumps(held) if given.json else page(), end="\n" if given.json else "")
    return DONE


def _listed(lines: dict[str, str]) -> str:
    return "\n".join(f"{name:<16}{line}" for name, line in lines.items())
