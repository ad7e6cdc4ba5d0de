"""`nearfar train`."""

import argparse
from typing import Any

from nearfar.cli import pretrain
from nearfar.cli.settings_help import settings_help

RECIPE = "supervised"


def add(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train the same encoder with labels; init=RUN fine-tunes; the same command resumes",
        usage="nearfar train DATA --out RUN [--config FILE] [key=value ...]",
        description="Learns an encoder and a classifier from labels by cross-entropy, with the loop, checkpoints and report of "
        "pretrain: it is the recipe `supervised`. DATA is labelled: class folders, a label column, labels "
        "in an .npz. init=RUN starts from a pretrained backbone, layer_decay=0.7 lets its early stages "
        "learn more slowly, labels=0.01 or labels=10 trains on that fraction of the labels, or on that many "
        "per class.",
        epilog=settings_help(),
    )
    train.add_argument("words", nargs="*", metavar="DATA key=value", help="labelled data, then settings")
    pretrain.add_options(train)
    train.set_defaults(command=run, several=True)


def run(args: argparse.Namespace) -> int:
    args.words = [RECIPE, *args.words]
    return pretrain.run(args)
