"""Reads Pascal VOC (Everingham et al. 2010): a folder with Annotations and JPEGImages, or a list of its images.

    VOC2007                                all annotated images
    VOC2007/ImageSets/Main/trainval.txt    those of a split, an id on each line

Boxes count pixels from 1 and include the last one. Objects marked difficult are ignored in scoring, as VOC does.
"""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nearfar.detect.read import Objects, ScenesAndClasses, _pixels, _scenes
from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.files import file_bytes
from nearfar.system.untrusted import read_bytes, read_text

ANNOTATIONS, IMAGES = "Annotations", "JPEGImages"
MAX_BYTES = 1 << 20  # of an annotation: VOC's have a few kilobytes


def is_voc(path: Path) -> bool:
    return (_root(path) / ANNOTATIONS).is_dir()


def _root(path: Path) -> Path:
    in_split = path.suffix == ".txt" and path.parent.parent.name == "ImageSets"
    return path.parents[2] if in_split else path


def from_voc(path: Path) -> ScenesAndClasses:
    root = _root(path)
    if path.is_dir():
        ids = sorted(file.stem for file in (root / ANNOTATIONS).glob("*.xml"))
    else:
        # a list of one class has a second column, 1 or -1
        ids = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
    pictures, objects = [], []
    for name in ids:
        annotation, picture = root / ANNOTATIONS / f"{name}.xml", root / IMAGES / f"{name}.jpg"
        # a list must not name files outside its folder
        if not annotation.resolve().is_relative_to(root.resolve()):
            raise UserError(f"{path} names {name}, which is outside {root}")
        objects.append(_objects(annotation))
        try:
            raw = file_bytes(str(picture))
        except Unusable as problem:
            raise UserError(f"{picture}, named by {path}, cannot be used: {problem}") from None
        pictures.append((str(picture), _pixels(raw, str(picture))))
    return _scenes(pictures, objects, (), str(path))


def _objects(file: Path) -> Objects:
    try:
        text = read_bytes(file, MAX_BYTES)
        if b"<!" in text:
            raise ValueError("it declares a document type or entities")
        objects = [_object(one) for one in ElementTree.fromstring(text).iter("object")]
    except (OSError, ValueError, TypeError, AttributeError, ElementTree.ParseError) as problem:
        raise UserError(f"{file} cannot be read as an annotation of Pascal VOC: {problem}") from None
    return objects


def _object(node: Any) -> dict[str, Any]:
    box = node.find("bndbox")
    left, top, right, bottom = (float(box.find(side).text) for side in ("xmin", "ymin", "xmax", "ymax"))
    difficult = node.find("difficult")
    return {
        "category": str(node.find("name").text),
        "bbox": [left - 1, top - 1, right - left + 1, bottom - top + 1],
        "iscrowd": difficult is not None and difficult.text == "1",
    }
