"""`nearfar search`."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    search = commands.add_parser(
        "search",
        help="list the instances most similar to a query",
        description="Lists the instances of DATA whose features are most similar to those of the query, by cosine.",
        epilog="example: nearfar search runs/photos photos/ --query cat.jpg",
    )
    search.add_argument("run", type=Path, metavar="RUN", help="run folder")
    search.add_argument("data", metavar="DATA", help="data, as for pretrain, or a folder of `nearfar index`")
    search.add_argument("--query", required=True, metavar="FILE", help="a file, or data with several queries")
    search.add_argument("--top", type=int, default=10, metavar="N", help="number of results (default 10)")
    search.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    search.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.core.tables import text_table
    from nearfar.run.trained import Run
    from nearfar.search import search

    trained = Run.open(args.run)
    answers = search(trained, args.data, args.query, args.top)
    for line in trained.ignored_files():
        print(line, file=sys.stderr)
    if args.json:
        print(json.dumps({path: [asdict(match) for match in matches] for path, matches in answers}))
        return DONE
    for path, matches in answers:
        has_labels = any(match.label is not None for match in matches)
        head = ["similarity", "path", *(["class"] if has_labels else [])]
        rows = [
            [f"{match.similarity:.3f}", match.path, *([match.label or "–"] if has_labels else [])]
            for match in matches
        ]
        print("\n".join([f"query {path}", *text_table([head, *rows])]))
    return DONE
