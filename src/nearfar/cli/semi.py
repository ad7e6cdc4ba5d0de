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
  pretrain/   RECIPE on all of DATA; settings without a prefix belong to it (--init OTHER uses an existing run)
  scratch/    the same network trained on the few labels only, for comparison
  finetune/   backbone and first head layer, fine-tuned on the few labels; finetune.lr=1e-3, from_layer=2
  distil/     a student learns the outputs of the fine-tuned network on all of DATA; distil.epochs=20, student=resnet8-w16

See docs/semi.md.
"""


def add(commands: Any) -> None:
    semi = commands.add_parser(
        "semi",
        help="few labels: pretrain, fine-tune from the middle of the head, self-distil (SimCLR v2); resumable",
        usage="nearfar semi RECIPE DATA --labels SHARE|N|FILE --out RUN [--data TEST] [key=value ...]",
        description="Many instances, few labels (Chen, Kornblith et al. 2020): pretrains without labels, fine-tunes on the few, and distils the "
        "fine-tuned network on all instances; beside them the same network from scratch and a linear probe.",
        epilog=EPILOG,
    )
    semi.add_argument("words", nargs="*", metavar="RECIPE DATA key=value", help="see nearfar pretrain --help")
    semi.add_argument(
        "--labels",
        help="a fraction (0.01), a number per class (10), or a .csv or .parquet file: path (or index), label",
    )
    semi.add_argument("--out", type=Path, metavar="RUN", help="folder of the stages")
    semi.add_argument("--data", metavar="TEST", help="labelled test data, for the table")
    semi.add_argument(
        "--init", type=Path, metavar="OTHER", help="a pretrained run, instead of the first stage"
    )
    semi.add_argument(
        "--draws",
        type=int,
        default=1,
        metavar="N",
        help="number of draws of the labels; figures are means with standard deviations (default 1)",
    )
    semi.add_argument(
        "--same-labels", action="store_true", help="the class numbers of DATA and TEST mean the same"
    )
    semi.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    semi.add_argument("--no-report", dest="report", action="store_false", help="do not draw RUN/report.html")
    semi.add_argument("--quiet", action="store_true", help="no progress")
    semi.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.cli.pretrain import split_words
    from nearfar.simclrv2.labels import read_labels
    from nearfar.simclrv2.run import run_semi
    from nearfar.simclrv2.stages import SemiRequest, read_stage_settings

    recipe, data, words = split_words(args.words, {})
    for option in ("labels", "out"):
        if getattr(args, option) is None:
            example = {"labels": "--labels 0.01", "out": "--out runs/few"}[option]
            raise UserError(f"--{option} is missing; for instance {example}")
    stage_settings, labels = read_stage_settings(words), read_labels(args.labels)
    request = SemiRequest(
        recipe, data, labels, args.out, stage_settings, args.data, args.init, args.draws, args.same_labels, args.quiet
    )  # fmt: skip
    report = run_semi(request)
    if args.json:
        print(json.dumps(report.as_json()))
    else:
        print(report)
    if args.report and find_spec("jinja2") is None:
        print(
            "no report page: pip install 'nearfar[report]' and run the same command again",
            file=sys.stderr,
        )
    elif args.report:
        page = report.write_page(args.out / "report.html", data)
        print(f"all stages on one page: {page}", file=sys.stderr if args.json else sys.stdout)
    return DONE
