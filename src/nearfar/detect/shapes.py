"""Synthetic scenes with exact ground truth: ellipses and rectangles on noise, masks, four keypoints.

They test masks and keypoints without annotated data. Results on them do not transfer to photographs.
"""

import numpy as np

from nearfar.detect.scenes import Scene, Scenes
from nearfar.errors import UserError

CLASSES = ("ellipse", "rectangle")
KEYPOINTS = ("top", "right", "bottom", "left")
SIDE = 96


def synthetic_scenes(spec: str) -> Scenes:
    """`shapes:IMAGES:SEED`; 64 images and seed 0 unless named."""
    _, *rest = spec.split(":")
    try:
        count, seed = (int(rest[0]) if rest else 64), (int(rest[1]) if len(rest) > 1 else 0)
    except ValueError:
        count, seed = 0, 0
    if count < 1 or seed < 0 or len(rest) > 2:
        raise UserError(f"data was {spec!r}; expected shapes:IMAGES or shapes:IMAGES:SEED")
    return Scenes(
        spec, tuple(_scene(np.random.default_rng([seed, place])) for place in range(count)), CLASSES
    )


def _scene(rng: np.random.Generator) -> Scene:
    pixels = rng.normal(90, 18, (SIDE, SIDE, 3))
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5  # the middles of pixels
    masks: list[np.ndarray] = []
    labels, boxes, points = [], [], []
    for _ in range(int(rng.integers(1, 4))):
        half = rng.uniform(9, 18, 2)  # of width and height
        x, y = (rng.uniform(side + 1, SIDE - side - 1) for side in half)
        label = int(rng.integers(2))
        u, v = (columns - x) / half[0], (rows - y) / half[1]
        mask = u**2 + v**2 <= 1 if label == 0 else (abs(u) <= 1) & (abs(v) <= 1)
        # objects do not overlap, so that the truth is exact
        if any((mask & drawn_mask).any() for drawn_mask in masks):
            continue
        pixels[mask] = (
            rng.uniform(150, 255, 3) * (1, 0.4, 0.4)
            if label == 0
            else rng.uniform(150, 255, 3) * (0.4, 0.5, 1)
        )
        masks.append(mask)
        labels.append(label)
        boxes.append((x - half[0], y - half[1], x + half[0], y + half[1]))
        ends = ((x, y - half[1]), (x + half[0], y), (x, y + half[1]), (x - half[0], y))
        points.append([(*end, 2) for end in ends])
    return Scene(
        np.clip(pixels, 0, 255).astype(np.uint8),
        np.array(boxes, dtype=np.float32),
        np.array(labels, dtype=np.int64),
        np.zeros(len(labels), dtype=bool),
        np.stack(masks),
        np.array(points, dtype=np.float32),
    )
