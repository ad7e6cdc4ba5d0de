"""`nearfar index`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import counted


def add(commands: Any) -> None:
    index = commands.add_parser(
        "index",
        help="write a vector index of features, for search",
        description="Writes a folder with the features of DATA for `nearfar search`, and index.faiss for other "
        "programs (inner product of vectors of length one).",
        epilog="example: nearfar index runs/photos photos/ --out index/; nearfar search runs/photos index/ --query cat.jpg",
    )
    index.add_argument("run", type=Path, metavar="RUN", help="run folder")
    index.add_argument("data", metavar="DATA", help="data, as for pretrain")
    index.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    index.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.run.trained import Run
    from nearfar.search import build_index

    trained = Run.open(args.run)
    index = build_index(trained, args.data, args.out)
    for line in trained.ignored_files():
        print(line, file=sys.stderr)
    print(f"{args.out}: {counted(len(index.paths), 'rows')} of {index.features.shape[1]} features")
    return DONE
