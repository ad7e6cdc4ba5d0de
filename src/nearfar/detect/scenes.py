"""Pictures with objects in them: read from a file, drawn, held out from one another, and numbered alike."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from nearfar.core.randomness import order
from nearfar.errors import UserError
from nearfar.evaluate.matching import UnmatchedClasses, match_labels, splits_of_one_set
from nearfar.modalities.image.networks import LUMINANCE

HOLDOUT_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Scene:
    """One picture and its objects; boxes are (left, top, right, bottom), keypoints (x, y, visible)."""

    pixels: UInt8[np.ndarray, "height width channel"]
    boxes: Float[np.ndarray, "object 4"]
    labels: Int[np.ndarray, "object"]  # from 0
    crowd: Bool[np.ndarray, "object"]
    masks: Bool[np.ndarray, "object height width"] | None = None
    keypoints: Float[np.ndarray, "object point 3"] | None = None


@dataclass(frozen=True, eq=False)
class Scenes:
    """`classes` are their names, () where they are numbers alone."""

    name: str
    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def class_count(self) -> int:
        largest_label = max((int(scene.labels.max(initial=-1)) for scene in self.scenes), default=-1)
        return max(len(self.classes), largest_label + 1)

    def subset(self, rows: Sequence[int], name: str) -> "Scenes":
        return replace(self, name=name, scenes=tuple(self.scenes[row] for row in rows))

    def renumbered(self, numbers: Mapping[int, int], classes: tuple[str, ...]) -> "Scenes":
        """Returns the scenes with other class numbers."""
        scenes = [
            replace(scene, labels=np.array([numbers[label] for label in scene.labels.tolist()], np.int64))
            for scene in self.scenes
        ]
        return replace(self, scenes=tuple(scenes), classes=classes)

    def in_channels(self, count: int) -> "Scenes":
        """Returns the scenes with `count` channels: colour as it is, or its luminance."""
        if count == 3:
            return self
        grey = lambda pixels: np.rint(pixels @ np.array(LUMINANCE)).astype(np.uint8)[..., None]
        return replace(self, scenes=tuple(replace(one, pixels=grey(one.pixels)) for one in self.scenes))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for scene in self.scenes:
            for array in (scene.pixels, scene.boxes.astype("<f4"), scene.labels.astype("<i8")):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        objects = sum(len(scene.labels) for scene in self.scenes)
        counts = {"samples": len(self), "objects": objects}
        return {"name": self.name, **counts, "fingerprint": self.fingerprint()}


def open_scenes(spec: str, images: Path | None = None) -> Scenes:
    """`shapes`, `shapes:IMAGES` or `shapes:IMAGES:SEED` are drawn; else Parquet, COCO's JSON, with its
    pictures in `images` or beside it, or Pascal VOC's folder or list of images."""
    if spec.partition(":")[0] == "shapes":
        return synthetic_scenes(spec)
    from nearfar.detect.read import from_json, from_parquet, from_voc, is_voc

    path = Path(spec)
    parquet = next(path.glob("*.parquet"), None) is not None if path.is_dir() else path.suffix == ".parquet"
    voc = path.exists() and not parquet and is_voc(path)
    if not path.exists() or not (parquet or voc or path.suffix == ".json"):
        raise UserError(
            f"{spec} cannot be used for detection; expected .parquet with image and objects (a file, or a "
            "folder of them), COCO's .json, Pascal VOC's folder or list of images, or shapes:IMAGES"
        )
    if voc:
        scenes, classes = from_voc(path)
    else:
        scenes, classes = from_parquet(path) if parquet else from_json(path, images or path.parent)
    if not scenes:
        raise UserError(f"{spec} contains no usable image")
    return Scenes(str(spec), tuple(scenes), classes)


def split_holdout(scenes: Scenes, seed: int) -> tuple[Scenes, Scenes]:
    """Returns training and test scenes; a fifth is held out, as a function of the seed."""
    if len(scenes) < 2:
        raise UserError(f"{scenes.name} has one image, so none can be held out; pass test data with --data")
    shuffled = order(seed, 0, len(scenes)).tolist()
    count = max(1, round(HOLDOUT_SHARE * len(scenes)))
    test_rows, train_rows = sorted(shuffled[:count]), sorted(shuffled[count:])
    return (
        scenes.subset(train_rows, f"{1 - HOLDOUT_SHARE:.0%} of {scenes.name}"),
        scenes.subset(test_rows, f"a held-out {HOLDOUT_SHARE:.0%} of {scenes.name}"),
    )


def match_classes(train: Scenes, test: Scenes, same_labels: bool) -> tuple[Scenes, dict[str, Any]]:
    """Returns `test` with the class numbers of `train`, and which class was matched with which.

    Classes match by name, or by number if `same_labels` or the file names say so (`evaluate.matching`).
    `train` may list classes that have no object.
    """
    test_labels, train_labels = (_numbers(one) for one in (test, train))
    if train.classes and test.classes:
        train_labels = np.arange(len(train.classes))
    # in few pictures either split may lack classes of the other
    elif splits_of_one_set(train.name, test.name):
        train_labels = test_labels = np.union1d(train_labels, test_labels)
    try:
        matching = match_labels(test_labels, test, train_labels, train, same_labels)
    except UnmatchedClasses as problem:
        raise UserError(
            f"{problem}; a detector is tested on classes it was fitted "
            f"to{f', so {problem.remedy}' if problem.remedy else ''}"
        ) from None
    numbers = dict(zip(test_labels.tolist(), matching.labels.tolist(), strict=True))
    return test.renumbered(numbers, train.classes), matching.facts()


def _numbers(scenes: Scenes) -> Int[np.ndarray, "class"]:
    """Returns the class numbers that occur."""
    return np.unique(np.concatenate([scene.labels for scene in scenes.scenes]).astype(np.int64))


def merge_classes(scenes: Scenes) -> Scenes:
    """Returns the scenes with all classes merged into one (class-agnostic detection)."""
    return scenes.renumbered(dict.fromkeys(range(scenes.class_count), 0), ("object",))


# ------------------------------------------------------------------------------------------ synthetic scenes

# Ellipses and rectangles on noise, with exact masks and four keypoints. They test masks and keypoints without
# annotated data. Results on them do not transfer to photographs.
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
