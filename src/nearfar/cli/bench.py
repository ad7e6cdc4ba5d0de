"""`nearfar bench`."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError, check_whole

MIN_TASK_ROWS = 50


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="speed of nearfar beside other installed libraries; the estimator of information on known tasks",
        description="speed: times training steps and losses beside lightly, open_clip, sentence-transformers and a plain script, interleaved. "
        "Libraries that are not installed are listed as missing (pip install 'nearfar[peers]').",
    )
    bench.add_argument(
        "what",
        nargs="?",
        choices=("speed", "information"),
        default="speed",
        help="speed (default), or information: mutual information on the 40 tasks of Czyż et al. 2023",
    )
    bench.add_argument("--blocks", type=int, default=5, help="timed blocks of steps per arm (5)")
    bench.add_argument("--seconds", type=float, default=1.0, help="seconds per block (1)")
    bench.add_argument("--batch-size", type=int, default=128, help="batch size of training steps (128)")
    bench.add_argument(
        "--rows", help="rows of the losses (2048); of information, comma-separated (300,1000,10000)"
    )
    bench.add_argument(
        "--backbone", default="resnet8-w16", help="comma-separated networks of training steps (resnet8-w16)"
    )
    bench.add_argument(
        "--only",
        help="comma-separated prefixes of the comparisons to run: SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached; "
        "of information, words in the names of tasks",
    )
    bench.add_argument("--seeds", type=int, default=1, help="information: samples of each task (1)")
    bench.add_argument(
        "--record", type=Path, help="information: file of results by line; the same command resumes"
    )
    bench.add_argument(
        "--no-network", action="store_true", help="information: do not fit the InfoNCE network"
    )
    bench.add_argument("--svg", type=Path, help="also write a bar chart of the medians to this file")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    rows = _rows(args.rows or ("2048" if args.what == "speed" else "300,1000,10000"))
    if args.svg is not None and not args.svg.parent.is_dir():
        raise UserError(
            f"--svg was {args.svg}, but the folder {args.svg.parent} was not found; make it first"
        )
    return _speed(args, rows) if args.what == "speed" else _information(args, rows)


def _rows(text: str) -> list[int]:
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if min(sizes) < 2:
        raise UserError(f"--rows was {text}; expected a whole number from 2")
    return sizes


def _write_chart(path: Path | None, chart: Callable[[], Any]) -> None:
    """Writes a matplotlib figure as SVG, where one was requested."""
    if path is None:
        return
    from io import BytesIO

    from nearfar.system.extras import need
    from nearfar.system.files import write_atomic

    buffer = BytesIO()
    with need("matplotlib").rc_context({"svg.fonttype": "none", "font.size": 9.0}):
        chart().savefig(buffer, format="svg", metadata={"Date": None})
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as problem:
        raise UserError(f"--svg {path} cannot be written: {problem.strerror}") from None


def _information(args: argparse.Namespace, sizes: list[int]) -> int:
    from dataclasses import asdict

    from nearfar.bench.information import information_chart, information_table, run_information
    from nearfar.bench.information_tasks import information_tasks

    check_whole("--seeds", args.seeds, 1)
    if min(sizes) < MIN_TASK_ROWS:
        raise UserError(f"--rows was {args.rows}; a task needs at least {MIN_TASK_ROWS} rows")
    words = (args.only or "").split(",")
    tasks = [task for task in information_tasks() if any(word in task.name for word in words)]
    if not tasks:
        raise UserError(f"--only was {args.only}; no task has such a name, for instance Swiss or 25 × 25")
    say = (lambda line: print(line, file=sys.stderr)) if args.json else print
    results = run_information(tasks, sizes, args.seeds, not args.no_network, args.record, say)
    for line in () if args.json else information_table(results):
        print(line)
    if args.json:
        print(json.dumps([asdict(result) for result in results]))
    _write_chart(args.svg, lambda: information_chart(results))
    return DONE


def _speed(args: argparse.Namespace, sizes: list[int]) -> int:
    from nearfar.bench.arms import contests
    from nearfar.bench.measure import bar_chart, machine_line, run_bench, to_json
    from nearfar.parts.encoders import check_backbone

    if len(sizes) > 1:
        raise UserError(f"--rows was {args.rows}; the losses take one number of rows")
    rows = sizes[0]
    check_whole("--blocks", args.blocks, 1)
    check_whole("--batch-size", args.batch_size, 2)
    if not 0 < args.seconds <= 3600:
        raise UserError(f"--seconds was {args.seconds:g}; expected a number above 0, up to 3600")
    networks = args.backbone.split(",")
    for network in networks:
        check_backbone(network)
    only = tuple(args.only.split(",")) if args.only else ()
    if not contests(networks, args.batch_size, rows, only):
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
        n=rows,
        only=only,
    )
    if args.json:
        print(json.dumps({"machine": machine_line(), **to_json(results)}))
    _write_chart(args.svg, lambda: bar_chart(results))
    return DONE
