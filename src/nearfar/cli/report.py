"""`nearfar report`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.urls import ALLOW_URLS


def add(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write one self-contained page about one run or several",
        description="Writes an HTML page without links to other files: curves, results, neighbours, a map of the "
        "features. Several runs are compared.",
        epilog="example: nearfar report runs/a runs/b --out comparison.html",
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    report.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: RUN/report.html)")
    report.add_argument(
        "--points",
        type=int,
        default=None,
        metavar="N",
        help="largest number of points in the map (default 3000; up to 20000 stay fast)",
    )
    report.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    report.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.report import write_report
    from nearfar.run.trained import Run
    from nearfar.system.files import check_output

    runs = [Run.open(path, allow_urls=args.allow_urls) for path in args.runs]
    for sentence in filter(None, (opened.unopened_url for opened in runs)):
        print(f"nearfar: {sentence}", file=sys.stderr)
    options = {} if args.points is None else {"points": args.points}
    page = args.out or args.runs[0] / "report.html"
    if args.out is not None:
        check_output("--out", page, (), b"<!doctype html")
    print(write_report(runs, page, **options))
    return DONE
