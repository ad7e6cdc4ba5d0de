"""Pictures with objects in them: from Parquet in the Hugging Face convention, from COCO's JSON, or drawn, with exact truth.

objects: {bbox: [[x, y, w, h], …], category: […], segmentation: [[[x, y, …], …], …], keypoints: [[x, y, v, …], …]}
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int, UInt8

from nearfar.errors import UserError
from nearfar.extras import need
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.decode import decode


@dataclass(frozen=True, eq=False)
class Scene:
    """One picture and its objects; boxes are (left, top, right, bottom), keypoints (x, y, visible)."""

    pixels: UInt8[np.ndarray, "height width 3"]
    boxes: Float[np.ndarray, "object 4"]
    labels: Int[np.ndarray, "object"]  # from 0
    crowd: Bool[np.ndarray, "object"]
    masks: Bool[np.ndarray, "object height width"] | None = None
    keypoints: Float[np.ndarray, "object point 3"] | None = None


@dataclass(frozen=True, eq=False)
class Scenes:
    name: str
    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.scenes)

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
    """`shapes`, `shapes:IMAGES` or `shapes:IMAGES:SEED` are drawn; else a Parquet file or COCO's JSON, with its pictures in `images` or beside it."""
    if spec.partition(":")[0] == "shapes":
        from nearfar.detect.shapes import drawn

        return drawn(spec)
    path = Path(spec)
    if path.suffix not in (".parquet", ".json") or not path.is_file():
        raise UserError(
            f"{spec} is no data for detection; expected a .parquet file with image and objects, COCO's .json, or shapes:IMAGES"
        )
    scenes, classes = (
        _from_parquet(path) if path.suffix == ".parquet" else _from_json(path, images or path.parent)
    )
    if not scenes:
        raise UserError(f"{spec} holds no picture that could be used")
    return Scenes(str(spec), tuple(scenes), classes)


def _from_parquet(path: Path) -> tuple[list[Scene], tuple[str, ...]]:
    try:
        table = pq.read_table(path)
    except Exception as problem:  # pyarrow raises many kinds
        raise UserError(f"{path} cannot be read as Parquet: {str(problem).splitlines()[0]}") from None
    column = next((name for name in ("image", "img") if name in table.column_names), None)
    if column is None or "objects" not in table.column_names:
        raise UserError(
            f"{path} has the columns {', '.join(table.column_names)}; detection needs image and objects"
        )
    names = _feature_names(table.schema.metadata or {})
    scenes = []
    for row in table.select([column, "objects"]).to_pylist():
        objects, held = row["objects"] or {}, row[column]
        labels = objects.get("category", objects.get("label")) or []
        parts = _listed(objects, ("segmentation", "keypoints", "iscrowd", "is_crowd"), len(labels))
        told = [
            {"bbox": box, "category_id": label, **extra}
            for box, label, extra in zip(objects.get("bbox") or [], labels, parts, strict=True)
        ]
        scenes.append(
            _scene(decode(held["bytes"] if isinstance(held, Mapping) else held, None), told, str(path))
        )
    most = max((int(scene.labels.max(initial=-1)) for scene in scenes), default=-1) + 1
    return scenes, names if len(names) >= most else tuple(str(number) for number in range(most))


def _listed(objects: Mapping[str, Any], keys: Sequence[str], count: int) -> list[dict[str, Any]]:
    held = {key: objects[key] for key in keys if objects.get(key)}
    return [
        {key.replace("is_crowd", "iscrowd"): values[i] for key, values in held.items()} for i in range(count)
    ]


def _feature_names(metadata: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """The names of a ClassLabel among the features of `objects`, wherever it stands; () without one."""

    def found(tree: Any) -> Iterator[Sequence[str]]:
        if isinstance(tree, Mapping):
            if tree.get("_type") == "ClassLabel" and isinstance(tree.get("names"), list):
                yield tree["names"]
            tree = list(tree.values())
        for inner in tree if isinstance(tree, list) else ():
            yield from found(inner)

    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))
    except ValueError:
        return ()
    return tuple(map(str, next(found(features), ())))


def _from_json(path: Path, images: Path) -> tuple[list[Scene], tuple[str, ...]]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        pictures, annotations, categories = told["images"], told["annotations"], told["categories"]
        number = {one["id"]: place for place, one in enumerate(categories)}
        by_image: dict[Any, list[dict[str, Any]]] = {one["id"]: [] for one in pictures}
        for one in annotations:
            by_image[one["image_id"]].append({**one, "category_id": number[one["category_id"]]})
        files = {one["id"]: str(one["file_name"]) for one in pictures}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f"{path} cannot be read as COCO's JSON ({type(problem).__name__}: {problem})"
        ) from None
    scenes = []
    for key, name in files.items():
        try:
            raw = (images / name).read_bytes()
            scenes.append(_scene(decode(raw, None), by_image[key], str(path)))
        except (OSError, Unusable) as problem:
            raise UserError(f"{images / name}, named by {path}, cannot be used: {problem}") from None
    return scenes, tuple(str(one.get("name", one["id"])) for one in categories)


def _scene(pixels: np.ndarray, told: Sequence[Mapping[str, Any]], where: str) -> Scene:
    """Objects without an area are left out, as COCO's own tools do."""
    height, width = pixels.shape[:2]
    kept = [one for one in told if len(one["bbox"]) == 4 and min(one["bbox"][2:]) > 0]
    boxes = np.array([one["bbox"] for one in kept], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    if not np.isfinite(boxes).all():
        raise UserError(f"{where} holds a box that is not finite")
    masked = bool(kept) and all(one.get("segmentation") for one in kept)
    pointed = bool(kept) and all(one.get("keypoints") for one in kept)
    return Scene(
        pixels,
        boxes.astype(np.float32),
        np.array([one["category_id"] for one in kept], dtype=np.int64),
        np.array([bool(one.get("iscrowd")) for one in kept], dtype=bool),
        np.stack([_mask(one["segmentation"], height, width) for one in kept]) if masked else None,
        np.array([one["keypoints"] for one in kept], dtype=np.float32).reshape(len(kept), -1, 3)
        if pointed
        else None,
    )


def _mask(held: Any, height: int, width: int) -> Bool[np.ndarray, "height width"]:
    """A mask from polygons or from COCO's run lengths."""
    mask = need("faster_coco_eval.core.mask")
    if isinstance(held, Mapping):
        runs = (
            mask.frPyObjects(dict(held), height, width)
            if isinstance(held.get("counts"), list)
            else dict(held)
        )
    else:
        runs = mask.merge(mask.frPyObjects([list(part) for part in held], height, width))
    return np.asarray(mask.decode(runs)).astype(bool).reshape(height, width)
