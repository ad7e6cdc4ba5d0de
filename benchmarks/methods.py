"""Methods beside one another at one small budget: the same pictures, epochs, network and optimiser.

    python -m benchmarks.methods TRAIN TEST --out DIR [--images 5000] [--seeds 0,1,2] [--arms "a;b"] [--choose]
                                 [--epochs 5] [--equal-pixels] [key=value ...]

TRAIN and TEST are labelled pictures of one size (Parquet). `--images` random pictures of TRAIN are
trained on; the next 2,000 are what settings are chosen on (`--choose`), so that TEST is read once. Every arm is
trained with every seed and evaluated by kNN and a linear probe, both fitted to the training pictures; the table
has mean and sample deviation over seeds. `key=value` are settings of all arms. The same command again continues.

An arm is a recipe, or a recipe and its crops: "simclr", "simclr 2x16,4x8". With `--equal-pixels`, arms with more
than two crops have fewer epochs, so that the network sees as many pixels: 2x16,4x8 has 2/3 of the epochs. The
last columns are CPU seconds and epochs.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import nearfar as nf
from nearfar.core.statistics import mean_and_spread
from nearfar.data import open_data

VALIDATION = 2000
NETWORK = "resnet8-w8"
SIDE, CROPS = 16, "2x16,4x8"
RECIPES = ("simclr", "moco", "byol", "barlow", "swav", "dino", "sigreg", "lejepa")
ARMS = (*RECIPES, *(f"{name} {CROPS}" for name in ("simclr", "swav", "dino", "lejepa")))
FIGURES = ("knn", "linear")
BASELINES = ("pixels", "untrained")


def write_split(train: str, test: str, images: int, folder: Path) -> None:
    """Writes the pictures of training, choosing and testing as .npz."""
    data, held = open_data(train), open_data(test)
    order = np.random.default_rng(0).permutation(len(data))
    parts = {
        "train": (data, order[:images]),
        "validation": (data, order[images : images + VALIDATION]),
        "test": (held, np.arange(len(held))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (source, rows) in parts.items():
        if not (folder / f"{name}.npz").exists():
            np.savez(folder / f"{name}.npz", images=source.load(rows).data, labels=source.labels[rows])


def equal_pixels(arm: str, epochs: int) -> int:
    """Epochs in which an arm's crops have as many pixels as two crops of the largest size in `epochs`."""
    _, *crops = arm.split()
    if not crops:
        return epochs
    groups = [tuple(map(int, group.split("x"))) for group in crops[0].split(",")]
    pixels = sum(count * side**2 for count, side in groups)
    return max(1, round(epochs * 2 * groups[0][1] ** 2 / pixels))


def measure(
    arm: str, seed: int, out: Path, test: str, epochs: int, changes: dict[str, Any]
) -> dict[str, float]:
    """The accuracies of a run in percent, those of the baselines, its CPU seconds and epochs."""
    folder = out / f"{arm.replace(' ', '-').replace(',', '-')}-{seed}"
    file = folder / f"{test}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    recipe, *crops = arm.split()
    settings = {
        **({"views.crops": crops[0]} if crops else {}),
        "backbone": NETWORK,
        "image_size": SIDE,
        "batch_size": 128,
        "probe_every": 0,
        "held_out": 0,
        "workers": 1,
        **changes,
    }
    start = time.process_time()
    data = str(out / "train.npz")
    run = nf.pretrain(recipe, data, folder, quiet=True, seed=seed, epochs=epochs, config=settings)
    seconds_file = folder / "seconds.json"  # a run that is finished takes none
    if not seconds_file.exists():
        seconds_file.write_text(json.dumps(time.process_time() - start))
    baselines = list(BASELINES) if arm == RECIPES[0] else []
    result = nf.evaluate(
        run,
        train=data,
        data=str(out / f"{test}.npz"),
        protocols=list(FIGURES),
        baselines=baselines,
        same_labels=True,
    )
    figures = {name: 100 * result[name]["top1"] for name in FIGURES}
    for baseline in baselines:
        for name in FIGURES:
            figures[f"{baseline} {name}"] = 100 * result["baselines"][baseline][name]["top1"]
    figures |= {"seconds": json.loads(seconds_file.read_text()), "epochs": epochs}
    file.write_text(json.dumps(figures))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--equal-pixels", action="store_true")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default="")
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_intermixed_args()
    write_split(options.train, options.test, options.images, options.out)
    changes = dict(word.split("=", 1) for word in options.settings)
    arms = options.arms.split(";") if options.arms else list(ARMS)
    for arm in arms:
        epochs = equal_pixels(arm, options.epochs) if options.equal_pixels else options.epochs
        test = "validation" if options.choose else "test"
        results = [
            measure(arm, int(seed), options.out, test, epochs, changes) for seed in options.seeds.split(",")
        ]
        print(_line(arm, [[result[name] for result in results] for name in (*FIGURES, "seconds", "epochs")]))
        for baseline in BASELINES if arm == RECIPES[0] else ():
            columns = [[result[f"{baseline} {name}"] for result in results] for name in FIGURES]
            print(_line(baseline, columns), flush=True)


def _line(arm: str, columns: list[list[float]]) -> str:
    values = [mean_and_spread(column) for column in columns]
    cells = [f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}" for mean, spread in values]
    return f"| {arm} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
