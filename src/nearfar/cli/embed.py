"""`nearfar embed`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError, counted


def add(commands: Any) -> None:
    embed = commands.add_parser(
        "embed",
        help="write features of data, with paths and labels, as Parquet",
        description="Writes a row for each instance of DATA: its features, path and label.",
        epilog="example: nearfar embed runs/photos photos/ --out features.parquet",
    )
    embed.add_argument("run", type=Path, metavar="RUN", help="run folder")
    embed.add_argument("data", metavar="DATA", help="data, as for pretrain")
    embed.add_argument("--out", type=Path, required=True, metavar="FILE.parquet", help="file to write")
    for key, content in (("--image-column", "image"), ("--label-column", "label")):
        embed.add_argument(
            key, metavar="NAME", help=f"{content} column of DATA (default: {content} and other usual names)"
        )
    embed.set_defaults(command=run, several=True)


def run(args: argparse.Namespace) -> int:
    from nearfar.data import Columns, locate
    from nearfar.distributed.strategy import join
    from nearfar.run.embed import write_embedding
    from nearfar.run.trained import Run
    from nearfar.system.files import check_output

    if args.out.suffix != ".parquet" or args.out.is_dir():
        raise UserError(
            f"--out was {args.out}; embed writes a Parquet file, so name one that ends in .parquet"
        )
    check_output("--out", args.out, [args.data], b"par1")
    strategy = join()
    columns = Columns(args.image_column, args.label_column)
    data = locate(args.data, columns=columns) if columns else args.data
    trained = Run.open(args.run, strategy=strategy)
    rows, width = write_embedding(trained, data, args.out)
    if strategy.is_first:
        for line in trained.ignored_files():
            print(line, file=sys.stderr)
        print(f"{args.out}: {counted(rows, 'rows')} of {width} features")
    return DONE
