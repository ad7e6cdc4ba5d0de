"""Whether contrastive training from pretrained weights beats training from scratch, at the same budget.

    python benchmarks/starts.py imagenette96_train.parquet imagenette96_val.parquet --out runs/starts

1. timm's resnet10t learns the first half of the classes with labels. The file is written by timm
   (`save_for_hf`): model.safetensors and config.json with input size and statistics.
2. SimCLR learns the other half without labels: from scratch, from that file, and from it with `freeze`.
   Epochs and views are the same; figures are those of the last epoch.
3. kNN and linear classification of the other half of the validation set, fitted on the training set.

The same command resumes. About 20 minutes of one core with the defaults.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import timm

import nearfar as nf
from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import markdown_table

NETWORK = "resnet10t"
PROTOCOLS = ("knn", "linear")
Score = dict[str, float]


def write_half(source: Path, target: Path, classes: range, column: str) -> Path:
    """The rows of some classes, which are numbered from 0 again."""
    table = pq.read_table(source)
    labels = table[column]
    rows = pc.and_(pc.greater_equal(labels, classes.start), pc.less(labels, classes.stop))
    half = table.filter(rows)
    renumbered = pc.subtract(half[column], classes.start).cast(pa.int64())
    half = half.set_column(half.schema.get_field_index(column), column, renumbered)
    pq.write_table(half.replace_schema_metadata(None), target)
    return target


def write_weights(run: nf.Run, folder: Path) -> Path:
    """The encoder of a supervised run as timm writes a network: safetensors and config.json."""
    shown = run.description
    overlay = {"input_size": (3, shown.size, shown.size), "mean": shown.mean, "std": shown.std}  # type: ignore[attr-defined]
    net = timm.create_model(NETWORK, num_classes=0, pretrained_cfg_overlay=overlay)
    net.load_state_dict(run.encoder().cpu().net.state_dict())  # type: ignore[union-attr]
    timm.models.save_for_hf(net, folder, safe_serialization=True)
    return folder / "model.safetensors"


def top1(run: nf.Run, train: Path, test: Path) -> Score:
    result = nf.evaluate(run, train=str(train), data=str(test), protocols=list(PROTOCOLS), same_labels=True)
    return {protocol: 100 * result[protocol]["top1"] for protocol in PROTOCOLS}


def row(name: str, scores: list[Score]) -> list[str]:
    cells = []
    for protocol in PROTOCOLS:
        mean, spread = mean_and_spread([score[protocol] for score in scores])
        cells.append(f"{mean:.1f}" if len(scores) == 1 else f"{mean:.1f} ± {spread:.1f}")
    return [name, str(len(scores)), *cells]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--supervised-epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--image-size", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--classes", type=int, default=10)
    arguments = parser.parse_args()
    out, half = arguments.out, arguments.classes // 2
    out.mkdir(parents=True, exist_ok=True)
    sets = {
        name: write_half(source, out / f"{name}.parquet", classes, arguments.label_column)
        for name, source, classes in (
            ("first", arguments.train, range(half)),
            ("train", arguments.train, range(half, arguments.classes)),
            ("test", arguments.test, range(half, arguments.classes)),
        )
    }
    settings: dict[str, Any] = {
        "backbone": f"timm/{NETWORK}",
        "image_size": arguments.image_size,
        "batch_size": arguments.batch_size,
        "label_column": arguments.label_column,
        "probe_every": 0,
        "held_out": 0,
        "workers": 1,
        "logger": "none",
        "quiet": True,
    }
    supervised = nf.train(
        str(sets["first"]), out=out / "supervised", epochs=arguments.supervised_epochs, **settings
    )
    file = str(write_weights(supervised, out / "weights"))
    arms: dict[str, dict[str, Any]] = {
        "from scratch": {},
        "from the file": {"init": file},
        "from the file, freeze=stem,stage1": {"init": file, "freeze": "stem,stage1"},
    }
    scores: dict[str, list[Score]] = {"the file, not trained further": []}
    scores["the file, not trained further"].append(top1(supervised, sets["train"], sets["test"]))
    for seed in range(arguments.seeds):
        for place, (name, changes) in enumerate(arms.items()):
            run = nf.pretrain(
                "simclr",
                str(sets["train"]),
                out=out / f"arm{place}-{seed}",
                epochs=arguments.epochs,
                seed=seed,
                **settings,
                **changes,
            )
            scores.setdefault(name, []).append(top1(run, sets["train"], sets["test"]))
            print(f"{name}, seed {seed}: {scores[name][-1]}", flush=True)
    head = ["start", "seeds", *PROTOCOLS]
    for line in markdown_table([head, *(row(name, values) for name, values in scores.items())]):
        print(line)


if __name__ == "__main__":
    main()
