"""`nearfar evaluate`."""

import argparse
import json
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.urls import ALLOW_URLS
from nearfar.errors import NotSaved

OPTIONS = ("labels", "draws", "shots", "ways", "episodes", "epochs", "lr", "layer_decay", "batch_size")


def add(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="measure how good an encoder is, here or on other data, beside baselines"
    )
    evaluate.add_argument("run", type=Path, metavar="RUN", help="run folder")
    evaluate.add_argument("--train", metavar="A", help="labelled data to fit on (default: the run's data)")
    evaluate.add_argument(
        "--data",
        metavar="B",
        help="labelled data to test on; without it a fifth of what is fitted on is held out",
    )
    evaluate.add_argument(
        "--same-labels",
        action="store_true",
        help="A and B number their classes alike; only needed where the classes have no names",
    )
    evaluate.add_argument(
        "--protocol",
        default="knn,linear",
        help="separated by commas: knn, nn (the nearest by distance), linear, mlp, finetune, fractions (linear on part of the labels), "
        "finetune-fractions, classifier (the own one of a run of train), few-shot, clustering, retrieval, calibration, information (a proven bound on what features tell about "
        "the label), quality (without labels: RankMe, LiDAR, alpha-ReQ, uniformity, alignment, nats) (default: knn,linear)",
    )
    evaluate.add_argument(
        "--features",
        default="pooled",
        choices=("pooled", "map", "head"),
        help="of the backbone, the map it pools, or its head's output (default: pooled)",
    )
    for key, which in (("--image-column", "pictures"), ("--label-column", "labels")):
        evaluate.add_argument(
            key, metavar="NAME", help=f"of A and B: the column of {which}, if not called as usual"
        )
    evaluate.add_argument("--image-size", type=int, metavar="N", help="side of a view (default: the run's)")
    evaluate.add_argument("--k", type=int, default=20, help="neighbours of knn (default 20)")
    evaluate.add_argument("--temperature", type=float, default=0.07, help="of knn's votes (default 0.07)")
    for flag, kind, meant in (
        ("--labels", _several(float), "of fractions: shares or numbers of each class (default 0.01,0.1)"),
        ("--draws", int, "of fractions and clustering (default 5)"),
        ("--shots", _several(int), "of few-shot: examples of each class (default 1,5)"),
        ("--ways", int, "of few-shot: classes in an episode (default 5)"),
        ("--episodes", int, "of few-shot (default 600)"),
        ("--epochs", int, "of fine-tuning, but at least 300 steps (default 20)"),
        ("--lr", _several(float), "of fine-tuning; of several the best on a fifth of A (default 1e-3)"),
        (
            "--layer-decay",
            float,
            "of fine-tuning: each stage learns at this multiple of the next (default 0.7)",
        ),
        ("--batch-size", int, "of fine-tuning (default 128)"),
    ):
        evaluate.add_argument(flag, type=kind, help=meant)
    evaluate.add_argument("--seed", type=int, default=0, help="of splits and draws (default 0)")
    beside = evaluate.add_mutually_exclusive_group()
    beside.add_argument(
        "--baselines",
        metavar="NAMES",
        help="of the baselines these alone, separated by commas: untrained is the encoder's own, pixels (mfcc, …) the raw input (default: all)",
    )
    beside.add_argument(
        "--no-baselines",
        action="store_true",
        help="leave out the baselines: raw input and the untrained encoder",
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    evaluate.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    evaluate.set_defaults(command=run, several=True)


def _several(kind: type[int] | type[float]) -> Any:
    """Numbers separated by commas."""

    def read(text: str) -> tuple[float, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            whole = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(f"was {text!r}; expected {whole} separated by commas") from None

    return read


def _baselines(given: argparse.Namespace) -> bool | list[str]:
    if given.no_baselines or given.baselines is None:
        return not given.no_baselines
    return [name.strip() for name in given.baselines.split(",")]


def run(given: argparse.Namespace) -> int:
    from nearfar.distributed.ranks import join
    from nearfar.evaluate import evaluate_run, table
    from nearfar.run.trained import Run

    ranks = join()
    unsaved: NotSaved | None = None
    try:
        result = evaluate_run(
            Run.open(given.run, ranks=ranks, allow_urls=given.allow_urls),
            given.data,
            protocols=[name.strip() for name in given.protocol.split(",")],
            baselines=_baselines(given),
            k=given.k,
            temperature=given.temperature,
            train=given.train,
            same_labels=given.same_labels,
            seed=given.seed,
            features=given.features,
            image_size=given.image_size,
            image_column=given.image_column,
            label_column=given.label_column,
            **{name: value for name in OPTIONS if (value := getattr(given, name)) is not None},
        )
    except NotSaved as problem:  # figures that took an hour are shown, wherever they cannot be kept
        result, unsaved = problem.result, problem
    if ranks.first:
        print(json.dumps(result) if given.json else table(result))
    if unsaved is not None:
        raise unsaved
    return DONE
