"""`nearfar bench`."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError, check_whole

MIN_TASK_ROWS = 50


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="speed beside other installed libraries; accuracy over time; estimates of known information",
        description="speed: times training steps and losses beside lightly, open_clip, sentence-transformers and a plain script, interleaved. "
        "Libraries that are not installed are listed as missing (pip install 'nearfar[peers]').",
    )
    bench.add_argument(
        "what",
        nargs="?",
        choices=("speed", "information", "quality"),
        default="speed",
        help="speed (default); information: mutual information on the 40 tasks of Czyż et al. 2023; "
        "quality: linear accuracy over CPU-minutes, beside lightly",
    )
    bench.add_argument("--data", help="quality: labelled images to train on; only the probe uses the labels")
    bench.add_argument("--test", help="quality: labelled test images (default: a tenth of --data)")
    bench.add_argument("--epochs", type=int, default=10, help="quality: passes over the images (10)")
    bench.add_argument("--probes", type=int, default=10, help="quality: measurements per arm (10)")
    bench.add_argument("--goal", type=float, default=0.625, help="quality: accuracy to reach (0.625)")
    bench.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="'NAME: key=value …'",
        help="quality: another arm of nearfar with these settings; may be repeated",
    )
    bench.add_argument("--blocks", type=int, default=5, help="timed blocks of steps per arm (5)")
    bench.add_argument("--seconds", type=float, default=1.0, help="seconds per block (1)")
    bench.add_argument("--batch-size", type=int, help="batch size of training steps (128; quality: 256)")
    bench.add_argument(
        "--rows", help="rows of the losses (2048); of information, comma-separated (300,1000,10000)"
    )
    bench.add_argument(
        "--backbone",
        help="comma-separated networks of training steps (resnet8-w16); quality: one, of nearfar and lightly "
        "(the default of nearfar pretrain simclr)",
    )
    bench.add_argument(
        "--only",
        help="comma-separated prefixes of the comparisons to run: SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached; "
        "of information, words in the names of tasks; of quality, names of arms",
    )
    bench.add_argument(
        "--seeds", type=int, default=1, help="information: samples of each task (1); quality: seeds (1)"
    )
    bench.add_argument(
        "--record",
        type=Path,
        help="information, quality: JSON Lines file of results; the same command resumes",
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
    if args.what == "quality":
        return _quality(args)
    return _speed(args, rows) if args.what == "speed" else _information(args, rows)


def _rows(text: str) -> list[int]:
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if min(sizes) < 2:
        raise UserError(f"--rows was {text}; expected a whole number from 2")
    return sizes


def _say(args: argparse.Namespace) -> Callable[[str], None]:
    """Prints progress: not to the output, where --json has it."""
    return (lambda line: print(line, file=sys.stderr)) if args.json else print


def _print_results(args: argparse.Namespace, results: Sequence[Any], lines: Iterable[str]) -> None:
    """One JSON object for each result (a dataclass), or the lines of a table."""
    print(*([json.dumps(list(map(asdict, results)))] if args.json else lines), sep="\n")


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
    from nearfar.bench.information import information_chart, information_table, run_information
    from nearfar.bench.information_tasks import information_tasks

    check_whole("--seeds", args.seeds, 1)
    if min(sizes) < MIN_TASK_ROWS:
        raise UserError(f"--rows was {args.rows}; a task needs at least {MIN_TASK_ROWS} rows")
    words = (args.only or "").split(",")
    tasks = [task for task in information_tasks() if any(word in task.name for word in words)]
    if not tasks:
        raise UserError(f"--only was {args.only}; no task has such a name, for instance Swiss or 25 × 25")
    results = run_information(tasks, sizes, args.seeds, not args.no_network, args.record, _say(args))
    _print_results(args, results, information_table(results))
    _write_chart(args.svg, lambda: information_chart(results))
    return DONE


def _quality(args: argparse.Namespace) -> int:
    from nearfar.bench.quality import (
        QualityBudget,
        quality_arms,
        quality_chart,
        quality_table,
        run_quality,
    )
    from nearfar.parts.encoders import check_backbone

    if args.data is None:
        raise UserError("bench quality needs --data, labelled images such as cifar10_train.parquet")
    for key, value in (("--epochs", args.epochs), ("--probes", args.probes), ("--seeds", args.seeds)):
        check_whole(key, value, 1)
    if not 0 < args.goal < 1:
        raise UserError(f"--goal was {args.goal:g}; expected an accuracy between 0 and 1")
    if args.backbone is not None:
        check_backbone(args.backbone)
    batch = args.batch_size or 256
    check_whole("--batch-size", batch, 2)
    named, usual = [*map(_variant, args.arm)], [arm.name for arm in quality_arms(args.backbone, batch, {})]
    variants, names = dict(named), [*usual, *(name for name, _ in named)]
    if len({*names}) < len(names):
        raise UserError(
            f"--arm was {', '.join(args.arm)}; expected names once each, other than {', '.join(usual)}"
        )
    arms = quality_arms(args.backbone, batch, variants)
    names = [name.strip() for name in (args.only or "nearfar,lightly").split(",")]
    selected = [arm for arm in arms if arm.name.startswith(tuple(names)) or arm.name in variants]
    if not selected:
        raise UserError(f"--only was {args.only}; expected prefixes of {', '.join(arm.name for arm in arms)}")
    budget = QualityBudget(args.data, args.test, args.epochs, args.probes)
    points = run_quality(selected, budget, args.seeds, args.record, _say(args))
    _print_results(args, points, quality_table(points, args.goal))
    _write_chart(args.svg, lambda: quality_chart(points))
    return DONE


def _variant(text: str) -> tuple[str, dict[str, Any]]:
    """An arm's name and settings from `NAME: key=value key=value`."""
    from nearfar.config.resolving import read_words, resolve

    name, colon, words = text.partition(":")
    if not (name.strip() and colon and words.strip()):
        raise UserError(f"--arm was {text!r}; expected 'NAME: key=value …', as in 'warm: lr=1e-3 epochs=5'")
    settings = read_words(words.split())
    resolve("simclr", "", settings)  # a mistake is reported before any arm starts
    return name.strip(), settings


def _speed(args: argparse.Namespace, sizes: list[int]) -> int:
    from nearfar.bench.arms import contests
    from nearfar.bench.measure import bar_chart, machine_line, run_bench, to_json
    from nearfar.parts.encoders import check_backbone

    if len(sizes) > 1:
        raise UserError(f"--rows was {args.rows}; the losses take one number of rows")
    rows = sizes[0]
    check_whole("--blocks", args.blocks, 1)
    batch = args.batch_size or 128
    check_whole("--batch-size", batch, 2)
    if not 0 < args.seconds <= 3600:
        raise UserError(f"--seconds was {args.seconds:g}; expected a number above 0, up to 3600")
    networks = (args.backbone or "resnet8-w16").split(",")
    for network in networks:
        check_backbone(network)
    only = tuple(args.only.split(",")) if args.only else ()
    if not contests(networks, batch, rows, only):
        raise UserError(
            f"--only was {args.only}; expected prefixes of SimCLR, MoCo, NT-Xent, CLIP, Multiple, Cached"
        )
    results = run_bench(
        args.blocks,
        args.seconds,
        _say(args),
        networks=networks,
        batch=batch,
        n=rows,
        only=only,
    )
    if args.json:
        print(json.dumps({"machine": machine_line(), **to_json(results)}))
    _write_chart(args.svg, lambda: bar_chart(results))
    return DONE
