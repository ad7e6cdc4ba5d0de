"""Instances as pictures inside the page, with their captions and classes, and the choice of query images."""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from jaxtyping import Int
from PIL import Image, ImageOps

from nearfar.core.randomness import order
from nearfar.modalities import DataSet
from nearfar.report.facts import Atlas
from nearfar.run.trained import Run

_QUALITIES = (85, 70, 50, 30, 10)
SMALL = 48  # pixels: at most this wide, a picture is shown enlarged
MAX_PER_SHEET = 1024  # thumbnails in a sheet
_AT_ONCE = 64  # images decoded together: full-size photographs are large


def square(picture: Image.Image, side: int) -> Image.Image:
    """The middle of a picture, `side` pixels wide; enlarged without blur."""
    larger = min(picture.size) >= side
    method = Image.Resampling.LANCZOS if larger else Image.Resampling.NEAREST
    return ImageOps.fit(picture, (side, side), method=method)


def fitted(picture: Image.Image, side: int) -> Image.Image:
    """At most `side`; a smaller picture keeps its own pixels and the browser enlarges them."""
    return square(picture, min(side, *picture.size))


def within(picture: Image.Image, side: int) -> Image.Image:
    """The whole picture, its longer side at most `side`."""
    smaller = picture.copy()
    smaller.thumbnail((side, side))
    return smaller


def data_uri(picture: Image.Image, limit: int | None = None) -> str:
    """The picture as a WebP data URI, of at most `limit` bytes before base64 where any quality reaches that.

    Small pictures without a limit keep every pixel: halved chroma shows when they are enlarged.
    """
    exact = limit is None and max(picture.size) <= SMALL
    for quality in _QUALITIES:
        file = io.BytesIO()
        picture.save(file, "WEBP", quality=quality, lossless=exact)
        if limit is None or file.tell() <= limit:
            break
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def atlas_of(pictures: Iterable[Image.Image], count: int, side: int, limit: int) -> Atlas:
    """Pictures as equal tiles, in nearly square sheets; of all bytes together at most about `limit`.

    A browser decodes a sheet when it is first looked at, so that many of them cost nothing until then.
    """
    per_sheet = min(count, MAX_PER_SHEET)
    columns = int(np.ceil(np.sqrt(per_sheet)))
    sheets = []
    tiles = (square(picture, side) for picture in pictures)
    while part := list(islice(tiles, per_sheet)):
        sheet = sheet_of(part, columns, -(-len(part) // columns))
        sheets.append(data_uri(sheet, limit * len(part) // count))
    return Atlas(tuple(sheets), side, columns, per_sheet)


def sheet_of(tiles: Sequence[Image.Image], columns: int, rows: int) -> Image.Image:
    """Square tiles of one size, row by row, in one picture."""
    side = tiles[0].width
    sheet = Image.new("RGB", (columns * side, rows * side))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place % columns * side, place // columns * side))
    return sheet


class Sample:
    """Some rows of a data set: `place` counts among them, not in the data set."""

    def __init__(self, run: Run, images: DataSet, rows: np.ndarray):
        self.run, self.images, self.rows = run, images, rows
        self.labels = None if images.labels is None else np.asarray(images.labels)[rows]
        self.small = max(next(self.pictures()).size) <= SMALL

    def pictures(self, places: np.ndarray | None = None) -> Iterator[Image.Image]:
        """Those at these places, or all, a few in memory at a time."""
        rows, presenter = self.rows if places is None else self.rows[places], self.run.modality.presenter
        for start in range(0, len(rows), _AT_ONCE):
            yield from presenter.pictures(
                self.images.load(rows[start : start + _AT_ONCE]), self.run.description
            )

    def label(self, place: int) -> int | None:
        """The class of the instance at `place` of the sample; a negative label means unknown."""
        if self.labels is None or self.labels[place] < 0:
            return None
        return int(self.labels[place])

    def same_class(self, first: int, second: int) -> bool | None:
        """Whether two places have one class; None where a class is not known."""
        labels = self.label(first), self.label(second)
        return None if None in labels else labels[0] == labels[1]

    def path(self, place: int) -> str:
        return str(self.images.paths[int(self.rows[place])])

    def caption(self, place: int) -> str:
        label = self.label(place)
        return self.path(place) if label is None else f"{self.class_of(label)} · {self.path(place)}"

    def class_of(self, label: int) -> str:
        return self.images.classes[label] if label < len(self.images.classes) else str(label)

    def classes(self) -> tuple[str, ...]:
        if self.labels is None or not (self.labels >= 0).any():
            return ()
        return tuple(self.class_of(label) for label in range(int(self.labels.max()) + 1))


def queries_of(labels: Int[np.ndarray, "image"] | None, size: int, count: int) -> Int[np.ndarray, "query"]:
    """Query images, drawn by a fixed seed: one of each class in turn."""
    shuffled = order(1, 0, size)
    if labels is None:
        return shuffled[:count]
    turn = np.zeros(size, dtype=np.int64)  # how many of its class were drawn before it
    counts: dict[int, int] = {}
    for place, label in enumerate(labels[shuffled].tolist()):
        turn[place] = counts.get(label, 0)
        counts[label] = turn[place] + 1
    queries = shuffled[np.argsort(turn, kind="stable")][:count]
    return queries[np.argsort(labels[queries], kind="stable")]
