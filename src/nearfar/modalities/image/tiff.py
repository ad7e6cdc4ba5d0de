"""TIFF → pixels with all their bands and bits, or None where Pillow's own reader is right.

Pillow reads pictures of 8 bits: grey, palette, RGB, CMYK, with or without alpha. Its images have at most four
bands and its colours 8 bits, so every other layout is read here: any number of bands of 8 to 64 bits, whole
or floating, in strips or tiles, interleaved or one after the other, or as pages of one band each. Packed
segments (LZW, deflate, PackBits, Zstandard) are unpacked by Pillow's libtiff to the size that the layout
promises. So no file unpacks to more than its header states, and none is completed where it ends early. The
margins of tiles count as pixels: a tile of millions of pixels for each pixel of the picture would take hours.
"""

import io
import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL.TiffImagePlugin import TiffImageFile

from nearfar.modalities.dataset import Unusable

STARTS: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two: BigTIFF
MAX_VALUES = 2**20  # of one numeric tag
MAX_PAGES, MAX_TAGS = 257, 2**12  # of a file, of a page
_TYPES = {1: "B", 2: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 11: "f", 12: "d", 13: "I", 16: "Q", 17: "q", 18: "Q"}  # fmt: skip
_BYTES_TYPES = (1, 2, 6, 7)
_RATIONALS = {5: 8, 10: 8}
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 254, 256, 257, 258, 259, 262, 266
OFFSETS, ORIENTATION, SAMPLES, ROWS, COUNTS, PLANAR, PREDICTOR = 273, 274, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS, EXTRA, FORMAT = 322, 323, 324, 325, 338, 339
_PART = 2**16  # pixels laid on white at once
_REDUCED, _MASK = 1, 4  # bits of SUBFILE
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
_COLOURS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, CMYK: 4, YCBCR: 3}
_ALPHA = (1, 2)  # of EXTRA
_CODECS = {1: "", 5: "LZW", 8: "deflate", 32946: "deflate", 32773: "PackBits", 50000: "Zstandard"}
_TURNS = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}
Tags = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Layout:
    """How the samples of a page are stored."""

    height: int
    width: int
    samples: int
    dtype: np.dtype  # in the byte order of the file
    photometric: int
    extra: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether Pillow's picture has everything: 8 bits, and no further bands than colours and alpha."""
        colours = _COLOURS.get(self.photometric)
        alphas = self.samples - (colours or 0)
        return self.dtype == np.uint8 and colours is not None and alphas in (0, 1) and len(self.extra) == alphas and all(kind in _ALPHA for kind in self.extra)  # fmt: skip


def tiff_pixels(data: bytes, max_pixels: int, max_bytes: int, max_bands: int) -> np.ndarray | None:
    """(height, width, band) as uint8, uint16 or float32; None for a plain picture. Raises `Unusable`."""
    order = "<" if data[:2] == b"II" else ">"
    pages = [page for page in _pages(data, order) if not _value(page, SUBFILE, 0) & (_REDUCED | _MASK)]
    if not pages:
        raise Unusable("no picture of full size: only previews (a camera's RAW file?)")
    layouts = [_layout(page, order) for page in pages]
    first = layouts[0]
    if first.height * first.width > max_pixels:
        raise Unusable(
            f"too large: {first.width} x {first.height} pixels; the limit is {max_pixels:,} in all"
        )
    bands = first.samples * len(pages)
    nbytes = max(_unpacked_pixels(page, first) for page in pages) * bands * first.dtype.itemsize
    if bands > max_bands or nbytes > max_bytes:
        raise Unusable(
            f"too large: {bands} bands, {nbytes:,} bytes in its strips or tiles; the limits are {max_bands} and "
            f"{max_bytes:,}"
        )
    if len(pages) == 1 and first.is_plain:
        return None
    if any(layout != first for layout in layouts) or (len(pages) > 1 and first.samples > 1):
        raise Unusable(f"{len(pages)} pages; expected one, or pages of one band that are alike")
    if first.photometric not in (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB):
        raise Unusable(
            f"{8 * first.dtype.itemsize} bits of palette or converted colours; expected grey, RGB or bands"
        )
    pixels = np.concatenate([_read_page(data, page, first) for page in pages], axis=2)
    turn = _TURNS.get(_value(pages[0], ORIENTATION, 1))
    return np.ascontiguousarray(_native(pixels if turn is None else turn(pixels), first))


def _native(pixels: np.ndarray, layout: Layout) -> np.ndarray:
    """uint8 and uint16 as they are, other numbers as float32; alpha is laid on white."""
    if layout.dtype.kind == "u" and layout.dtype.itemsize <= 2:
        pixels = pixels.astype(layout.dtype.newbyteorder("="), copy=False)
        if layout.photometric == WHITE_IS_ZERO:
            pixels = np.iinfo(pixels.dtype).max - pixels
        alphas = layout.samples - _COLOURS[layout.photometric]
        if alphas == 1 and layout.extra and layout.extra[0] in _ALPHA:
            return on_white(pixels)
        return pixels
    with np.errstate(over="ignore"):
        values = pixels.astype(np.float32)
    if not np.isfinite(values).all():
        raise Unusable(
            f"{np.count_nonzero(~np.isfinite(values)):,} values are not finite in single precision; fill them"
        )
    return values


def on_white(pixels: np.ndarray) -> np.ndarray:
    """Colours without the last band, alpha: what is transparent is laid on white. In parts, since the numbers
    in between take ten times the memory of the pixels."""
    height, width, bands = pixels.shape
    flat, top = pixels.reshape(-1, bands), np.iinfo(pixels.dtype).max
    colours = np.empty((len(flat), bands - 1), pixels.dtype)
    for start in range(0, len(flat), _PART):
        part = flat[start : start + _PART]
        share = part[:, -1:] / top
        colours[start : start + _PART] = np.rint(part[:, :-1] * share + top * (1 - share))
    return colours.reshape(height, width, bands - 1)


# ------------------------------------------------------------------------------------------------- structure


def _pages(data: bytes, order: str) -> list[Tags]:
    big = data[2:4] in (b"+\0", b"\0+")
    offset = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    pages: list[Tags] = []
    while offset:
        if len(pages) == MAX_PAGES:
            raise Unusable(f"more than {MAX_PAGES - 1} pages")
        tags, offset = _tags(data, offset, order, big)
        pages.append(tags)
    return pages


def _tags(data: bytes, offset: int, order: str, big: bool) -> tuple[Tags, int]:
    """The numeric tags of a page, and the place of the next page."""
    count = struct.unpack_from(order + ("Q" if big else "H"), data, offset)[0]
    start, entry, inline = (offset + 8, "HHQ", 8) if big else (offset + 2, "HHI", 4)
    size = struct.calcsize("=" + entry) + inline
    if count > MAX_TAGS:
        raise Unusable(f"corrupt: a page of {count:,} tags")
    if start + count * size > len(data):
        raise Unusable("truncated: the TIFF ends within its tags")
    tags: dict[int, np.ndarray] = {}
    for place in range(start, start + count * size, size):
        tag, kind, number = struct.unpack_from(order + entry, data, place)
        width = struct.calcsize("=" + _TYPES[kind]) if kind in _TYPES else _RATIONALS.get(kind, 1)
        if number > MAX_VALUES and kind not in _BYTES_TYPES:
            raise Unusable(f"corrupt: tag {tag} claims {number:,} values")
        value = place + size - inline
        if number * width > inline:
            value = struct.unpack_from(order + ("Q" if big else "I"), data, value)[0]
        if value + number * width > len(data):
            raise Unusable(f"truncated: the TIFF ends before the values of tag {tag}")
        if kind in _TYPES and kind not in _BYTES_TYPES:
            tags[tag] = np.frombuffer(data, order + _TYPES[kind], number, value)
    following = start + count * size
    return tags, struct.unpack_from(order + ("Q" if big else "I"), data, following)[0]


def _value(tags: Tags, tag: int, default: int) -> int:
    values = tags.get(tag)
    return default if values is None or not len(values) else int(values[0])


def _layout(tags: Tags, order: str) -> Layout:
    height, width, samples = _value(tags, HEIGHT, 0), _value(tags, WIDTH, 0), _value(tags, SAMPLES, 1)
    if min(height, width, samples) < 1:
        raise Unusable(f"corrupt: {width} x {height} pixels of {samples} bands")
    bits, formats = ({*np.unique(tags.get(tag, 1)).tolist()} for tag in (BITS, FORMAT))
    photometric = _value(tags, PHOTOMETRIC, BLACK_IS_ZERO)
    extra = tuple(tags[EXTRA].tolist()) if EXTRA in tags else ()
    if max(bits) <= 8 and formats == {1}:  # fewer bits are expanded by Pillow
        has_one_depth = len(bits) == 1
        return Layout(height, width, samples, np.dtype(np.uint8), photometric if has_one_depth else -1, extra)
    kinds = {1: "u", 2: "i", 3: "f"}
    if len(bits) > 1 or len(formats) > 1 or not formats <= {*kinds} or not bits <= {8, 16, 32, 64}:
        raise Unusable(
            f"samples of {sorted(bits)} bits and format {sorted(formats)}; expected 8, 16, 32 or 64 bits, alike"
        )
    kind, size = kinds[formats.pop()], bits.pop() // 8
    if kind == "f" and size == 1:
        raise Unusable("floating-point samples of 8 bits")
    return Layout(height, width, samples, np.dtype(f"{order}{kind}{size}"), photometric, extra)


# --------------------------------------------------------------------------------------------------- samples


def _segment_shape(tags: Tags, layout: Layout) -> tuple[int, int]:
    """Rows and columns of a strip or tile."""
    if TILE_OFFSETS in tags:
        return _value(tags, TILE_HEIGHT, 0), _value(tags, TILE_WIDTH, 0)
    return min(_value(tags, ROWS, layout.height), layout.height), layout.width


def _unpacked_pixels(tags: Tags, layout: Layout) -> int:
    """The pixels of all strips or tiles of a page, with the margins of tiles."""
    rows, columns = _segment_shape(tags, layout)
    if min(rows, columns) < 1:
        raise Unusable(f"corrupt: segments of {columns} x {rows} pixels")
    return max(layout.height, _ceil(layout.height, rows) * rows) * _ceil(layout.width, columns) * columns


def _ceil(count: int, part: int) -> int:
    return -(-count // part)


def _read_page(data: bytes, tags: Tags, layout: Layout) -> np.ndarray:
    """(height, width, sample) of one page."""
    if _value(tags, BITS, 1) < 8 or _value(tags, FILL_ORDER, 1) != 1:
        raise Unusable(
            "samples of less than 8 bits, or with their bits reversed, in a picture of several bands"
        )
    codec = _value(tags, COMPRESSION, 1)
    if codec not in _CODECS:
        names = ", ".join(sorted({name for name in _CODECS.values() if name}))
        raise Unusable(f"TIFF compression {codec} of bands or 16-bit samples; expected none, {names}")
    tiled, (rows, columns) = TILE_OFFSETS in tags, _segment_shape(tags, layout)
    separate = _value(tags, PLANAR, 1) == 2
    depth, planes = (1, layout.samples) if separate else (layout.samples, 1)
    offsets, counts = (tags.get(tag, np.empty(0, np.int64)) for tag in ((TILE_OFFSETS, TILE_COUNTS) if tiled else (OFFSETS, COUNTS)))  # fmt: skip
    segments = planes * _ceil(layout.height, rows) * _ceil(layout.width, columns)
    if not segments == len(offsets) == len(counts):
        raise Unusable(f"corrupt: {len(offsets)} segments where the picture has {segments}")
    places = itertools.product(range(planes), range(0, layout.height, rows), range(0, layout.width, columns))
    pixels = np.empty((layout.height, layout.width, layout.samples), layout.dtype)
    for (plane, top, left), offset, count in zip(places, offsets.tolist(), counts.tolist(), strict=True):
        if offset + count > len(data):
            raise Unusable("truncated: the TIFF ends within its pixels")
        height = rows if tiled else min(rows, layout.height - top)
        size = height * columns * depth * layout.dtype.itemsize
        raw = _unpacked(data[offset : offset + count], codec, size)
        block = _unpredicted(raw, _value(tags, PREDICTOR, 1), (height, columns, depth), layout.dtype)
        block = block[: layout.height - top, : layout.width - left]
        pixels[top : top + height, left : left + columns, plane : plane + depth] = block
    return pixels


def _unpacked(raw: bytes, codec: int, size: int) -> bytes:
    """`size` bytes of a segment: libtiff reads it as a grey picture of one row."""
    if codec != 1:
        tags = {WIDTH: size, HEIGHT: 1, BITS: 8, COMPRESSION: codec, PHOTOMETRIC: 1, OFFSETS: 0, SAMPLES: 1, ROWS: 1, COUNTS: len(raw)}  # fmt: skip
        tags[OFFSETS] = start = 8 + 2 + 12 * len(tags) + 4
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
        header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
        assert len(header) == start
        raw = TiffImageFile(io.BytesIO(header + raw)).tobytes()
    if len(raw) < size:
        raise Unusable(f"truncated: {len(raw):,} of {size:,} bytes of a segment")
    return raw[:size]


def _unpredicted(raw: bytes, predictor: int, shape: tuple[int, int, int], dtype: np.dtype) -> np.ndarray:
    """The samples of a segment. Predictor 2 stores differences along rows; 3 those of bytes of floating-point
    numbers, the most significant bytes of a row first (Adobe's technical note 3)."""
    if predictor == 1:
        return np.frombuffer(raw, dtype).reshape(shape)
    if predictor == 2 and dtype.kind in "ui":
        block = np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))
        return np.cumsum(block, axis=1, dtype=block.dtype)
    if predictor == 3 and dtype.kind == "f":
        height, width, depth = shape
        steps = np.frombuffer(raw, np.uint8).reshape(height, -1, depth)
        planes = np.cumsum(steps, axis=1, dtype=np.uint8).reshape(height, dtype.itemsize, width * depth)
        return np.ascontiguousarray(planes.swapaxes(1, 2)).view(dtype.newbyteorder(">")).reshape(shape)
    raise Unusable(
        f"TIFF predictor {predictor} of {dtype} samples; expected none, differences, or those of floats"
    )
