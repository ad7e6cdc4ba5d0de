"""`nearfar detect`."""

import argparse
import json
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    detect = commands.add_parser(
        "detect",
        help="train an object detector on the backbone and compare with the untrained backbone",
        description="Trains a small detector on the run's backbone and one on the untrained backbone, with the same "
        "schedule, and compares them on B (COCO's figures).",
        epilog="example: nearfar detect runs/photos --train objects.parquet --data others.parquet",
    )
    detect.add_argument("run", type=Path, metavar="RUN", help="run folder")
    detect.add_argument(
        "--train",
        required=True,
        metavar="A",
        help="Parquet with image and objects, COCO's JSON, Pascal VOC's folder or list of images, or shapes:IMAGES",
    )
    detect.add_argument(
        "--data",
        metavar="B",
        help="data to test on, of the same classes; default: a held-out fifth of A",
    )
    detect.add_argument(
        "--same-labels",
        action="store_true",
        help="the class numbers of A and B mean the same; needed only if classes have no names",
    )
    detect.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder of the pictures that COCO's JSON names (default: beside it)",
    )
    detect.add_argument("--task", default="boxes", help="boxes, masks or keypoints (default boxes)")
    detect.add_argument(
        "--head",
        default="fpn",
        help="fpn: a pyramid of all stages; c4: the last stage of a resnet18 to 152 on boxes",
    )
    detect.add_argument("--fine-tune", action="store_true", help="train the backbone too (default: frozen)")
    detect.add_argument(
        "--class-agnostic",
        action="store_true",
        help="find objects without classifying them",
    )
    for name, kind, default, help_text in (
        ("--epochs", int, 8, "passes over A"),
        ("--batch-size", int, 4, "pictures in a step"),
        ("--lr", float, 1e-3, "highest learning rate of AdamW"),
        ("--size", int, 192, "shorter side of a picture in pixels"),
        ("--seed", int, 0, "random seed of heads and order"),
        ("--seeds", int, 1, "number of seeds, counted from --seed; figures are then means with their spread"),
    ):
        detect.add_argument(name, type=kind, default=default, help=f"{help_text} (default {default})")
    detect.add_argument("--no-baselines", action="store_true", help="leave out the untrained backbone")
    detect.add_argument("--quiet", action="store_true", help="no progress")
    detect.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    detect.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.detect.run import detect_run
    from nearfar.detect.table import table

    result = detect_run(
        args.run,
        args.train,
        args.data,
        images=args.images,
        baseline=not args.no_baselines,
        seeds=args.seeds,
        same_labels=args.same_labels,
        quiet=args.quiet,
        class_agnostic=args.class_agnostic,
        task=args.task,
        head=args.head,
        epochs=args.epochs,
        batch_size=args.batch_size,
        lr=args.lr,
        size=args.size,
        fine_tune=args.fine_tune,
        seed=args.seed,
    )
    print(json.dumps(result) if args.json else table(result))
    return DONE
