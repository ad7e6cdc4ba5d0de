"""A command: this file as `nearfar/cli/weights.py`, and its name in `COMMANDS` of `nearfar/cli/__init__.py`.

nearfar weights runs/a
"""

import argparse
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    weights = commands.add_parser("weights", help="how many weights the encoder of a run has")
    weights.add_argument("run", type=Path, metavar="RUN", help="run folder")
    weights.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from nearfar.parts.encoders import parameters_of  # what is heavy is imported when it is needed
    from nearfar.run.trained import Run

    print(f"{parameters_of(Run.open(arguments.run).encoder()):,}")
    return DONE
