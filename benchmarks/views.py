"""Views per CPU-second against lightly's SimCLRTransform, one thread each.

    PYTHONPATH=src python benchmarks/views.py          # about a minute

Both make SimCLR's two views (crop, flip, jitter, greyscale, blur, normalise) of the same decoded images at
the same strengths. lightly gets PIL images, as from its data loader. Arms take turns; each turn is timed in
CPU-seconds of this thread, and the ratio is that of the medians. Compilation happens before the first turn.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from lightly.transforms import SimCLRTransform
from PIL import Image

from nearfar.core.types import Pixels
from nearfar.modalities.image.views import PIPELINES, Views

TURNS = 15
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def natural_images(count: int, size: int) -> np.ndarray:
    """Smooth colour fields with noise: what an image costs does not depend on what it shows."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(c).resize((size, size), Image.Resampling.BICUBIC)) for c in coarse]
    return np.clip(np.stack(smooth) + rng.normal(0, 8, (count, size, size, 3)), 0, 255).astype(np.uint8)


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def compare(size: int, ours_count: int, theirs_count: int) -> float:
    """Print both arms' views per CPU-second at `size`, the ratio between them returned."""
    images = natural_images(ours_count, size)
    pixels = Pixels(images, np.full((ours_count, 2), size, dtype=np.int32))
    index = np.arange(ours_count)
    views = Views(PIPELINES["simclr"], size, *IMAGENET)
    pictures = [Image.fromarray(image) for image in images[:theirs_count]]
    transform = SimCLRTransform(input_size=size)
    views(pixels, 0, 0, index)
    transform(pictures[0])
    ours, theirs = [], []
    for turn in range(TURNS):
        ours.append(2 * ours_count / seconds(lambda turn=turn: views(pixels, 0, turn, index)))  # type: ignore[misc]
        theirs.append(2 * theirs_count / seconds(lambda: [transform(picture) for picture in pictures]))
    mine, peer = statistics.median(ours), statistics.median(theirs)
    print(
        f"{size}x{size}: nearfar {mine:,.0f} views per CPU-second ({mine / 2:,.0f} images/s of two views), "
        f"lightly {peer:,.0f} ({peer / 2:,.0f} images/s), ratio {mine / peer:.1f}"
    )
    return mine / peer


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    compare(32, ours_count=2048, theirs_count=256)
    compare(96, ours_count=512, theirs_count=128)


if __name__ == "__main__":
    main()
