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
        help="speed of nearfar beside other installed libraries on this machine",
        description="Times training steps and losses beside lightly, open_clip, sentence-transformers and a plain script, interleaved. "
        "Libraries that are not installed are listed as missing (pip install 'nearfar[peers]').",
    )
    bench.add_argument("--blocks", type=int, default=5, help="timed blocks of steps per arm (5)")
    bench.add_argument("--seconds", type=float, default=1.0, help="seconds per block (1)")
    bench.add_argument("--batch-size", type=int, default=128, help="batch size of training steps (128)")
    bench.add_argument("--rows", type=int, default=2048, help="rows of the losses (2048)")
    bench.add_argument(
        "--backbone", default="resnet8-w16", help="comma-separated networks of training steps (resnet8-w16)"
    )
    bench.add_argument(
        "--only",
        help="comma-separated prefixes of the comparisons to run: SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached",
    )
    bench.add_argument("--svg", type=Path, help="also write a bar chart of the medians to this file")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.bench.arms import contests
    from nearfar.bench.measure import bar_chart, machine_line, run_bench, to_json
    from nearfar.parts.encoders import check_backbone
    from nearfar.system.files import write_atomic

    for name, value, minimum in (
        ("blocks", args.blocks, 1),
        ("batch-size", args.batch_size, 2),
        ("rows", args.rows, 2),
    ):
        if value < minimum:
            raise UserError(f"--{name} was {value}; expected a whole number from {minimum}")
    if not 0 < args.seconds <= 3600:
        raise UserError(f"--seconds was {args.seconds:g}; expected a number above 0, up to 3600")
    if args.svg is not None and not args.svg.parent.is_dir():
        raise UserError(
            f"--svg was {args.svg}, but the folder {args.svg.parent} was not found; make it first"
        )
    networks = args.backbone.split(",")
    for network in networks:
        check_backbone(network)
    only = tuple(args.only.split(",")) if args.only else ()
    if not contests(networks, args.batch_size, args.rows, only):
        raise UserError(
            f"--only was {args.only}; expected prefixes of SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached"
        )
    say = (lambda line: print(line, file=sys.stderr)) if args.json else print
    results = run_bench(
        args.blocks,
        args.seconds,
        say,
        networks=networks,
        batch=args.batch_size,
        n=args.rows,
        only=only,
    )
    if args.json:
        print(json.dumps({"machine": machine_line(), **to_json(results)}))
    if args.svg is not None:
        try:
            write_atomic(args.svg, bar_chart(results))
        except OSError as problem:
            raise UserError(f"--svg {args.svg} cannot be written: {problem.strerror}") from None
    return DONE
