"""Instances -> pictures that live inside the page."""

import base64
import io
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from PIL import Image, ImageOps

from nearfar.modalities import DataSet
from nearfar.report.facts import Atlas
from nearfar.run.trained import Run

_QUALITIES = (85, 70, 50, 30, 10)
SMALL = 48  # pixels: at most this wide, a picture is shown enlarged
EACH = 1024  # thumbnails in a sheet
_AT_ONCE = 64  # images decoded together: full-size photographs are large


def decoded(run: Run, images: DataSet, rows: np.ndarray) -> Iterator[Image.Image]:
    """The instances of `rows` as pictures, a few in memory at a time."""
    for start in range(0, len(rows), _AT_ONCE):
        yield from run.modality.presenter.pictures(
            images.load(rows[start : start + _AT_ONCE]), run.description
        )


def square(picture: Image.Image, side: int) -> Image.Image:
    """The middle of a picture, `side` pixels wide; enlarged without blur, since blur would hide what was seen."""
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
    """Pictures as equal square tiles, in sheets as near to square as can be; of all bytes together at most about `limit`.

    A browser decodes a sheet when it is first looked at, so that many of them cost nothing until then.
    """
    each = min(count, EACH)
    columns = int(np.ceil(np.sqrt(each)))
    sheets = []
    tiles = (square(picture, side) for picture in pictures)
    while some := list(islice(tiles, each)):
        sheet = Image.new("RGB", (columns * side, -(-len(some) // columns) * side))
        for place, tile in enumerate(some):
            sheet.paste(tile, (place % columns * side, place // columns * side))
        sheets.append(data_uri(sheet, limit * len(some) // count))
    return Atlas(tuple(sheets), side, columns, each)
