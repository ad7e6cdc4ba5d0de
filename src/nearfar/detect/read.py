"""Reads images with objects: Parquet in the Hugging Face convention, COCO's JSON, or Pascal VOC.

objects: {bbox: [[x, y, w, h], …], category: […], segmentation: [[[x, y, …], …], …], keypoints: [[x, y, v, …],
…]}, or a list of such mappings, one per object. Categories are numbers or names. Errors name the file and the
image.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool

from nearfar.detect.scenes import Scene
from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.files import file_bytes
from nearfar.modalities.image.decode import decode
from nearfar.system.arrow_reading import read_table_file
from nearfar.system.extras import need
from nearfar.system.untrusted import (
    arrow_path,
    check_memory,
    check_regular,
    parse_json,
    read_bytes,
    read_text,
)

ScenesAndClasses = tuple[list[Scene], tuple[str, ...]]  # class names may be empty
AnnotatedObjects = list[dict[str, Any]]  # of one picture, under the keys below
MAX_ANNOTATION_BYTES = 2**30  # COCO's own have 0.4 GiB
ANNOTATIONS, IMAGES = "Annotations", "JPEGImages"  # folders of Pascal VOC
MAX_VOC_BYTES = 1 << 20  # of an annotation: VOC's have a few kilobytes
MAX_CLASSES = 2**14  # of a detector, which has weights for each
MAX_COORDINATE = 2**24  # up to here float32 has every whole number
JSON_EXPANSION = 8  # bytes of Python objects for a byte of text
_CELL_BYTES = 64  # of a cell as an object of Python
_KEYS = {  # names used by data sets -> our names
    "bbox": "bbox",
    "category": "category",
    "label": "category",
    "category_id": "category",
    "segmentation": "segmentation",
    "keypoints": "keypoints",
    "iscrowd": "iscrowd",
    "is_crowd": "iscrowd",
}


def from_parquet(path: Path) -> ScenesAndClasses:
    """Reads a file, or the files of a folder in sorted order."""
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
    pictures, objects_by_image = [], []
    for place, row in enumerate(table.select([column, "objects"]).to_pylist()):
        location, image = f"{path}, row {place}", row[column]
        raw = image.get("bytes") if isinstance(image, Mapping) else image
        pictures.append((location, _pixels(raw, location)))
        objects_by_image.append(_objects(row["objects"], location))
    class_names = _feature_names(table.schema.metadata or {})
    return _scenes(pictures, objects_by_image, class_names, str(path))


def _table(file: Path) -> Any:
    names = pq.read_schema(arrow_path(file)).names
    columns = [name for name in ("image", "img", "objects") if name in names]
    return read_table_file(file, columns or names, _CELL_BYTES)


def _objects(objects: Any, location: str) -> AnnotatedObjects:
    """Returns one mapping per object, from parallel lists or from a list of mappings."""
    if isinstance(objects, Mapping):
        lists = {_KEYS[key]: list(values) for key, values in objects.items() if key in _KEYS and values}
        lengths = {len(values) for values in lists.values()}
        if len(lengths) > 1:
            counts = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
            raise UserError(f"{location}: objects have {counts}; expected one of each for every object")
        objects = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    if not all(isinstance(one, Mapping) for one in objects or ()):
        raise UserError(
            f"{location}: objects are {type(objects).__name__}; expected bbox and category of each"
        )
    return [{_KEYS[key]: value for key, value in one.items() if key in _KEYS} for one in objects or ()]


def _feature_names(metadata: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Returns the names of the first ClassLabel among the features of `objects`, or ()."""

    def class_label_names(tree: Any) -> Iterator[Sequence[str]]:
        if isinstance(tree, Mapping):
            if tree.get("_type") == "ClassLabel" and isinstance(tree.get("names"), list):
                yield tree["names"]
            tree = list(tree.values())
        for inner in tree if isinstance(tree, list) else ():
            yield from class_label_names(inner)

    try:
        objects = parse_json(metadata[b"huggingface"].decode())["info"]["features"]["objects"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(map(str, next(class_label_names(objects), ())))


def from_json(path: Path, images: Path) -> ScenesAndClasses:
    try:
        check_memory(path, JSON_EXPANSION * check_regular(path))
        annotations_file = json.loads(read_text(path, MAX_ANNOTATION_BYTES))
        pictures, annotations, categories = (
            annotations_file["images"],
            annotations_file["annotations"],
            annotations_file["categories"],
        )
        number = {one["id"]: place for place, one in enumerate(categories)}
        by_image: dict[Any, AnnotatedObjects] = {one["id"]: [] for one in pictures}
        for one in annotations:
            fields = {_KEYS[key]: value for key, value in one.items() if key in _KEYS}
            by_image[one["image_id"]].append({**fields, "category": number[one["category_id"]]})
        files = {one["id"]: str(one["file_name"]) for one in pictures}
        names = tuple(str(one.get("name", one["id"])) for one in categories)
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(
            f"{path} cannot be read as COCO's JSON ({type(problem).__name__}: {problem})"
        ) from None
    decoded = []
    for name in files.values():
        location = f"{images / name}, named by {path}"
        if not _is_inside(images / name, images):
            raise UserError(f"{location}, is outside {images}; name the folder of the pictures with --images")
        decoded.append((location, _file_pixels(images / name, location)))
    return _scenes(decoded, [by_image[key] for key in files], names, str(path))


def _is_inside(path: Path, folder: Path) -> bool:
    """A data file must not name files outside its folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except ValueError:  # a null byte
        return False


def _file_pixels(path: Path, location: str) -> np.ndarray:
    try:
        return _pixels(file_bytes(str(path)), location)
    except (Unusable, ValueError) as problem:
        if isinstance(problem, UserError):
            raise
        raise UserError(f"{location}, cannot be used: {problem}") from None


def _pixels(raw: Any, location: str) -> np.ndarray:
    try:
        return decode(raw if isinstance(raw, bytes) else b"", None)
    except Unusable as problem:
        raise UserError(f"{location}, cannot be used: {problem}") from None


def _scenes(
    pictures: Sequence[tuple[str, np.ndarray]],
    objects_by_image: Sequence[AnnotatedObjects],
    names: tuple[str, ...],
    file: str,
) -> ScenesAndClasses:
    """Builds scenes. Category names become numbers in sorted order; numbers stay."""
    categories: list[Any] = [one.get("category") for objects in objects_by_image for one in objects]
    if categories and all(isinstance(category, str) for category in categories):
        names = tuple(sorted(set(categories)))
    if len(names) > MAX_CLASSES:
        raise UserError(f"{file} names {len(names):,} classes; expected at most {MAX_CLASSES:,}")
    if len(set(names)) < len(names):
        raise UserError(f"{file} gives several classes one name; expected different names")
    place = {name: number for number, name in enumerate(names)}
    scenes = []
    for (location, pixels), objects in zip(pictures, objects_by_image, strict=True):
        for one in objects:
            category = one.get("category")
            label = place.get(category, -1) if isinstance(category, str) else category
            if type(label) is not int or not 0 <= label < (len(names) or MAX_CLASSES):
                allowed = f"numbers from 0 to {(len(names) or MAX_CLASSES) - 1}"
                allowed += "" if names else ", or names"
                raise UserError(f"{location}: an object has the category {category!r}; expected {allowed}")
            one["category"] = label
        scenes.append(_scene(pixels, objects, location))
    points = {scene.keypoints.shape[1] for scene in scenes if scene.keypoints is not None}
    if len(points) > 1:
        raise UserError(
            f"{file} has objects with {sorted(points)} keypoints; expected the same number for every object"
        )
    return scenes, names


def _scene(pixels: np.ndarray, objects: AnnotatedObjects, location: str) -> Scene:
    """Builds one scene. Objects without an area are skipped, as in COCO's own tools."""
    height, width = pixels.shape[:2]
    boxes = _numbers([one.get("bbox") for one in objects], 4, f"{location}: bbox")
    area: np.ndarray = np.all(boxes[:, 2:] > 0, axis=1)
    boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)[area]
    usable = [one for one, large in zip(objects, area, strict=True) if large]
    has_masks = bool(usable) and all(one.get("segmentation") for one in usable)
    has_keypoints = bool(usable) and all(one.get("keypoints") for one in usable)
    points = (
        _numbers([one["keypoints"] for one in usable], None, f"{location}: keypoints")
        if has_keypoints
        else None
    )
    return Scene(
        pixels if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, axis=2),
        boxes.astype(np.float32),
        np.array([one["category"] for one in usable], dtype=np.int64),
        np.array([bool(one.get("iscrowd")) for one in usable], dtype=bool),
        np.stack([_mask(one["segmentation"], height, width, location) for one in usable])
        if has_masks
        else None,
        None if points is None else points.reshape(len(usable), -1, 3).astype(np.float32),
    )


def _numbers(rows: Sequence[Any], width: int | None, location: str) -> np.ndarray:
    """Returns finite numbers, `width` per row, or a multiple of three per row if `width` is None."""
    try:
        array = np.array([list(row) for row in rows], dtype=np.float64).reshape(len(rows), -1)
    except (TypeError, ValueError):
        array = np.empty((len(rows), 0))
    fits = not len(rows) or (array.shape[1] == width if width else array.shape[1] % 3 == 0 < array.shape[1])
    if not fits or not (np.abs(array) < MAX_COORDINATE).all():
        expected = (
            "four finite numbers (x, y, width, height)" if width else "finite numbers, three for a point"
        )
        raise UserError(f"{location} is invalid; expected {expected} for each object")
    return array.reshape(len(rows), width or array.shape[1])


def _mask(segmentation: Any, height: int, width: int, location: str) -> Bool[np.ndarray, "height width"]:
    """Returns a mask from polygons or from COCO's run lengths."""
    mask = need("faster_coco_eval.core.mask")
    try:
        if isinstance(segmentation, Mapping):
            if list(segmentation["size"]) != [height, width]:
                raise ValueError(f"its size is {segmentation['size']}, the picture {[height, width]}")
            uncompressed = isinstance(segmentation["counts"], list)
            runs = mask.frPyObjects(dict(segmentation), height, width) if uncompressed else dict(segmentation)
        else:
            runs = mask.merge(mask.frPyObjects([list(part) for part in segmentation], height, width))
        return np.asarray(mask.decode(runs)).astype(bool).reshape(height, width)
    except Exception as problem:  # the compiled code raises many kinds of errors
        raise UserError(f"{location}: invalid segmentation ({problem})") from None


def is_voc(path: Path) -> bool:
    return (_voc_root(path) / ANNOTATIONS).is_dir()


def _voc_root(path: Path) -> Path:
    in_split = path.suffix == ".txt" and path.parent.parent.name == "ImageSets"
    return path.parents[2] if in_split else path


def from_voc(path: Path) -> ScenesAndClasses:
    """Reads Pascal VOC (Everingham et al. 2010): a folder with Annotations and JPEGImages, or a list of its
    images (VOC2007/ImageSets/Main/trainval.txt). Boxes count pixels from 1 and include the last one. Objects
    marked difficult are ignored in scoring, as VOC does."""
    root = _voc_root(path)
    if path.is_dir():
        ids = sorted(file.stem for file in (root / ANNOTATIONS).glob("*.xml"))
    else:
        # a list of one class has a second column, 1 or -1
        ids = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
    pictures, objects = [], []
    for name in ids:
        annotation, picture = root / ANNOTATIONS / f"{name}.xml", root / IMAGES / f"{name}.jpg"
        if not _is_inside(annotation, root):
            raise UserError(f"{path} names {name}, which is outside {root}")
        objects.append(_voc_objects(annotation))
        location = f"{picture}, named by {path}"
        pictures.append((location, _file_pixels(picture, location)))
    return _scenes(pictures, objects, (), str(path))


def _voc_objects(file: Path) -> AnnotatedObjects:
    try:
        text = read_bytes(file, MAX_VOC_BYTES)
        if b"<!" in text:
            raise ValueError("it declares a document type or entities")
        objects = [_voc_object(one) for one in ElementTree.fromstring(text).iter("object")]
    except (OSError, ValueError, TypeError, AttributeError, ElementTree.ParseError) as problem:
        raise UserError(f"{file} cannot be read as an annotation of Pascal VOC: {problem}") from None
    return objects


def _voc_object(node: Any) -> dict[str, Any]:
    box = node.find("bndbox")
    x_min, y_min, x_max, y_max = (float(box.find(side).text) for side in ("xmin", "ymin", "xmax", "ymax"))
    difficult = node.find("difficult")
    return {
        "category": str(node.find("name").text),
        "bbox": [x_min - 1, y_min - 1, x_max - x_min + 1, y_max - y_min + 1],
        "iscrowd": difficult is not None and difficult.text == "1",
    }
