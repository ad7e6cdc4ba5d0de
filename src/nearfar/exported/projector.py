"""Features for TensorBoard's projector: vectors, metadata and thumbnails.

tensorboard --logdir DIR/projector      # the tab PROJECTOR
"""

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.core.randomness import order
from nearfar.report.pictures import Sample, sheet_of, square
from nearfar.run.trained import Run
from nearfar.system.files import write_atomic

MAX_POINTS = 10_000  # more points are slow in the projector
MAX_SPRITE_SIDE = 8192  # pixels; limit of the projector


def write_projector(run: Run, data: Any, folder: Path) -> int:
    """Writes features of at most `MAX_POINTS` instances and returns the count."""
    images = run.open_data(data)
    rows = np.sort(order(0, 0, len(images))[:MAX_POINTS])
    instances = images.subset(rows)
    features = run.embed(instances).numpy()
    folder.mkdir(parents=True, exist_ok=True)
    lines = ("\t".join(f"{value:.6g}" for value in row) for row in features)
    write_atomic(folder / "features.tsv", "\n".join(lines) + "\n")
    write_atomic(folder / "metadata.tsv", "\n".join(_metadata(instances)) + "\n")
    side = _sprite(run, instances, folder / "sprite.png")
    write_atomic(
        folder / "projector_config.pbtxt",
        f'embeddings {{\n  tensor_name: "features"\n  tensor_path: "features.tsv"\n  metadata_path: "metadata.tsv"\n'
        f'  sprite {{\n    image_path: "sprite.png"\n    single_image_dim: {side}\n    single_image_dim: {side}\n  }}\n}}\n',
    )
    return len(rows)


def _metadata(data: Any) -> list[str]:
    """Returns the metadata table. With one column the projector expects no header."""
    names = [_cell(path) for path in data.paths]
    if data.labels is None:
        return names
    labels = [str(data.classes[label]) if data.classes else str(label) for label in data.labels]
    return ["name\tlabel", *(f"{name}\t{_cell(label)}" for name, label in zip(names, labels, strict=True))]


def _cell(text: Any) -> str:
    return " ".join(str(text).split())[:200] or "–"


def _sprite(run: Run, data: Any, path: Path) -> int:
    """Writes all thumbnails as one square image and returns the side of a thumbnail."""
    across = int(np.ceil(np.sqrt(len(data))))
    side = int(min(48, MAX_SPRITE_SIDE // across))
    pictures = Sample(run, data, np.arange(len(data))).pictures()
    sheet_of([square(picture, side) for picture in pictures], across, across).save(path)
    return side
