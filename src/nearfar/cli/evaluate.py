"""`nearfar evaluate`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.urls import ALLOW_URLS
from nearfar.errors import NotSaved

OPTIONS = ("labels", "draws", "shots", "ways", "episodes", "epochs", "lr", "layer_decay", "batch_size")


def add(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="measure how good an encoder is, beside baselines",
        description="Fits simple classifiers to the frozen features of A and tests them on B, beside the untrained "
        "encoder and raw inputs. Results are printed and stored in RUN/evaluation.json.",
        epilog="example: nearfar evaluate runs/photos --train labelled/ --data test/ --protocol knn,linear",
    )
    evaluate.add_argument("run", type=Path, metavar="RUN", help="run folder")
    evaluate.add_argument("--train", metavar="A", help="labelled data to fit on (default: the run's data)")
    evaluate.add_argument(
        "--data",
        metavar="B",
        help="labelled data to test on (default: a held-out fifth of A)",
    )
    evaluate.add_argument(
        "--same-labels",
        action="store_true",
        help="the class numbers of A and B mean the same; needed only if classes have no names",
    )
    evaluate.add_argument(
        "--protocol",
        default="knn,linear",
        help="comma-separated (default: knn,linear). With labels: knn, nn (nearest neighbour by distance), linear, "
        "linear-sgd, mlp, finetune, fractions (linear on part of the labels), finetune-fractions, classifier (of a "
        "run of nearfar train); few-shot, clustering, retrieval, calibration, information (a proven lower bound on "
        "the information about the label). Without labels: quality (RankMe, LiDAR, alpha-ReQ, uniformity, "
        "alignment, nats)",
    )
    evaluate.add_argument(
        "--features",
        default="pooled",
        choices=("pooled", "map", "head"),
        help="features of the backbone: pooled, the map before pooling, or the output of the head (default: pooled)",
    )
    for key, content in (("--image-column", "image"), ("--label-column", "label")):
        evaluate.add_argument(
            key,
            metavar="NAME",
            help=f"{content} column of A and B (default: {content} and other usual names)",
        )
    evaluate.add_argument("--image-size", type=int, metavar="N", help="side of a view (default: the run's)")
    evaluate.add_argument("--k", type=int, default=20, help="number of neighbours of knn (default 20)")
    evaluate.add_argument(
        "--temperature",
        type=float,
        default=0.07,
        help="temperature of the weights of knn votes (default 0.07)",
    )
    for flag, kind, help_text in (
        (
            "--labels",
            _comma_separated(float),
            "labels used by fractions: fractions, or numbers per class (default 0.01,0.1)",
        ),
        ("--draws", int, "repetitions of fractions and clustering (default 5)"),
        ("--shots", _comma_separated(int), "examples of each class in few-shot (default 1,5)"),
        ("--ways", int, "classes in an episode of few-shot (default 5)"),
        ("--episodes", int, "number of episodes of few-shot (default 600)"),
        ("--epochs", int, "epochs of fine-tuning (default 20, but at least 300 steps)"),
        (
            "--lr",
            _comma_separated(float),
            "learning rate of fine-tuning; several, comma-separated, are compared on a held-out fifth of A (default 1e-3)",
        ),
        (
            "--layer-decay",
            float,
            "in fine-tuning each stage learns at this multiple of the next stage's rate (default 0.7)",
        ),
        ("--batch-size", int, "batch size of fine-tuning (default 128)"),
    ):
        evaluate.add_argument(flag, type=kind, help=help_text)
    evaluate.add_argument("--seed", type=int, default=0, help="random seed of splits and draws (default 0)")
    baselines = evaluate.add_mutually_exclusive_group()
    baselines.add_argument(
        "--baselines",
        metavar="NAMES",
        help="comma-separated baselines to run: untrained (the encoder before training), pixels (mfcc, …: the raw input) (default: all)",
    )
    baselines.add_argument(
        "--no-baselines",
        action="store_true",
        help="skip the baselines",
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    evaluate.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    evaluate.set_defaults(command=run, several=True)


def _comma_separated(kind: type[int] | type[float]) -> Any:
    """Returns a parser of comma-separated numbers."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            expected = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(
                f"was {text!r}; expected {expected} separated by commas"
            ) from None

    return parse


def _baselines(args: argparse.Namespace) -> bool | list[str]:
    if args.no_baselines or args.baselines is None:
        return not args.no_baselines
    return [name.strip() for name in args.baselines.split(",")]


def run(args: argparse.Namespace) -> int:
    from nearfar.distributed.strategy import join
    from nearfar.evaluate import evaluate_run, table
    from nearfar.run.trained import Run

    strategy = join()
    unsaved: NotSaved | None = None
    trained = Run.open(args.run, strategy=strategy, allow_urls=args.allow_urls)
    try:
        result = evaluate_run(
            trained,
            args.data,
            protocols=[name.strip() for name in args.protocol.split(",")],
            baselines=_baselines(args),
            k=args.k,
            temperature=args.temperature,
            train=args.train,
            same_labels=args.same_labels,
            seed=args.seed,
            features=args.features,
            image_size=args.image_size,
            image_column=args.image_column,
            label_column=args.label_column,
            **{name: value for name in OPTIONS if (value := getattr(args, name)) is not None},
        )
    except NotSaved as problem:  # print the result although it could not be saved
        result, unsaved = problem.result, problem
    if strategy.is_first:
        for line in trained.ignored_files():
            print(line, file=sys.stderr)
        print(json.dumps(result.to_json()) if args.json else table(result))
    if unsaved is not None:
        raise unsaved
    return DONE
