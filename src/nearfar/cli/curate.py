"""`nearfar curate`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import counted

TABLE_ROWS = 5  # rows of each table


def add(commands: Any) -> None:
    curate = commands.add_parser(
        "curate",
        help="find near-duplicates, outliers and doubtful labels",
        description="Compares each instance of DATA with its nearest neighbours in the features of RUN. Writes "
        "duplicates.parquet, outliers.parquet and, if there are labels, labels.parquet. `nearfar report RUN` "
        "then shows the clearest cases with pictures.",
        epilog="example: nearfar curate runs/photos photos/ --out curation/",
    )
    curate.add_argument("run", type=Path, metavar="RUN", help="run folder")
    curate.add_argument("data", metavar="DATA", help="data, as for pretrain")
    curate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    curate.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.core.tables import text_table
    from nearfar.run.trained import Run
    from nearfar.search import curate
    from nearfar.search.curate import summary_rows

    trained = Run.open(args.run)
    curation = curate(trained, args.data, args.out)
    for line in trained.ignored_files():
        print(line, file=sys.stderr)
    print(f"{curation.data}: {counted(curation.instances, 'instances')}")
    for name, table in curation.tables().items():
        print(f"\n{args.out / name}: {counted(table.num_rows, 'rows')}")
        if table.num_rows:
            print("\n".join(text_table(summary_rows(table, TABLE_ROWS))))
    return DONE
