"""`nearfar demo`."""

import argparse
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="learn from embedded data in a few minutes, evaluate, and write a report",
        description="Pretrains on images of letters drawn by the program, evaluates on unseen typefaces, and writes "
        "a report. Needs no data and no network.",
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    demo.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.system.extras import need

    need("jinja2")  # of the extra `report`, which includes what training needs: known before the training
    from nearfar.cli.demo_run import run_demo

    run_demo(args.out)
    return DONE
