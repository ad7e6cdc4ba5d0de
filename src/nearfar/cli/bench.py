"""`nearfar bench`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="our speed beside that of the libraries that are installed, on this machine",
        description="Whole training steps and losses beside lightly's, open_clip's, sentence-transformers' and a plain script's, arms interleaved. "
        "What is not installed is named as absent (pip install 'nearfar[peers]').",
    )
    bench.add_argument("--blocks", type=int, default=5, help="blocks of steps that each arm takes (5)")
    bench.add_argument("--seconds", type=float, default=1.0, help="of a block (1)")
    bench.add_argument("--batch-size", type=int, default=128, help="of whole steps (128)")
    bench.add_argument("--rows", type=int, default=2048, help="of losses (2048)")
    bench.add_argument(
        "--backbone", default="resnet8-w16", help="of whole steps; several separated by commas (resnet8-w16)"
    )
    bench.add_argument(
        "--only",
        help="contests whose titles begin so, separated by commas: SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached",
    )
    bench.add_argument("--svg", type=Path, help="also draw the medians into this file")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.bench.arms import contests
    from nearfar.bench.measure import bar_chart, machine_line, run_bench, to_json
    from nearfar.parts.encoders import check_backbone
    from nearfar.system.files import write_whole

    for name, value, least in (
        ("blocks", given.blocks, 1),
        ("batch-size", given.batch_size, 2),
        ("rows", given.rows, 2),
    ):
        if value < least:
            raise UserError(f"--{name} was {value}; expected a whole number from {least}")
    if not 0 < given.seconds <= 3600:
        raise UserError(f"--seconds was {given.seconds:g}; expected a number above 0, up to 3600")
    if given.svg is not None and not given.svg.parent.is_dir():
        raise UserError(
            f"--svg was {given.svg}, but the folder {given.svg.parent} was not found; make it first"
        )
    networks = given.backbone.split(",")
    for network in networks:
        check_backbone(network)
    only = tuple(given.only.split(",")) if given.only else ()
    if not contests(networks, given.batch_size, given.rows, only):
        raise UserError(
            f"--only was {given.only}; expected beginnings of SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached"
        )
    say = (lambda line: print(line, file=sys.stderr)) if given.json else print
    results = run_bench(
        given.blocks,
        given.seconds,
        say,
        networks=networks,
        batch=given.batch_size,
        n=given.rows,
        only=only,
    )
    if given.json:
        print(json.dumps({"machine": machine_line(), **to_json(results)}))
    if given.svg is not None:
        try:
            write_whole(given.svg, bar_chart(results))
        except OSError as problem:
            raise UserError(f"--svg {given.svg} cannot be written: {problem.strerror}") from None
    return DONE
