"""Pictures and their objects from files: Parquet in the Hugging Face convention, or COCO's JSON.

objects: {bbox: [[x, y, w, h], …], category: […], segmentation: [[[x, y, …], …], …], keypoints: [[x, y, v, …], …]}, or a list of such for one
each. Categories are numbers or names. What makes no sense is one sentence that names the file and the picture.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool

from nearfar.detect.scenes import Scene
from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.image.decode import decode
from nearfar.system.extras import need
from nearfar.system.parquet_sizes import check_parquet
from nearfar.system.untrusted import arrow_path

Read = tuple[list[Scene], tuple[str, ...]]  # and the names of classes, where there are any
Objects = list[dict[str, Any]]  # of one picture, under the keys below
_KEYS = {  # as data sets call them: as they are called here
    "bbox": "bbox",
    "category": "category",
    "label": "category",
    "category_id": "category",
    "segmentation": "segmentation",
    "keypoints": "keypoints",
    "iscrowd": "iscrowd",
    "is_crowd": "iscrowd",
}


def from_parquet(path: Path) -> Read:
    """A file, or a folder of them in the order of their names."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    try:
        table = pa.concat_tables([_table(file) for file in files])
    except UserError:
        raise
    except Exception as problem:  # pyarrow raises many kinds
        raise UserError(f"{path} cannot be read as Parquet: {str(problem).splitlines()[0]}") from None
    column = next((name for name in ("image", "img") if name in table.column_names), None)
    if column is None or "objects" not in table.column_names:
        raise UserError(
            f"{path} has the columns {', '.join(table.column_names)}; detection needs image and objects"
        )
    pictures, told = [], []
    for place, row in enumerate(table.select([column, "objects"]).to_pylist()):
        where, held = f"{path}, row {place}", row[column]
        raw = held.get("bytes") if isinstance(held, Mapping) else held
        pictures.append((where, _pixels(raw, where)))
        told.append(_objects(row["objects"], where))
    named = _feature_names(table.schema.metadata or {})
    return _scenes(pictures, told, named, str(path))


def _table(file: Path) -> Any:
    path = arrow_path(file)
    check_parquet(path, pq.read_schema(path).names)
    return pq.read_table(path)


def _objects(held: Any, where: str) -> Objects:
    """One mapping for each object, whether the file has lists side by side or a list of mappings."""
    if isinstance(held, Mapping):
        lists = {_KEYS[key]: list(values) for key, values in held.items() if key in _KEYS and values}
        lengths = {len(values) for values in lists.values()}
        if len(lengths) > 1:
            said = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
            raise UserError(f"{where}: objects have {said}; expected one of each for every object")
        held = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    if not all(isinstance(one, Mapping) for one in held or ()):
        raise UserError(f"{where}: objects are {type(held).__name__}; expected bbox and category of each")
    return [{_KEYS[key]: value for key, value in one.items() if key in _KEYS} for one in held or ()]


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
        objects = json.loads(metadata[b"huggingface"])["info"]["features"]["objects"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(map(str, next(found(objects), ())))


def from_json(path: Path, images: Path) -> Read:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        pictures, annotations, categories = told["images"], told["annotations"], told["categories"]
        number = {one["id"]: place for place, one in enumerate(categories)}
        by_image: dict[Any, Objects] = {one["id"]: [] for one in pictures}
        for one in annotations:
            known = {_KEYS[key]: value for key, value in one.items() if key in _KEYS}
            by_image[one["image_id"]].append({**known, "category": number[one["category_id"]]})
        files = {one["id"]: str(one["file_name"]) for one in pictures}
        names = tuple(str(one.get("name", one["id"])) for one in categories)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(
            f"{path} cannot be read as COCO's JSON ({type(problem).__name__}: {problem})"
        ) from None
    decoded = []
    for name in files.values():
        where = f"{images / name}, named by {path}"
        # a data file does not get to name files elsewhere on this machine
        if not (images / name).resolve().is_relative_to(images.resolve()):
            raise UserError(f"{where}, is outside {images}; name the folder of the pictures with --images")
        try:
            raw = (images / name).read_bytes()
        except (OSError, ValueError) as problem:
            raise UserError(f"{where}, cannot be used: {problem}") from None
        decoded.append((where, _pixels(raw, where)))
    return _scenes(decoded, [by_image[key] for key in files], names, str(path))


def _pixels(raw: Any, where: str) -> np.ndarray:
    try:
        return decode(raw if isinstance(raw, bytes) else b"", None)
    except Unusable as problem:
        raise UserError(f"{where}, cannot be used: {problem}") from None


def _scenes(
    pictures: Sequence[tuple[str, np.ndarray]], told: Sequence[Objects], names: tuple[str, ...], file: str
) -> Read:
    """Categories that are names become numbers in sorted order; numbers stay, with their names where they are known."""
    given: list[Any] = [one.get("category") for objects in told for one in objects]
    if given and all(isinstance(each, str) for each in given):
        names = tuple(sorted(set(given)))
    if len(set(names)) < len(names):
        raise UserError(f"{file} gives several classes one name; expected different names")
    place = {name: number for number, name in enumerate(names)}
    scenes = []
    for (where, pixels), objects in zip(pictures, told, strict=True):
        for one in objects:
            category = one.get("category")
            label = place.get(category, -1) if isinstance(category, str) else category
            if type(label) is not int or label < 0 or (names and label >= len(names)):
                allowed = f"numbers from 0 to {len(names) - 1}" if names else "numbers from 0, or names"
                raise UserError(f"{where}: an object has the category {category!r}; expected {allowed}")
            one["category"] = label
        scenes.append(_scene(pixels, objects, where))
    points = {scene.keypoints.shape[1] for scene in scenes if scene.keypoints is not None}
    if len(points) > 1:
        raise UserError(f"{file} has objects with {sorted(points)} keypoints; expected as many of each")
    return scenes, names


def _scene(pixels: np.ndarray, told: Objects, where: str) -> Scene:
    """Objects without an area are left out, as COCO's own tools do."""
    height, width = pixels.shape[:2]
    boxes = _numbers([one.get("bbox") for one in told], 4, f"{where}: bbox")
    area: np.ndarray = np.all(boxes[:, 2:] > 0, axis=1)
    boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)[area]
    kept = [one for one, large in zip(told, area, strict=True) if large]
    masked = bool(kept) and all(one.get("segmentation") for one in kept)
    pointed = bool(kept) and all(one.get("keypoints") for one in kept)
    points = _numbers([one["keypoints"] for one in kept], None, f"{where}: keypoints") if pointed else None
    return Scene(
        pixels if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, axis=2),
        boxes.astype(np.float32),
        np.array([one["category"] for one in kept], dtype=np.int64),
        np.array([bool(one.get("iscrowd")) for one in kept], dtype=bool),
        np.stack([_mask(one["segmentation"], height, width, where) for one in kept]) if masked else None,
        None if points is None else points.reshape(len(kept), -1, 3).astype(np.float32),
    )


def _numbers(rows: Sequence[Any], width: int | None, where: str) -> np.ndarray:
    """Rows of finite numbers, `width` of them, or as many in each, by threes."""
    try:
        found = np.array([list(row) for row in rows], dtype=np.float64).reshape(len(rows), -1)
    except (TypeError, ValueError):
        found = np.empty((len(rows), 0))
    fits = not len(rows) or (found.shape[1] == width if width else found.shape[1] % 3 == 0 < found.shape[1])
    if not fits or not np.isfinite(found).all():
        expected = (
            "four finite numbers (x, y, width, height)" if width else "finite numbers, three for a point"
        )
        raise UserError(f"{where} makes no sense; expected {expected} for each object")
    return found.reshape(len(rows), width or found.shape[1])


def _mask(held: Any, height: int, width: int, where: str) -> Bool[np.ndarray, "height width"]:
    """A mask from polygons or from COCO's run lengths."""
    mask = need("faster_coco_eval.core.mask")
    try:
        if isinstance(held, Mapping):
            if list(held["size"]) != [height, width]:
                raise ValueError(f"it is of size {held['size']}, the picture {[height, width]}")
            whole = isinstance(held["counts"], list)
            runs = mask.frPyObjects(dict(held), height, width) if whole else dict(held)
        else:
            runs = mask.merge(mask.frPyObjects([list(part) for part in held], height, width))
        return np.asarray(mask.decode(runs)).astype(bool).reshape(height, width)
    except Exception as problem:  # compiled code fails on nonsense in many ways
        raise UserError(f"{where}: a segmentation makes no sense ({problem})") from None
