"""`nearfar semi`."""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError

EPILOG = """\
stages, each a run below RUN that the same command resumes:
  pretrain/   RECIPE on all of DATA; settings without a prefix are its own (--init OTHER takes a run that is there)
  scratch/    the same network by the few labels alone, for comparison
  finetune/   backbone and the first layer of its head go on, by the few labels; finetune.lr=1e-3, from_layer=2
  distil/     a student learns what the fine-tuned one says of all of DATA; distil.epochs=20, student=resnet8-w16

docs/semi.md says what is done and why.
"""


def add(commands: Any) -> None:
    semi = commands.add_parser(
        "semi",
        help="few labels: pretrain, fine-tune from the middle of the head, self-distil (SimCLR v2); resumable",
        usage="nearfar semi RECIPE DATA --labels SHARE|N|FILE --out RUN [--data TEST] [key=value ...]",
        description="Many instances, few labels (Chen, Kornblith et al. 2020): pretrains without labels, fine-tunes on the few, and teaches a student what the "
        "fine-tuned network says of all instances; beside them the same network from scratch and a linear probe.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    semi.add_argument("words", nargs="*", metavar="RECIPE DATA key=value", help="see nearfar pretrain --help")
    semi.add_argument(
        "--labels",
        help="a share (0.01), a number of each class (10), or a .csv or .parquet file: path (or index), label",
    )
    semi.add_argument("--out", type=Path, metavar="RUN", help="folder of the stages")
    semi.add_argument("--data", metavar="TEST", help="labelled test data, for the table")
    semi.add_argument(
        "--init", type=Path, metavar="OTHER", help="a pretrained run, in place of the first stage"
    )
    semi.add_argument(
        "--draws",
        type=int,
        default=1,
        metavar="N",
        help="of the labels: mean and deviation over N draws (default 1)",
    )
    semi.add_argument("--same-labels", action="store_true", help="DATA and TEST number their classes alike")
    semi.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    semi.add_argument("--no-report", dest="report", action="store_false", help="do not draw RUN/report.html")
    semi.add_argument("--quiet", action="store_true", help="no progress")
    semi.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.cli.pretrain import split_words
    from nearfar.simclrv2.labels import read_labels
    from nearfar.simclrv2.run import run_semi
    from nearfar.simclrv2.stages import Semi, read_told

    recipe, data, words = split_words(given.words, {})
    for option in ("labels", "out"):
        if getattr(given, option) is None:
            example = {"labels": "--labels 0.01", "out": "--out runs/few"}[option]
            raise UserError(f"--{option} is missing; for instance {example}")
    told, labels = read_told(words), read_labels(given.labels)
    asked = Semi(
        recipe, data, labels, given.out, told, given.data, given.init, given.draws, given.same_labels, given.quiet
    )  # fmt: skip
    report = run_semi(asked)
    if given.json:
        print(json.dumps(report.as_json()))
    else:
        print(report)
    if given.report and find_spec("jinja2") is None:
        print(
            "no page of all stages: pip install 'nearfar[report]', and the same command draws it",
            file=sys.stderr,
        )
    elif given.report:
        page = report.write_page(given.out / "report.html", data)
        print(f"all stages on one page: {page}", file=sys.stderr if given.json else sys.stdout)
    return DONE
