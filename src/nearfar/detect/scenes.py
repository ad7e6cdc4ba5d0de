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
from nearfar.evaluate.matching import Unmatched, matched, splits_of_one_set
from nearfar.modalities.image.modality import LUMINANCE

HELD_SHARE = 0.2


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
        most = max((int(scene.labels.max(initial=-1)) for scene in self.scenes), default=-1)
        return max(len(self.classes), most + 1)

    def subset(self, rows: Sequence[int], name: str) -> "Scenes":
        return replace(self, name=name, scenes=tuple(self.scenes[row] for row in rows))

    def renumbered(self, numbers: Mapping[int, int], classes: tuple[str, ...]) -> "Scenes":
        """Under other numbers of the same objects."""
        scenes = [
            replace(scene, labels=np.array([numbers[label] for label in scene.labels.tolist()], np.int64))
            for scene in self.scenes
        ]
        return replace(self, scenes=tuple(scenes), classes=classes)

    def in_channels(self, count: int) -> "Scenes":
        """As a network of so many channels is shown them: colour as it is, or its luminance."""
        if count == 3:
            return self
        grey = lambda pixels: np.rint(pixels @ np.array(LUMINANCE)).astype(np.uint8)[..., None]
        return replace(self, scenes=tuple(replace(one, pixels=grey(one.pixels)) for one in self.scenes))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for scene in self.scenes:
            for held in (scene.pixels, scene.boxes.astype("<f4"), scene.labels.astype("<i8")):
                digest.update(np.ascontiguousarray(held).tobytes())
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        objects = sum(len(scene.labels) for scene in self.scenes)
        return {
            "name": self.name,
            "samples": len(self),
            "objects": objects,
            "fingerprint": self.fingerprint(),
        }


def open_scenes(spec: str, images: Path | None = None) -> Scenes:
    """`shapes`, `shapes:IMAGES` or `shapes:IMAGES:SEED` are drawn; else Parquet or COCO's JSON, with its pictures in `images` or beside it."""
    if spec.partition(":")[0] == "shapes":
        from nearfar.detect.shapes import drawn

        return drawn(spec)
    from nearfar.detect.read import from_json, from_parquet

    path = Path(spec)
    parquet = next(path.glob("*.parquet"), None) is not None if path.is_dir() else path.suffix == ".parquet"
    if not path.exists() or not (parquet or path.suffix == ".json"):
        raise UserError(
            f"{spec} is no data for detection; expected .parquet with image and objects (a file, or a folder of them), COCO's .json, or "
            "shapes:IMAGES"
        )
    scenes, classes = from_parquet(path) if parquet else from_json(path, images or path.parent)
    if not scenes:
        raise UserError(f"{spec} holds no picture that could be used")
    return Scenes(str(spec), tuple(scenes), classes)


def held_out(whole: Scenes, seed: int) -> tuple[Scenes, Scenes]:
    """Pictures to fit on, and a fifth of them to be asked about: a function of the seed."""
    if len(whole) < 2:
        raise UserError(f"{whole.name} has one picture, so none can be held out; give others with --data")
    shuffled = order(seed, 0, len(whole)).tolist()
    count = max(1, round(HELD_SHARE * len(whole)))
    asked, rest = sorted(shuffled[:count]), sorted(shuffled[count:])
    return (
        whole.subset(rest, f"{1 - HELD_SHARE:.0%} of {whole.name}"),
        whole.subset(asked, f"a held-out {HELD_SHARE:.0%} of {whole.name}"),
    )


def alike(fit: Scenes, ask: Scenes, same_labels: bool) -> tuple[Scenes, dict[str, Any]]:
    """`ask` in the numbering of `fit`, and which class was taken for which: by name, or by number where `same_labels` or the files'
    names say that both are numbered alike (`evaluate.matching`). A class may be listed in `fit` that no object of it is of."""
    found, known = (_numbers(one) for one in (ask, fit))
    if fit.classes and ask.classes:
        known = np.arange(len(fit.classes))
    elif splits_of_one_set(fit.name, ask.name):  # in few pictures either split may lack classes of the other
        known = found = np.union1d(known, found)
    try:
        matching = matched(found, ask, known, fit, same_labels)
    except Unmatched as problem:
        raise UserError(
            f"{problem}; a detector is tested on classes it was fitted to{f', so {problem.way}' if problem.way else ''}"
        ) from None
    numbers = dict(zip(found.tolist(), matching.labels.tolist(), strict=True))
    return ask.renumbered(numbers, fit.classes), matching.facts()


def _numbers(scenes: Scenes) -> Int[np.ndarray, "class"]:
    """Of the classes that objects are of."""
    return np.unique(np.concatenate([scene.labels for scene in scenes.scenes]).astype(np.int64))


def one_class(scenes: Scenes) -> Scenes:
    """Every object as just an object."""
    return scenes.renumbered(dict.fromkeys(range(scenes.class_count), 0), ("object",))
