"""Columns of real tables ranked by their information about a target: ranking, CPU-seconds, and pictures.

    python benchmarks/real_tables.py FOLDER [DATA]        about 40 CPU-seconds

scikit-learn's diabetes, wine and breast cancer. DATA contains cifar10_test.parquet and fsdd_test.parquet;
with it also features of pictures (20 principal components of 2,000 CIFAR-10 pictures) about their class, and
of sound (mel cepstra of spoken digits) about the digit."""

import io
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import nearfar as nf
from nearfar.estimate.plot import draw_ranking

Table = tuple[dict[str, np.ndarray], np.ndarray, str]


def scikit_learn(name: str) -> Table:
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    target = data.target if name == "diabetes" else data.target_names[data.target]
    names = {"diabetes": "progression", "wine": "cultivar", "breast_cancer": "diagnosis"}
    return dict(zip(data.feature_names, data.data.T, strict=True)), target, names[name]


def pictures(data: Path) -> Table:
    import pyarrow.parquet as parquet
    from PIL import Image

    table = parquet.read_table(data / "cifar10_test.parquet").slice(0, 2000)
    pixels = np.stack(
        [
            np.asarray(Image.open(io.BytesIO(one["bytes"])).convert("RGB").resize((16, 16)), float).ravel()
            for one in table.column("image").to_pylist()
        ]
    )
    pixels -= pixels.mean(axis=0)
    components = pixels @ np.linalg.eigh(pixels.T @ pixels)[1][:, ::-1][:, :20]
    label = np.array([f"class {k}" for k in table.column("label").to_pylist()])
    return {f"component {k + 1}": column for k, column in enumerate(components.T)}, label, "class"


def sounds(data: Path) -> Table:
    import pyarrow.parquet as parquet

    from nearfar.modalities.sound.data import decode_sound
    from nearfar.modalities.sound.show import mfcc

    table = parquet.read_table(data / "fsdd_test.parquet")
    rows = []
    for one in table.column("audio").to_pylist():
        recording = decode_sound(one["bytes"])
        features = mfcc(recording.wave, recording.rate)
        rows.append(np.concatenate([features.mean(axis=0), features.std(axis=0)]))
    label = np.array([f"digit {k}" for k in table.column("label").to_pylist()])
    names = [f"{statistic} {k}" for statistic in ("mean", "spread") for k in range(len(rows[0]) // 2)]
    return dict(zip(names, np.array(rows).T, strict=True)), label, "digit"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Callable[[], Table]] = {
        name: partial(scikit_learn, name) for name in ("diabetes", "wine", "breast_cancer")
    }
    if len(sys.argv) > 2:
        data = Path(sys.argv[2])
        tables |= {"pictures": partial(pictures, data), "sounds": partial(sounds, data)}
    for name, load in tables.items():
        columns, target, about = load()
        began = time.process_time()
        ranking = nf.rank_columns(columns, target)
        seconds = time.process_time() - began
        draw_ranking(ranking, about, folder / f"{name}.svg")
        clear = sum(one.p_value < 0.05 for one in ranking)
        print(
            f"\n{name}: {len(target)} rows, {len(columns)} columns, {seconds:.1f} CPU-seconds, {clear} "
            "clear of chance"
        )
        for one in ranking[:5]:
            low, high = one.estimate.interval
            print(
                f"  {one.column:<26}{one.estimate.nats:.3f}  [{low:.3f}, {high:.3f}]  at least "
                f"{float(one.estimate.at_least):.3f}"
                f"  p {one.p_value:.1g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
